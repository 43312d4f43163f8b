"""A session as lines of text: a first line, one line for each row with all that proves it, and a last line.
`docs/reference/formats/journal-format.md` describes them.

The last line holds the number of rows of each agent, so a file without it was cut off. Rows prove each other by their
links; the last line proves the first by its digest.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, NoReturn, cast

from repertory.core.ids import check_id
from repertory.core.journal.restore import prove
from repertory.core.journal.rows import Row, fault, first_link
from repertory.core.json_bytes import from_base64, to_base64
from repertory.errors import AlreadyExists, CorruptJournal, Invalid

FORMAT = 1
"""The export format version that this release writes."""

_ROW = {"agent", "seq", "kind", "version", "low", "link"}
_CONTENTS = ({"salt", "body"}, {"salt", "bytes"}, {"digest"})
"""The content of a row: text, or bytes that are not UTF-8, or the digest of an erased content."""


class End(NamedTuple):
    """The last row of an agent's journal."""

    seq: int
    link: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A verified export."""

    session_id: str
    journals: Mapping[str, Sequence[Row]]
    """Agent id to its rows, all of them."""


def first_line(session_id: str, at: float) -> str:
    """The first line of an export. `at`: when it was made, in epoch seconds."""
    return _spelled({"repertory_export": FORMAT, "session": session_id, "exported_at": at})


def row_line(row: Row) -> str:
    """The line of a row."""
    fields: dict[str, object] = {"agent": row.agent_id, "seq": row.seq, "kind": row.kind, "version": row.version}
    fields |= {"low": row.low, "link": row.link.hex()}
    if row.erased:
        return _spelled({**fields, "digest": row.body.hex()})
    fields["salt"] = row.salt.hex()
    try:
        return _spelled({**fields, "body": row.body.decode()})
    except UnicodeDecodeError:
        return _spelled({**fields, "bytes": to_base64(row.body)})


def last_line(opening: str, ends: Mapping[str, End]) -> str:
    """The last line of an export whose first line is `opening`."""
    agents = {agent_id: {"seq": end.seq, "link": end.link.hex()} for agent_id, end in ends.items()}
    return _spelled({"end": agents, "first_line": _digest(opening.encode())})


class ExportReader:
    """Reads an export line by line, in order. Errors: `CorruptJournal` with file and line number, from 1."""

    def __init__(self, file: str) -> None:
        """`file`: its name in errors."""
        self._file = file
        self._line = 0
        self._opening = b""
        self._session_id = ""
        self._journals: dict[str, list[Row]] = {}
        self._lines: dict[str, list[int]] = {}
        self._ended = False

    @property
    def rows(self) -> Sequence[Sequence[Row]]:
        """The rows that were read, by agent."""
        return [*self._journals.values()]

    def take(self, line: bytes) -> None:
        """Read the next line, without its line end. Empty lines after the last one are ignored."""
        self._line += 1
        # Programs on Windows, and mail, turn line ends over.
        line = line.removesuffix(b"\r")
        if self._ended:
            if line:
                self._refuse("there is more after the line that ends the export")
            return
        fields = self._read(line)
        if self._line == 1:
            self._open(line, fields)
        elif "end" in fields:
            self._end(fields)
        else:
            self._add(fields)

    def finish(self) -> Exported:
        """The whole session, after the last line. Every journal is verified and replayed."""
        if not self._ended:
            self._line += 1
            self._refuse("the export is cut off: the line that ends it is missing")
        for agent_id, rows in self._journals.items():
            try:
                prove(rows, session_id=self._session_id)
            except CorruptJournal as error:
                seq = error.fields.get("seq")
                line = self._lines[agent_id][seq - 1] if isinstance(seq, int) else self._line
                raise CorruptJournal(str(error), file=self._file, line=line) from error
        return Exported(session_id=self._session_id, journals=self._journals)

    def _read(self, line: bytes) -> dict[str, object]:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            self._refuse("the line is no JSON: it is cut off, or this is no export", error)
        if not isinstance(fields, dict):
            self._refuse("the line is no JSON object")
        return cast("dict[str, object]", fields)

    def _open(self, line: bytes, fields: Mapping[str, object]) -> None:
        version = fields.get("repertory_export")
        if version is None:
            self._refuse("the file is not an export of a session")
        if version != FORMAT:
            self._refuse(f"an export of a version that this release does not know: {version!r}")
        try:
            self._session_id = check_id(fields.get("session"), "session id")
        except Invalid as error:
            self._refuse(str(error), error)
        self._opening = line

    def _add(self, fields: Mapping[str, object]) -> None:
        try:
            row = _row(fields)
        except (ValueError, TypeError, KeyError) as error:
            self._refuse("the line is no row of a journal", error)
        journal = self._journals.setdefault(row.agent_id, [])
        previous = journal[-1].link if journal else first_link(row.agent_id)
        wrong = fault(row, row.agent_id, len(journal) + 1, previous)
        if wrong is not None:
            self._refuse(wrong)
        journal.append(row)
        self._lines.setdefault(row.agent_id, []).append(self._line)

    def _end(self, fields: Mapping[str, object]) -> None:
        there = {agent_id: {"seq": rows[-1].seq, "link": rows[-1].link.hex()} for agent_id, rows in self._rows()}
        if fields.get("end") != there:
            self._refuse("rows are missing before this line, or the line was edited")
        if fields.get("first_line") != _digest(self._opening):
            self._line = 1
            self._refuse("the first line, or its digest in the last one, was edited")
        self._ended = True

    def _rows(self) -> Sequence[tuple[str, list[Row]]]:
        return list(self._journals.items())

    def _refuse(self, why: str, cause: Exception | None = None) -> NoReturn:
        raise CorruptJournal(why, file=self._file, line=self._line) from cause


def _row(fields: Mapping[str, object]) -> Row:
    contents = fields.keys() - _ROW
    if contents not in _CONTENTS:
        raise ValueError("fields are missing, or unknown")
    numbers = [fields[name] for name in ("seq", "kind", "version", "low")]
    if not all(type(number) is int for number in numbers):
        raise ValueError("a number is not an integer")
    seq, kind, version, low = cast("list[int]", numbers)
    if not (0 < seq < 2**63 and 0 <= kind < 256 and 0 <= version < 256 and 0 < low < 2**63):
        raise ValueError("a number is out of its bounds")
    agent_id = check_id(fields["agent"], "agent id")
    return Row(agent_id, seq, kind, version, low, _hex(fields["link"]), *_content(fields))


def _content(fields: Mapping[str, object]) -> tuple[bytes, bytes]:
    """Salt and body."""
    if "digest" in fields:
        return b"", _hex(fields["digest"])
    salt = _hex(fields["salt"])
    if not salt:
        raise ValueError("a content has a salt")
    if "body" in fields:
        return salt, _text(fields["body"]).encode()
    try:
        return salt, from_base64(_text(fields["bytes"]))
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _hex(value: object) -> bytes:
    return bytes.fromhex(_text(value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is not a string")
    return value


def _spelled(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _digest(line: bytes) -> str:
    return sha256(line).hexdigest()


def missing_rows(session_id: str, wanted: Mapping[str, Sequence[Row]], there: Mapping[str, Sequence[Row]]) -> list[Row]:
    """The rows to add, agent by agent.

    The stored rows may be a prefix of the same journals, as their links prove: then the copy is completed. Errors:
    `AlreadyExists` when other rows are stored, or all of them already.
    """
    missing: list[Row] = []
    for agent_id, rows in wanted.items():
        stored = there.get(agent_id, ())
        # Links alone: they cover contents, also of rows that were erased on one side since.
        links = [row.link for row in stored]
        if links != [row.link for row in rows[: len(stored)]]:
            raise AlreadyExists("another session has this id; give the copy another one", session=session_id)
        missing += rows[len(stored) :]
    if there.keys() - wanted.keys():
        raise AlreadyExists("another session has this id; give the copy another one", session=session_id)
    if there and not missing:
        raise AlreadyExists("the same session is there already", session=session_id)
    return missing
