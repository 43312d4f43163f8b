"""What a snapshot says of an agent, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from repertory.core.messages import SystemPrompt, check_messages, check_system_prompt
from repertory.errors import Invalid, SnapshotException

if TYPE_CHECKING:
    from repertory.core.messages import Json, Message

Preset = Literal["session"]
SESSION_FIELDS = ("messages", "state", "conversation_manager_state", "interrupt_state", "model_state")
"""What a session keeps, and a snapshot holds unless it is told otherwise."""
ALL_FIELDS = (*SESSION_FIELDS, "system_prompt", "enabled_tools", "components")


class NamedTurn(NamedTuple):
    """The last turn of a conversation, under the name that its caller gave it."""

    token: str
    messages: int
    """How many of the last messages belong to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFields:
    """What a snapshot says. A field that it does not hold is None."""

    messages: Sequence[Message] | None = None
    """What the model is shown, a summary included."""
    turn: NamedTurn | None = None
    """The last turn, when whoever asked for it may ask again."""
    state: Mapping[str, Json] | None = None
    manager: Mapping[str, Json] | None = None
    """The conversation manager's class as `__name__`, what it counts, and what it keeps."""
    interrupts: Mapping[str, Json] | None = None
    """Where a turn that was cut off among its tools stands."""
    system_prompt: SystemPrompt = None
    enabled_tools: Sequence[str] | None = None
    components: Mapping[str, Json] = field(default_factory=dict[str, "Json"])
    names: frozenset[str] = frozenset()
    """The fields that it holds, by their names in a snapshot."""
    created_at: float = 0.0
    """Epoch seconds."""


def fields_wanted(
    preset: str | None, include: Collection[str] | None, exclude: Collection[str] | None
) -> frozenset[str]:
    """The fields that are asked for: those of the preset, those to include, without those to exclude.

    Errors: `Invalid` for a name that is no preset or field; `SnapshotException` when nothing is left.
    """
    if preset not in (None, "session"):
        raise Invalid("a preset is 'session'", got=preset)
    for name in (*(include or ()), *(exclude or ())):
        if name not in ALL_FIELDS:
            raise Invalid(f"Invalid snapshot field: {name!r}", known=sorted(ALL_FIELDS))
    wanted = {*(SESSION_FIELDS if preset else ()), *(include or ())} - set(exclude or ())
    if not wanted:
        raise SnapshotException("No snapshot fields resolved: give a preset, or at least one field to include")
    return frozenset(wanted)


def fields_of(said: Mapping[str, Json], created_at: float) -> SnapshotFields:
    """What these say, by the names of `ALL_FIELDS`, bytes as bytes.

    Errors: `SnapshotException` saying what is wrong with them.
    """
    unknown = said.keys() - set(ALL_FIELDS)
    if unknown:
        raise SnapshotException("a snapshot of fields that nobody knows", fields=sorted(unknown))
    try:
        return SnapshotFields(
            messages=_messages(said["messages"]) if "messages" in said else None,
            state=mapping(said, "state"),
            manager=mapping(said, "conversation_manager_state"),
            interrupts=mapping(said, "interrupt_state"),
            system_prompt=check_system_prompt(cast("SystemPrompt", said.get("system_prompt"))),
            enabled_tools=_names(said.get("enabled_tools")),
            components=mapping(said, "components") or {},
            names=frozenset(said),
            created_at=created_at,
        )
    except SnapshotException:
        raise
    except Invalid as error:
        raise SnapshotException("what a snapshot holds cannot be read", cause=str(error)) from error


def mapping(said: Mapping[str, Json], name: str) -> Mapping[str, Json] | None:
    """One of them, known to be an object. Errors: `SnapshotException`."""
    value = said.get(name)
    if value is not None and not isinstance(value, dict):
        raise SnapshotException(f"the {name} of a snapshot is a JSON object", got=type(value).__name__)
    return value


def _messages(found: object) -> Sequence[Message]:
    if not isinstance(found, list):
        raise SnapshotException("the messages of a snapshot are a list", got=type(found).__name__)
    return check_messages(cast("list[object]", found))


def _names(found: object) -> Sequence[str] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in cast("list[object]", found)):
        raise SnapshotException("the enabled tools of a snapshot are a list of names")
    return cast("list[str]", found)
