"""The position of each key of a TOML document in its text, which `tomllib` does not give.

The reader of values is `tomllib`; this scanner only follows its grammar far enough to know where keys and items begin,
and `tests/service/test_toml_positions.py` compares the two. On a document that `tomllib` refuses, it finds keys that
are declared twice, and brackets and quotes that are never closed, for which `tomllib` names the document's end.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The keys from the top of a document to a value, and indices within arrays."""

DEPTH_MAX = 60
"""The deepest nesting of arrays and inline tables that is read; a configuration has two levels."""
_KEY_PARTS_MAX = 100
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"[ \t]*")
_BETWEEN = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
"""Blanks, ends of lines and comments."""
_PLAIN = re.compile(r"[^,\]\}\n#]*")
"""A number, a date or a boolean."""
_QUOTES = {
    '"""': re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    "'''": re.compile(r"'''.*?'{3,5}", re.DOTALL),
    '"': re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    "'": re.compile(r"'[^'\n]*'"),
}
"""The pattern of a whole string with its quotes, by the quote that opens it, longer ones first."""


class TextPosition(NamedTuple):
    """A position in a text; both numbers begin with 1, and a column is a character."""

    line: int
    column: int


class TomlPositions(NamedTuple):
    """The positions of the keys and items of one document."""

    of: Mapping[KeyPath, TextPosition]
    """The position of a key's first character; of an array item, that of its value; of a table, its header, or without
    one the key that first named it.
    """
    fault: tuple[TextPosition, str] | None
    """The position and the reason where the text is no TOML, and where reading ended; None for a whole document."""

    def near(self, path: KeyPath) -> TextPosition:
        """The position of this path, or of the nearest table or array around it; the text's start if there is none."""
        while path and path not in self.of:
            path = path[:-1]
        return self.of.get(path, TextPosition(1, 1))


