"""Values of the wrong kind are told by name."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from alf.trainers.config import TrainerConfig
from alf.trainers.config_types import checked


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        ("int", 3, 3),
        ("int", 1e6, 1_000_000),
        ("int", np.int64(3), 3),
        ("int | None", None, None),
        ("float", 2, 2),
        ("float | None", np.float32(0.5), 0.5),
        ("bool", True, True),
        ("bool", 0, 0),
        ("str", "", ""),
        ("Sequence[int]", "anything", "anything"),
        ("int | str", 2.5, 2.5),
    ],
)
def test_sound_values(annotation, value, expected):
    found = checked("C", {"a": value}, {"a": annotation})["a"]
    assert found == expected
    if annotation == "int":
        assert isinstance(found, (int, np.integer))


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        ("int", "many", "C.a='many' must be a whole number."),
        ("int", 2.5, "C.a=2.5 must be a whole number."),
        ("int", float("inf"), "C.a=inf must be a whole number."),
        ("int", None, "C.a=None must be a whole number."),
        ("int", True, "C.a=True must be a whole number."),
        ("int | None", [], "C.a=[] must be a whole number or None."),
        ("float", "0.1", "C.a='0.1' must be a number."),
        ("bool", "False", "C.a='False' must be True or False."),
        ("bool", 2, "C.a=2 must be True or False."),
        ("str", 3, "C.a=3 must be text."),
    ],
)
def test_other_kinds_are_told(annotation, value, message):
    with pytest.raises(ValueError) as told:
        checked("C", {"a": value}, {"a": annotation})
    assert str(told.value) == message


def test_every_number_of_a_trainer_is_looked_at():
    parameters = inspect.signature(TrainerConfig.__init__).parameters
    numbers = [n for n, p in parameters.items() if str(p.annotation).partition(" | ")[0] in ("int", "float", "bool")]
    assert len(numbers) > 30
    for name in numbers:
        with pytest.raises(ValueError, match=f"TrainerConfig.{name}='x' must be"):
            TrainerConfig(root_dir="x", **{name: "x"})
    assert TrainerConfig(root_dir="x", num_env_steps=1e6).num_env_steps == 1_000_000
