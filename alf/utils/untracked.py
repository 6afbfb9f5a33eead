"""A holder of what a module uses without owning it."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Untracked(Generic[T]):
    """A holder that TensorFlow does not look into.

    A module (`tf.Module`, `tf.train.Checkpoint`) takes for its own every variable that it finds in its attributes, and
    wraps the lists and dicts among them. What is in a holder it neither counts, nor saves, nor wraps.
    """

    def __init__(self, value: T) -> None:
        self.value = value