def positions_in(text: str) -> TomlPositions:
    """The positions in a document. Never raises: what cannot be read ends the search, and is its `fault`."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    try:
        scanner.document()
    except _NoTomlError as error:
        return TomlPositions(scanner.found, (scanner.position(error.at), error.what))
    return TomlPositions(scanner.found, None)


class _NoTomlError(ValueError):
    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at, self.what = at, what


class _Scanner:
    """A scanner that goes through a text once. `at` is the index of the next character."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.found: dict[KeyPath, TextPosition] = {}
        self._ends = [index for index, character in enumerate(text) if character == "\n"]
        self._declared: dict[KeyPath, int] = {}
        """The offset at which a header or a value declared each path, which nothing else may declare again."""
        self._lengths: dict[KeyPath, int] = {}
        """The number of tables until now in each array of tables."""

    def position(self, at: int) -> TextPosition:
        line = bisect_right(self._ends, at - 1)
        return TextPosition(line + 1, at - (self._ends[line - 1] if line else -1))

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip(_BETWEEN) < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table, 0)
            self._skip(_BLANK)
            if self.text[self.at : self.at + 1] not in ("", "\n", "#"):
                raise _NoTomlError(self.at, "a value ends its line")

    def _header(self) -> KeyPath:
        start, array = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        keys = self._keys()
        self._expect("]]" if array else "]", start, "this header is not closed")
        path: KeyPath = ()
        for number, (key, _) in enumerate(keys):
            path = (*path, key)
            if number < len(keys) - 1:
                self.found.setdefault(path, self.position(start))
                if path in self._lengths:
                    path = (*path, self._lengths[path] - 1)
        if not array:
            self._declare(path, start)
            return path
        if path not in self._lengths:
            self._declare(path, start)
        index = self._lengths[path] = self._lengths.get(path, 0) + 1
        self.found[*path, index - 1] = self.position(start)
        return (*path, index - 1)

    def _pair(self, table: KeyPath, depth: int) -> None:
        keys = self._keys()
        path = table
        for key, at in keys[:-1]:
            path = (*path, key)
            self.found.setdefault(path, self.position(at))
        path = (*path, keys[-1][0])
        self._declare(path, keys[-1][1])
        self._expect("=", self.at, "after a key comes `=`")
        self._skip(_BLANK)
        self._value(path, depth)

    def _declare(self, path: KeyPath, at: int) -> None:
        if path in self._declared:
            line = self.position(self._declared[path]).line
            raise _NoTomlError(at, f"`{dotted(path)}` is declared again; it is on line {line} already")
        self._declared[path] = at
        self.found[path] = self.position(at)

    def _keys(self) -> list[tuple[str, int]]:
        """The parts of a dotted key, each with the offset of its beginning."""
        keys: list[tuple[str, int]] = []
        while True:
            start = self._skip(_BLANK)
            if self.text[start : start + 1] in ('"', "'"):
                quoted = self._text(self.text[start])
                try:
                    key = tomllib.loads(f"key = {quoted}")["key"]
                except tomllib.TOMLDecodeError as error:
                    raise _NoTomlError(start, "this is no key") from error
            elif found := _BARE.match(self.text, start):
                key, self.at = found[0], found.end()
            else:
                raise _NoTomlError(start, "a key is letters, digits, `_` and `-`, or in quotes")
            keys.append((key, start))
            if len(keys) > _KEY_PARTS_MAX:  # Every part is a path of all before it.
                raise _NoTomlError(start, "a key has too many parts")
            if self.text[self._skip(_BLANK) : self.at + 1] != ".":
                return keys
            self.at += 1

    def _value(self, path: KeyPath, depth: int) -> None:
        start = self.at
        if depth > DEPTH_MAX:
            raise _NoTomlError(start, "arrays and tables are too deep in each other")
        match self.text[start : start + 1]:
            case "[":
                self._array(path, depth)
            case "{":
                self._inline_table(path, depth)
            case '"' | "'":
                self._text(next(quote for quote in _QUOTES if self.text.startswith(quote, start)))
            case _:
                self._skip(_PLAIN)
                if not self.text[start : self.at].strip():
                    raise _NoTomlError(start, "a value is missing")

    def _array(self, path: KeyPath, depth: int) -> None:
        start = self.at
        self.at += 1
        index = 0
        while self.text[self._skip(_BETWEEN) : self.at + 1] != "]":
            item = (*path, index)
            self.found[item] = self.position(self.at)
            self._value(item, depth + 1)
            index += 1
            if self.text[self._skip(_BETWEEN) : self.at + 1] != ",":
                break
            self.at += 1
        self._expect("]", start, "this array is not closed, or a comma is missing in it")

    def _inline_table(self, path: KeyPath, depth: int) -> None:
        start = self.at
        self.at += 1
        while self.text[self._skip(_BETWEEN) : self.at + 1] not in ("}", ""):
            self._pair(path, depth + 1)
            if self.text[self._skip(_BETWEEN) : self.at + 1] != ",":
                break
            self.at += 1
        self._expect("}", start, "this table is not closed, or a comma is missing in it")

    def _text(self, quote: str) -> str:
        found = _QUOTES[quote].match(self.text, self.at)
        if found is None:
            raise _NoTomlError(self.at, "this text is not closed")
        self.at = found.end()
        return found[0]

    def _expect(self, mark: str, start: int, otherwise: str) -> None:
        self._skip(_BLANK)
        if not self.text.startswith(mark, self.at):
            raise _NoTomlError(start, otherwise)
        self.at += len(mark)

    def _skip(self, what: re.Pattern[str]) -> int:
        found = what.match(self.text, self.at)
        self.at = found.end() if found is not None else self.at
        return self.at


def dotted(path: KeyPath) -> str:
    """The path as it is written: `agents.support.tools[1]`, with quotes around keys that need them."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            bare = key if _BARE.fullmatch(key) else f'"{key}"'
            text += f".{bare}" if text else bare
    return text
