"""Replay memories on disk that are damaged anywhere: what was saved comes back, or one sentence and an empty memory."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.replay.replay_files import ReplayFilesError, load_replay, save_replay
from alf.replay.uniform_replay import UniformReplay
from tests.awake import awake_secs
from tests.damage import damage
from tests.replay.test_replay_files import filled, make
from tests.replay.test_uniform_replay import draws

_SECONDS = 20.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[UniformReplay, dict[str, bytes]]:
    """A memory, and its files by name."""
    folder = tmp_path_factory.mktemp("whole")
    replayer = filled(UniformReplay)
    save_replay(replayer, str(folder), 4 * replayer.buffer.step_bytes)
    return replayer, {p.name: p.read_bytes() for p in folder.iterdir()}


@given(st.data())
def test_any_damage_is_found_or_does_no_harm(tmp_path_factory: Any, whole: Any, data: Any) -> None:
    original, files = whole
    folder: pathlib.Path = tmp_path_factory.mktemp("replay")
    name = data.draw(st.sampled_from(sorted(files)))
    for other, content in files.items():
        (folder / other).write_bytes(data.draw(damage(content)) if other == name else content)
    copy = make(UniformReplay)
    began = awake_secs()
    try:
        load_replay(copy, str(folder))
    except ReplayFilesError as e:
        said = str(e)
    else:
        said = ""
    assert awake_secs() - began < _SECONDS
    if said:
        assert str(folder) in said
        assert copy.total_steps == 0
    else:
        assert copy.total_steps == original.total_steps
        assert draws(copy, 30, 2) == draws(original, 30, 2)
