"""One place says what an id may be (settled in the public surface: every store agrees)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.ids import ID_BYTES_MAX, check_id, prefix_end
from repertory.errors import Invalid


@pytest.mark.parametrize("value", ["a", "user-123", "...", "-", " ", "Ärger 100 %", "x" * 255, "é" * 127, "%2F", "~"])
def test_ordinary_ids_are_taken_as_they_are(value: str) -> None:
    assert check_id(value, "session id") == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "is not empty"),
        (".", "is not '.' or '..'"),
        ("..", "is not '.' or '..'"),
        ("a/b", "cannot contain path separators"),
        ("a\\b", "cannot contain path separators"),
        ("nul\0", "no control characters"),
        ("line\n", "no control characters"),
        ("\x7f", "no control characters"),
        ("\x85", "no control characters"),
        ("x" * 256, "at most 255 bytes"),
        ("é" * 128, "at most 255 bytes"),
        ("\ud800", "no lone surrogates"),
    ],
)
def test_other_ids_are_refused_with_the_reason(value: str, reason: str) -> None:
    with pytest.raises(Invalid, match=re.escape(reason)) as caught:
        check_id(value, "session id")
    assert isinstance(caught.value, ValueError)
    assert "a session id" in str(caught.value)


@pytest.mark.parametrize("value", [None, 1, b"id", ["id"]])
def test_an_id_is_a_string(value: object) -> None:
    with pytest.raises(Invalid, match="an agent id is a string"):
        check_id(value, "agent id")


@given(st.text(max_size=4), st.text(max_size=4))
def test_the_end_of_a_prefix_is_behind_what_begins_with_it_and_before_all_else(prefix: str, other: str) -> None:
    end = prefix_end(prefix)
    assert prefix + other < end
    assert (other < end) == (other < prefix or other.startswith(prefix))


@given(st.text())
def test_what_is_taken_is_safe_as_a_file_name(value: str) -> None:
    try:
        check_id(value, "session id")
    except Invalid:
        return
    assert value not in ("", ".", "..")
    assert not set(value) & {"/", "\\", "\0"}
    assert len(value.encode()) <= ID_BYTES_MAX
