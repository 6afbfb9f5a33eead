"""Names of files that stand for any text."""

from __future__ import annotations

import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf.utils.files import folder_name


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("chaser_0", "chaser_0"),
        ("Striker?team=1", "Striker%3Fteam%3D1"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        (".x", "%2Ex"),
    ],
)
def test_what_a_folder_is_called(name, folder):
    assert folder_name(name) == folder


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_has_one_folder_and_gets_nowhere_else(name):
    folder = folder_name(name)
    assert urllib.parse.unquote(folder) == name
    assert folder.isascii()
    assert folder.isprintable()
    assert "/" not in folder
    assert folder not in (".", "..")
