"""Errors and events of calls as JSON, for callers in another process; `docs/reference/formats/wire.md` shows each form.

Bytes are marked base64. What is private to a process, such as agents and functions, is left out; anything else that
JSON cannot hold is its text. Nothing is imported or called by a name in the data. A reader passes over keys that it
does not know, and gives events that it does not know as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from repertory.core.error_json import error_fields, error_in
from repertory.core.interrupts import Interrupt
from repertory.core.json_bytes import decoded, encoded
from repertory.core.json_fields import OMITTED, Above, as_text, is_closed, json_object, json_or, leave_out, tried
from repertory.core.result import MALFORMED, AgentResult, agent_fields, agent_result, interrupts_in
from repertory.core.run_results import (
    MultiAgentResult,
    NodeResult,
    any_run_in,
    node_fields,
    node_result_in,
    run_fields,
    run_result_in,
)
from repertory.core.state import plain_value
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Json


def error_to_json(error: BaseException) -> dict[str, Json]:
    """The error as JSON: its `group`, `type` and `text`, and what it carries, with its causes.

    Never fails, whatever the error is. Of values in its fields that JSON cannot hold, it has the `repr`, shortened.

    Args:
        error: The error.

    Examples:
        >>> from repertory import Throttled, error_from_json, error_to_json
        >>> data = error_to_json(Throttled("too many requests", retry_after_s=2.0))
        >>> error_from_json(data).retry_after_s
        2.0
    """
    return _marked(error_fields(error, _whole_run))


def error_from_json(data: Mapping[str, object]) -> Exception:
    """The error that `error_to_json` gave, of the same class, with the same text and fields; it can be raised.

    A class of a later release is the group's class here, and `type_name` has its name. A class that is neither public
    in `repertory.errors` nor one of Python's is `Failed`, whose text names it.

    Args:
        data: What `error_to_json` returned.

    Raises:
        Invalid: For anything else. Correct the argument.

    Examples:
        >>> from repertory import error_from_json, error_to_json
        >>> from repertory.errors import Invalid
        >>> error_from_json(error_to_json(Invalid("a name is empty")))
        Invalid('a name is empty')
    """
    try:
        return error_in(_unmarked(data), any_run_in)
    except MALFORMED as error:
        raise Invalid("these are not the fields of an error", cause=as_text(error)) from error


def event_to_json(event: Mapping[str, object]) -> dict[str, Json]:
    """An event of `stream_async` as JSON, whatever is in it.

    Args:
        event: An event of a stream.

    Raises:
        Invalid: For what is no dictionary. Correct the argument.

    Examples:
        >>> from repertory import event_from_json, event_to_json
        >>> event_to_json({"data": "Hel", "request_state": {}})
        {'data': 'Hel', 'request_state': {}}
        >>> event_from_json(event_to_json({"data": "Hel"}))
        {'data': 'Hel'}
    """
    if not isinstance(cast("object", event), Mapping):
        raise Invalid("an event is a dictionary", got=type(event).__name__)
    made = json_object(json_or(dict(event), _written))
    streamed, given = made.get("tool_stream_event"), event.get("tool_stream_event")
    if isinstance(streamed, dict) and isinstance(given, Mapping) and "data" not in streamed:
        streamed["data"] = as_text(cast("Mapping[str, object]", given).get("data"), str, None)  # There always is some.
    return _marked(made)


def event_from_json(
    data: Mapping[str, object], run_result: type[MultiAgentResult] = MultiAgentResult
) -> dict[str, object]:
    """The event that `event_to_json` gave, with results, interrupts and errors as objects.

    Args:
        data: What `event_to_json` returned.
        run_result: What the result of a run is read as; `GraphResult` or `SwarmResult`, if that was called.

    Raises:
        Invalid: For a malformed event. Correct the argument.

    Examples:
        >>> from repertory import event_from_json
        >>> event_from_json({"data": "Hel"})
        {'data': 'Hel'}
    """
    try:
        return _event_in(_unmarked(data), run_result)
    except MALFORMED as error:
        raise Invalid("these are not the fields of an event", cause=as_text(error)) from error


def _whole_run(result: object) -> Json:
    return run_fields(result, "whole") if isinstance(result, MultiAgentResult) else None


def _marked(fields: Mapping[str, Json]) -> dict[str, Json]:
    return json_object(encoded(fields))


def _unmarked(data: Mapping[str, object]) -> dict[str, Json]:
    return json_object(decoded(dict(data)))


def _written(value: object, above: Above) -> object:
    """The substitute, in an event, for a value that JSON cannot hold."""
    inside = (*above, id(value))
    match value:
        case AgentResult() | MultiAgentResult() | NodeResult() | Interrupt():
            fields = tried(_fields_of, cast("object", value))
            return (
                as_text(cast("object", value), str, None) if fields is OMITTED else json_or(fields, leave_out, inside)
            )
        case BaseException():
            return error_fields(value, _whole_run)
        case int() | float() | list() | tuple():  # Too long, not finite, within itself or too deep.
            return as_text(cast("object", value), str, None)
        case _ if callable(value):
            return OMITTED
        case _ if is_closed(value, above):
            return as_text(value, str, None)
        case dict():
            return _with_texts_as_keys(cast("dict[object, object]", value), inside)
        case _:
            plain = tried(plain_value, value)
            return as_text(value, str, None) if plain is OMITTED else json_or(plain, _written, inside)


def _fields_of(value: object) -> dict[str, Json]:
    match value:
        case AgentResult():
            return agent_fields(cast("AgentResult", value), "whole")
        case MultiAgentResult():
            return run_fields(value, "whole")
        case NodeResult():
            return node_fields(value, "whole")
        case Interrupt():
            return value.to_dict()
        case _:
            raise TypeError(value)


def _with_texts_as_keys(value: Mapping[object, object], inside: Above) -> object:
    named = {as_text(key, str, None): item for key, item in value.items()}
    return json_or(named, _written, inside) if len(named) == len(value) else as_text(value, str, None)


def _event_in(event: dict[str, Json], run_result: type[MultiAgentResult]) -> dict[str, object]:
    made: dict[str, object] = {**event}
    match event:
        case {"result": {"type": "agent_result"} as fields}:
            made["result"] = agent_result(fields)
        case {"result": {"type": "multiagent_result"} as fields}:
            made["result"] = run_result_in(fields, run_result)
        case {"type": "multiagent_node_stop", "node_result": dict(fields)}:
            made["node_result"] = node_result_in(fields)
        case {"type": "multiagent_node_interrupt", "interrupts": list()}:
            made["interrupts"] = interrupts_in(event)
        case {"type": "multiagent_node_stream", "event": dict(inner)}:
            made["event"] = _inner_event(inner)
        case {"tool_interrupt_event": {"interrupts": list()} as fields}:
            made["tool_interrupt_event"] = {**fields, "interrupts": interrupts_in(fields)}
        case {"tool_stream_event": {"data": dict(inner)} as fields}:
            made["tool_stream_event"] = {**fields, "data": _inner_event(inner)}
        case {"model_retry": {"error": dict(error)} as fields}:
            made["model_retry"] = {**fields, "error": error_in(error, any_run_in)}
        case _:
            pass
    return made


def _inner_event(event: dict[str, Json]) -> dict[str, object]:
    """An event of a node, or of an agent that runs as a tool; as it is, where a program has events of its own."""
    try:
        return _event_in(event, MultiAgentResult)
    except MALFORMED:
        return {**event}
