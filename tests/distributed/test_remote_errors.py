"""Errors that cross as plain data: what gin has raised again keeps its class."""

from __future__ import annotations

import gin
import pytest

from alf.distributed.remote_errors import described, rebuilt


@gin.configurable(module="test_remote_errors")
def refuse(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("kind", [ValueError, ModuleNotFoundError])
def test_what_gin_raises_again_keeps_its_class(kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        refuse(kind("There is no such environment."))
    error = rebuilt(described(caught.value), "worker 0 (life 0)")
    assert type(error) is kind
    assert str(error) == str(caught.value)
    assert "In call to configurable 'refuse'" in str(error)


def test_what_cannot_be_made_of_its_text_is_told_as_another() -> None:
    with pytest.raises(KeyError) as caught:
        refuse(KeyError("x"))
    error = rebuilt(described(caught.value), "worker 0 (life 0)")
    assert type(error) is RuntimeError
    assert str(error).startswith("KeyError: 'x'")
