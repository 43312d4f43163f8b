"""The head of a session: its owner, and what opening needs, or where that lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, TypedDict, cast

from repertory.backends.sessions.journal.format import Packed, pack, unpack
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal

ObjectKind = Literal["head", "segment", "chunk", "window"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the head says besides the rows that it may hold."""

    session: str
    generation: int = 0
    """Of the last owner. It rises with each."""
    owner: str | None = None
    """None when the session was given up, or deleted."""
    edition: int = 0
    """Rises with each put of the head, so that no two are equal."""
    commit: int = 0
    """Everything up to this commit is known here: to the rows that opening needs, and to `seqs`."""
    orderly: bool = False
    """Whether `commit` is the last one there is, and no put of a former owner is still on its way."""
    window: str | None = None
    """The name of the object with the rows that opening needs; None when they stand in the head."""
    base: int = 0
    """Commits up to here belong to a session of the same name that was deleted."""
    merged: int = 0
    """Commits up to here stand in chunks."""
    tidied: int = 0
    """Segments up to here have been removed after they were merged."""
    seqs: Mapping[str, int] = field(default_factory=dict[str, int])
    """Agent id to its last sequence number."""
    erasing: tuple[tuple[str, int], ...] = ()
    """Rows (agent id, sequence number) whose content must go and may still stand somewhere."""
    created_at: float = 0.0
    updated_at: float = 0.0
    deleted: bool = False
    moved_to: str | None = None
    """The folder where the session lies since it was moved. `deleted`: nothing of it is left here. Releases that do not
    know this field refuse the head."""
    moved_from: str | None = None
    """The folder from which the session was moved here, as long as some of it may be left there."""


class HeadChanges(TypedDict, total=False):
    """What an owner changes in its head."""

    owner: str | None
    commit: int
    orderly: bool
    window: str | None
    merged: int
    seqs: Mapping[str, int]
    erasing: tuple[tuple[str, int], ...]
    created_at: float
    updated_at: float
    deleted: bool
    moved_to: str | None


_DEFAULTS = {item.name: item.default for item in fields(Head) if item.name != "seqs"}


def pack_head(head: Head, rows: Sequence[Row]) -> bytes:
    """The bytes of a head with these rows in it."""
    said = {name: getattr(head, name) for name in _DEFAULTS if getattr(head, name) != _DEFAULTS[name]}
    return pack({"kind": "head", **said, "seqs": dict(head.seqs)}, rows)


def head_in(packed: Packed) -> Head:
    """The head that was packed. Errors: ValueError."""
    said = {name: value for name, value in packed.header.items() if name != "kind"}
    for name, value in said.items():
        if name not in _TYPES or not isinstance(value, _TYPES[name]):
            msg = f"the head has a field that it cannot have: {name}"
            raise ValueError(msg)
    seqs = cast("dict[str, object]", said.get("seqs", {}))
    said["seqs"] = {agent_id: whole_number(seq) for agent_id, seq in seqs.items()}
    said["erasing"] = erasing_in(said.get("erasing", []))
    made = cast("Mapping[str, str]", said)  # each is of its own type, as was just seen
    return Head(**made)  # type: ignore[arg-type]


def erasing_in(said: object) -> tuple[tuple[str, int], ...]:
    """Rows that are named in a header. Errors: ValueError."""
    pairs = cast("list[object]", said) if isinstance(said, list) else []
    found: list[tuple[str, int]] = []
    for pair in pairs:
        agent_id, seq = cast("list[object]", pair) if isinstance(pair, list) else (None, None)
        found.append((str(agent_id), whole_number(seq)))
    return tuple(found)


def whole_number(said: object) -> int:
    """A number in a header. Errors: ValueError."""
    if isinstance(said, bool) or not isinstance(said, int):
        msg = f"a number is none: {said!r}"
        raise ValueError(msg)
    return said


def read_object(stored: bytes, kind: ObjectKind, session_id: str | None, key: str) -> Packed:
    """What stands in an object that should be of this kind, and this session's (None: any).

    Errors: `CorruptJournal` naming session and key.
    """
    try:
        packed = unpack(stored)
        if packed.header.get("kind") != kind:
            msg = f"a {packed.header.get('kind')} has the key of a {kind}"
            raise ValueError(msg)
        if session_id is not None and packed.header.get("session") != session_id:
            msg = f"another session's: {packed.header.get('session')}"
            raise ValueError(msg)
    except ValueError as error:
        raise CorruptJournal("a damaged object", session=session_id, key=key, cause=str(error)) from error
    return packed


_TYPES: dict[str, type | tuple[type, ...]] = {
    "session": str,
    "generation": int,
    "owner": str,
    "edition": int,
    "commit": int,
    "orderly": bool,
    "window": str,
    "base": int,
    "merged": int,
    "tidied": int,
    "seqs": dict,
    "erasing": list,
    "created_at": (int, float),
    "updated_at": (int, float),
    "deleted": bool,
    "moved_to": str,
    "moved_from": str,
}
