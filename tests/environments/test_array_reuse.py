"""When arrays of an environment are copied: where it writes to them again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from alf.environments.array_reuse import ReuseWatch

STEPS = 40


def _kept(buffers):
    """What is kept of steps that count, written into `buffers` one after the other; and how many were copied."""
    watch, kept, copies = ReuseWatch(), [], 0
    for number, buffer in zip(range(STEPS), buffers, strict=False):
        buffer[...] = number
        copied = watch([np.zeros(3), buffer])
        kept.append(buffer.copy() if copied else buffer)
        copies += copied
    return [array.tolist() for array in kept], copies


COUNTED = [[float(number)] * 2 for number in range(STEPS)]


def test_fresh_arrays_are_copied_at_the_beginning_alone():
    kept, copies = _kept([np.zeros(2) for _ in range(STEPS)])
    assert kept == COUNTED
    assert copies == 8


@pytest.mark.parametrize("turns", [1, 2, 3, 7])
@pytest.mark.parametrize("reset", [False, True])
def test_arrays_that_are_used_in_turn_are_copied(turns, reset):
    """`reset` has an array of its own, which is used once."""
    steps = itertools.cycle([np.zeros(2) for _ in range(turns - reset or 1)])
    kept, copies = _kept(itertools.chain([np.zeros(2)], steps) if reset else steps)
    assert kept == COUNTED
    assert copies == STEPS


def test_the_array_of_a_reset_that_comes_again_with_the_next_one_is_copied():
    first = np.zeros(2)
    kept, copies = _kept([first if number % 25 == 0 else np.zeros(2) for number in range(STEPS)])
    assert kept == COUNTED
    assert copies == 8 + STEPS - 25


def test_parts_of_one_array_are_no_reuse_until_they_come_again():
    kept, copies = _kept(list(np.zeros((STEPS, 2))))
    assert kept == COUNTED
    assert copies == 8
    whole = np.zeros((5, 2))
    assert _kept([whole[number % 5] for number in range(STEPS)]) == (COUNTED, STEPS)
