"""One place says what an object's key may be. Our decision: what every store can keep, S3 and file systems alike."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.ids import KEY_BYTES_MAX, RESERVED, check_id, check_key, check_prefix, is_key
from repertory.errors import Invalid


@pytest.mark.parametrize("key", ["a", "a/b", "session_1/agents/agent_ä/agent.json", "...", "a/.hidden", "x" * 255, " "])
def test_ordinary_keys_are_taken_as_they_are(key: str) -> None:
    assert check_key(key) == key
    assert check_prefix(key) == key
    assert check_prefix(f"{key}/") == f"{key}/"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "is not empty"),
        ("/a", "each of which is not empty"),
        ("a/", "each of which is not empty"),
        ("a//b", "each of which is not empty"),
        ("a/../b", "is not '.' or '..'"),
        ("a/.", "is not '.' or '..'"),
        ("a\\b", "cannot contain path separators"),
        ("a/line\n", "no control characters"),
        ("a/\ud800", "no lone surrogates"),
        ("x" * 256, "at most 255 bytes"),
        ("a/" + "é" * 128, "at most 255 bytes"),
        ("/".join(["x" * 200] * 6), "at most 1024 bytes"),
        (f"a/{RESERVED}1", "begins with '.repertory-'"),
        (7, "is a string"),
    ],
)
def test_other_keys_are_refused_with_the_reason(key: object, reason: str) -> None:
    with pytest.raises(Invalid, match=re.escape(reason)):
        check_key(key)
    assert not (isinstance(key, str) and is_key(key))


@pytest.mark.parametrize("prefix", ["/", "//", "a//", "/a", "../a", "a/..", None])
def test_a_prefix_is_empty_or_a_key_with_or_without_a_slash(prefix: object) -> None:
    assert check_prefix("") == ""
    with pytest.raises(Invalid):
        check_prefix(prefix)


@given(st.text(max_size=80))
def test_a_key_is_taken_whenever_each_of_its_parts_is_an_id(key: str) -> None:
    def is_id(part: str) -> bool:
        try:
            return bool(check_id(part, "part")) and not part.startswith(RESERVED)
        except Invalid:
            return False

    assert is_key(key) == (all(map(is_id, key.split("/"))) and len(key.encode(errors="replace")) <= KEY_BYTES_MAX)
