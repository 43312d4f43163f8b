"""Where keys stand in a TOML text. `tomllib` says what the keys are; generated documents say where they must be."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.service.configuration.decisions.toml_positions import KeyPath, TextPosition, dotted, positions_in

DOCUMENT = '''\
# a comment with = and [brackets]
title = "a \\" # quote"
a.b.c = 1  # dotted

[agents.support]
tools = [
    "one", # with a comment, and ]
    "two",
    { x = 1, "y z" = [true, 1979-05-27 07:32:00] },
]
prompt = """
[not.a.table]
key = "no"
"""
path = 'C:\\no\\escape'

[[jobs]]
name = "first"
[jobs.settings]
deep = 1
[[jobs]]
name = "second"
[agents]
"odd key" = {}
'''


def paths_of(value: object, path: KeyPath = ()) -> set[KeyPath]:
    """Every path of a value that `tomllib` has read."""
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return {(*path, key) for key, _ in inner}.union(*(paths_of(each, (*path, key)) for key, each in inner))


def test_every_key_and_item_of_a_document_is_found_where_it_stands() -> None:
    found = positions_in(DOCUMENT)
    assert found.fault is None
    assert set(found.of) == paths_of(tomllib.loads(DOCUMENT))
    assert found.of["title",] == TextPosition(2, 1)
    assert found.of["a", "b", "c"] == TextPosition(3, 5)
    assert found.of["agents", "support"] == TextPosition(5, 1)
    assert found.of["agents", "support", "tools", 1] == TextPosition(8, 5)
    assert found.of["agents", "support", "tools", 2, "y z"] == TextPosition(9, 14)
    assert found.of["agents", "support", "tools", 2, "y z", 1] == TextPosition(9, 29)
    assert found.of["agents", "support", "path"] == TextPosition(15, 1)
    assert found.of["jobs", 0, "settings", "deep"] == TextPosition(20, 1)
    assert found.of["jobs", 1] == TextPosition(21, 1)
    assert found.of["agents",] == TextPosition(23, 1)


def test_what_is_not_there_is_near_the_table_around_it() -> None:
    found = positions_in(DOCUMENT)
    assert found.near(("agents", "support", "model", "provider")) == TextPosition(5, 1)
    assert found.near(("nothing",)) == TextPosition(1, 1)


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("a = 1\na = 2", 2, 1, "`a` is declared again; it is on line 1 already"),
        ("[a]\nb = 1\n[a]", 3, 1, "`a` is declared again"),
        ("x = 1\na = [1,\n  2\nb = 3", 2, 5, "not closed"),
        ("a = { b = 1\n", 1, 5, "not closed"),
        ("a = 'x\nb = 1", 1, 5, "this text is not closed"),
        ('a = """x\nb = 1', 1, 5, "this text is not closed"),
        ("[agents\nx = 1", 1, 1, "this header is not closed"),
        ("a 1", 1, 3, "after a key comes `=`"),
        ("a =\nb = 2", 1, 4, "a value is missing"),
        ("= 1", 1, 1, "a key is letters"),
        ('a = "x" y', 1, 9, "a value ends its line"),
    ],
)
def test_what_is_no_toml_is_found_where_it_begins(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(text)
    fault = positions_in(text).fault
    assert fault is not None
    assert fault[0] == TextPosition(line, column)
    assert says in fault[1]


def test_arrays_that_are_nested_without_end_are_refused() -> None:
    fault = positions_in("a = " + "[" * 100_000).fault
    assert fault is not None
    assert "too deep" in fault[1]


KEYS = st.one_of(st.text("abcDEF019_-", min_size=1, max_size=6), st.text(max_size=6))
PLAIN = st.one_of(
    st.integers(-(2**40), 2**40),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
TABLES = st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4)


class Writer:
    """Writes a document in a form that is drawn, and notes where it writes each key."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.text = ""
        self.where: dict[KeyPath, TextPosition] = {}

    def here(self) -> TextPosition:
        line = self.text.count("\n")
        return TextPosition(line + 1, len(self.text) - (self.text.rfind("\n") + 1) + 1)

    def blank(self, *, lines: bool) -> None:
        self.text += self.draw(st.sampled_from(["", " ", "  \t", *(["\n", " # [x] = 'y'\n"] if lines else [])]))

    def key(self, key: str) -> str:
        bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
        if bare and self.draw(st.booleans()):
            return key
        if "'" not in key and key.isprintable() and self.draw(st.booleans()):
            return f"'{key}'"
        return quoted(key)

    def value(self, value: object, path: KeyPath) -> None:
        match value:
            case bool():
                self.text += str(value).lower()
            case int():
                self.text += str(value)
            case str():
                long = "\n" in value or self.draw(st.booleans())
                self.text += f'"""\n{quoted(value)[1:-1]}"""' if long else quoted(value)
            case list():
                self.text += "["
                for index, item in enumerate(value):
                    self.blank(lines=True)
                    self.where[*path, index] = self.here()
                    self.value(item, (*path, index))
                    self.blank(lines=True)
                    self.text += ","
                self.blank(lines=True)
                self.text += "]"
            case dict():
                self.text += "{"
                for number, (key, item) in enumerate(value.items()):
                    self.text += "," if number else ""
                    self.pair(key, item, path)
                self.text += "}"

    def pair(self, key: str, value: object, path: KeyPath) -> None:
        self.blank(lines=False)
        self.where[*path, key] = self.here()
        self.text += self.key(key)
        self.blank(lines=False)
        self.text += "="
        self.blank(lines=False)
        self.value(value, (*path, key))
        self.blank(lines=False)

    def document(self, tables: dict[str, dict[str, object]]) -> None:
        for name, table in tables.items():
            self.blank(lines=True)
            self.where[name,] = self.here()
            self.text += f"[{self.key(name)}]\n"
            for key, value in table.items():
                self.pair(key, value, (name,))
                self.text += self.draw(st.sampled_from(["\n", "  # end\n", "\n\n", "\r\n"]))


def quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    plain = (
        escapes.get(each) or (f"\\u{ord(each):04x}" if ord(each) < 32 or ord(each) == 127 else each) for each in text
    )
    return f'"{"".join(plain)}"'


@given(TABLES, st.data())
def test_each_key_of_a_generated_document_is_found_on_its_line_and_column(tables: Any, data: st.DataObject) -> None:
    writer = Writer(data.draw)
    writer.document(tables)
    assert tomllib.loads(writer.text) == tables
    found = positions_in(writer.text)
    assert found.fault is None
    assert dict(found.of) == writer.where
    assert set(found.of) == paths_of(tables)


@given(st.text("a.[]{}=\"'#\n, 1\\", max_size=60))
def test_any_text_is_looked_through_without_an_error(text: str) -> None:
    found = positions_in(text)
    try:
        value = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return
    assert found.fault is None
    assert set(found.of) == paths_of(value)


def test_a_key_of_parts_without_end_is_not_looked_through() -> None:
    """Each part is a path of all before it."""
    found = positions_in("a." * 5_000 + "a = 1")
    assert found.fault is not None
    assert not found.of


def test_a_path_is_written_as_in_the_document() -> None:
    assert dotted(("agents", "odd key", "tools", 1)) == 'agents."odd key".tools[1]'
