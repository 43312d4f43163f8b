"""A call on its way to another process, and its JSON: the one form for calls between runtimes, queued calls and jobs.

Each of them adds only what is its own, such as names and attempts. Only JSON crosses, with bytes as marked base64. A
reader passes over fields that it does not know. `docs/design/services.md` has the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from repertory.core.callers import CallerRules
from repertory.core.json_bytes import decoded, encoded
from repertory.core.json_fields import as_text
from repertory.core.messages import Json, ToolSpec
from repertory.core.turns.turn_start import Busy
from repertory.errors import Invalid

_ENCODED = ("prompt", "question", "invocation_state")
"""The fields whose values may hold bytes."""
_json = json.JSONEncoder(allow_nan=False).encode


class PortableCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call without the names of its agent, session and turn. Its fields have the meaning of `CallOptions`."""

    prompt: object = None
    question: object = None
    """A question about the session, in place of a prompt."""
    busy: Busy | None = None
    limits: dict[str, int] = {}
    caller: CallerRules | None = None
    """The rules for a call from outside of the program."""
    drop_interrupts: bool = False
    resume: bool | None = None
    output: ToolSpec | None = None
    """The output schema; None for the agent's own."""
    output_prompt: str | None = None
    deliver_to: tuple[str, ...] = ()
    invocation_state: dict[str, object] = {}
    trace: dict[str, str] = {}
    """The caller's trace as W3C headers, if it has one."""
    inside: tuple[str, ...] = ()
    """The names of the turns in which the call was made and that wait for it."""
    again: bool = False
    """True if the caller makes the call again that has failed and may succeed later."""


def call_fields(call: PortableCall) -> dict[str, Json]:
    """The call as JSON. Errors: `Invalid` for what JSON cannot hold, by name."""
    plain = {name: _plain(value, name) for name in _ENCODED if (value := getattr(call, name)) is not None}
    return cast("dict[str, Json]", msgspec.to_builtins(replace(call, **plain)))


def read_portable(fields: Mapping[str, Json]) -> PortableCall:
    """The call that `call_fields` wrote. Errors: `Invalid` for what is none."""
    try:
        read = decoded({name: fields[name] for name in _ENCODED if name in fields})
        return msgspec.convert({**fields, **read}, PortableCall)
    except (ValueError, RecursionError) as error:
        raise Invalid("this is no call", cause=as_text(error, str)) from None


def _plain(value: object, name: str) -> object:
    try:
        found = encoded({name: value})[name]
        _json(found)
    except (TypeError, ValueError, RecursionError) as error:
        text = f"{name} goes to other processes in a runtime with peers, and has what JSON cannot hold"
        raise Invalid(text, cause=as_text(error, str)) from None
    return found
