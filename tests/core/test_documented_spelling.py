"""JSON as the documented layouts have it: whatever is written comes back, whatever others have written is read."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from repertory.core.json_bytes import (
    decoded,
    encoded,
    json_file,
    parsed,
    read,
    to_file,
)
from repertory.core.json_fields import json_or, leave_out

MARK = "__bytes_encoded__"


def random_value(rng: random.Random, depth: int = 4) -> Any:
    plain: list[Any] = [None, True, False, 0, 1, 1.0, -1.5, "", "text", "aGk=", "\ud800", b"", b"\x00\xff"]
    match rng.randrange(4) if depth else 3:
        case 0:
            return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
        case 1:
            keys = rng.sample(["a", "data", MARK, "$bytes", "\udc80"], rng.randrange(4))
            return {key: random_value(rng, depth - 1) for key in keys}
        case 2:
            return {MARK: rng.choice([True, False, 1, "true"]), "data": random_value(rng, depth - 1)}
        case _:
            return rng.choice(plain)


def theirs(value: Any) -> Any:
    """What other programs read: they take for bytes whatever is marked, and fail at what is no base64."""
    import base64

    if isinstance(value, dict):
        if value.get(MARK) is True and "data" in value:
            return base64.b64decode(value["data"])
        return {key: theirs(item) for key, item in value.items()}
    return [theirs(item) for item in value] if isinstance(value, list) else value


def test_whatever_is_written_comes_back_equal_here_and_elsewhere(rng: random.Random) -> None:
    for _ in range(500):
        value = {"value": random_value(rng)}
        body = to_file(value)
        assert read(body) == value
        assert theirs(json.loads(body)) == value
        assert json_file(parsed(body)) == body


def test_a_copy_that_marks_bytes_is_the_encoded_one(rng: random.Random) -> None:
    for _ in range(500):
        value = {"value": random_value(rng)}
        copy = json_or(value, leave_out, marks=True)
        assert copy == encoded(value)
        assert repr(copy) == repr(encoded(value))


def laid_out(value: object) -> bytes:
    """What `json` makes of it, indented."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=2, allow_nan=False).encode()


def test_files_are_laid_out_as_json_does_it_byte_for_byte(rng: random.Random) -> None:
    odd = [10**30, -0.0, 1e16, 5e-324, "\u2028", 'q"\\/\x00\x1f\x7f', "é😀", "{[,: ", {}, [], {"": {}}, [[], {}]]
    for _ in range(500):
        value = {"value": random_value(rng), "odd": rng.sample(odd, 3), rng.choice(["", "é\n", '"']): rng.choice(odd)}
        assert to_file(value) == laid_out(encoded(value))


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ("aGk=", b"hi"),
        ("aG\nk=", b"hi"),
        ("", b""),
        ("not base64!", None),
        ("aGk", None),
        ("a", None),
        (5, None),
        (None, None),
    ],
)
def test_what_others_have_marked_is_bytes_when_it_can_be(data: Any, wanted: bytes | None) -> None:
    marked = {MARK: True, "data": data}
    body = json.dumps({"value": marked}).encode()
    assert read(body) == {"value": marked if wanted is None else wanted}
    assert read(json.dumps({"value": {**marked, "more": 1}}).encode()) == {"value": {**marked, "more": 1}}


def test_what_was_marked_before_is_true_again() -> None:
    value: dict[str, object] = {MARK: True, "data": "no"}
    assert encoded(value)[MARK] is not True
    assert decoded(encoded(value))[MARK] is True
    assert list(decoded(encoded({"a": 1, **value, "b": 2}))) == ["a", MARK, "data", "b"]
