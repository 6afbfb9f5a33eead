"""Literals against type hints."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from alf.algorithms.actor_critic_loss import ActorCriticLoss
from alf.trainers.schedule import Schedule
from alf.utils.value_kinds import expected, fits, hints_of

if TYPE_CHECKING:
    from nowhere import Unknown

Alias = float | Callable[[int], float]


@pytest.mark.parametrize(
    ("hint", "sound", "wrong", "words"),
    [
        (int, [0, -3, 1e6, np.int64(3)], [1.5, "1", True, None, (1,)], "a whole number"),
        (float, [0, 1.5, np.float32(2)], ["0.1", False, None, (1, 2), {}], "a number"),
        (bool, [True, 0, 1], [2, "False", None], "True or False"),
        (str, ["", "x"], [3, None, ["x"]], "text"),
        (float | None, [None, 1], ["x"], "a number or None"),
        (int | str | None, [None, 1, "x"], [1.5], "a whole number, text or None"),
        (Alias, [1.0, len], ["x", None], "a number or a function or class (@name)"),
        (Callable[..., Any], [len, dict], ["len", 3], "a function or class (@name)"),
        (Sequence[int], [[], [1, 2], (1,)], [3, "12", [1, "x"], None], "a list of whole numbers"),
        (Sequence[str] | None, [["a"], None], ["a", [1]], "a list of texts or None"),
        (Sequence[Callable[[int], int]], [[], [len]], [len, ["len"]], "a list of functions or classes (@name)"),
        (
            Sequence[str | Callable[[int], int]],
            [["a", len]],
            [len, [3]],
            "a list of texts or functions or classes (@name)",
        ),
        (Sequence[str | bytes], [["a"]], [3], "a list"),
        (tuple[float, float], [(1, 2.5), [0, 1]], [(1,), (1, 2, 3), (1, "x")], "a list of 2: a number, a number"),
        (tuple[int, ...], [(), (1, 2)], [(1, 0.5), 1], "a list of whole numbers"),
        (collections.abc.Sequence, [[1, "x"]], [1], "a list"),
        (float | Mapping[str, float] | None, [1, {"a": 1.0}, {}, None], ["x", [1]], "a number, a dict or None"),
        (Schedule, [object()], ["x", 3, None, [1]], "an object (@Schedule())"),
        (Any, [1, "x", None], [], ""),
        (np.ndarray, [1, "x", None], [], ""),
    ],
)
def test_what_fits(hint, sound, wrong, words):
    assert [v for v in sound if not fits(v, hint)] == []
    assert [v for v in wrong if fits(v, hint)] == []
    assert not wrong or expected(hint) == words


class Base:
    def __init__(self, a: int, b: Unknown | None = None, *, c: Sequence[int] = ()) -> None:
        pass


class Derived(Base):
    def __init__(self, a: float, *args: Any, **kwargs: Any) -> None:
        pass


def test_hints_of_the_nearest_class_win_and_unknown_names_tell_nothing():
    hints = hints_of(Derived)
    assert hints["a"] is float
    assert hints["c"] == Sequence[int]
    assert fits("anything", hints["b"])
    assert hints_of(ActorCriticLoss)["gamma"] is float
    assert hints_of(print) == {}
    assert "return" not in hints_of(hints_of)
