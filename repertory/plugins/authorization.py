"""`CedarAuthorization`: Cedar policies say which tools may be used, by whom, how often and with which input."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypeAlias, cast

from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.errors import Invalid
from repertory.plugins.interventions import Deny, InterventionHandler, OnError, Proceed

if TYPE_CHECKING:
    from repertory.actors.hooks.events import BeforeToolCallEvent

_COUNTS = "cedar-authorization"  # Sessions of the Strands Agents SDK have their counts under this key.
_STEP = "cedar-authorization:step"
"""The uses that the running step has counted: a use is asked about again when a person has answered."""
_PROBLEM = re.compile(r"error while evaluating policy `([^`]+)`")
_RESOURCE = 'Resource::"agent"'

TypeAndId: TypeAlias = Mapping[str, str]
"""The caller that a policy judges: `{"type": "User", "id": "alice"}`."""
PrincipalResolver: TypeAlias = Callable[[dict[str, Any]], TypeAndId | None]
"""Says by the invocation state who asks; None for nobody, who may do nothing."""
ContextEnricher: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""A function that returns further values of `context.session`, by `tool_name`, `tool_input` and `invocation_state`."""


class ToolDefinition(TypedDict):
    """A tool that policies may name."""

    name: str
    description: NotRequired[str]
    inputSchema: NotRequired[dict[str, Any]]


class _Rules(NamedTuple):
    policies: str
    entities: list[dict[str, Any]]
    schema: str | None
    permits: frozenset[str]
    """The ids of the policies that permit: to leave these out allows nothing."""


class CedarAuthorization(InterventionHandler):
    """Refuses what Cedar policies do not permit: `Agent(interventions=[CedarAuthorization(policies=...)])`.

        permit(principal == User::"alice", action == Action::"send_email", resource)
        when { context.session.call_count <= 3 && context.input.to like "*@example.com" };

    The action is the name of the tool. `context.input` is the input as the tool gets it: converted, with defaults, and
    without nulls, which Cedar has not. A policy that forbids and cannot be evaluated refuses, so write
    `context.input has to && ...` for what may be missing. `context.session` has `hour_utc`,
    `call_count` (the allowed uses of this tool, and this one; a use counts once, also if a person is asked about it)
    and what `context_enricher` gives. The resource is `Resource::"agent"`.

    Counts are in the agent's state, so they outlive restarts. Agents that share this object share them, so that no
    model gets more uses by delegating. In a runtime, all sessions of an `AgentSpec` count together, those of all
    tenants too; where each is to have its own number, count in `context_enricher`.

    Files are read when this is made and by `reload`, which block until then.

    Args:
        policies: Text, or the path of a `.cedar` or `.cedarschema` file.
        tools: The tools that policies may name, so that a mistyped name is found here.
        entities: A list, its JSON, or the path of a JSON file.
        schema: Text, or the path of a `.cedar` or `.cedarschema` file.
        principal: The caller, `User::"anonymous"` unless given; `principal_resolver` says it by the invocation state of
            each call.
        principal_resolver: Called with the invocation state; returns who asks, or None for nobody, who may do nothing.
        context_enricher: Called with a dictionary of `tool_name`, `tool_input` and `invocation_state`; returns further
            values of `context.session`.
        on_error: The outcome of a tool use when one of the two functions raises; what the engine cannot decide is
            refused.
        now: Returns the time in epoch seconds. Tests replace it.

    Raises:
        Invalid: For policies that are wrong, or do not fit the schema or the tools, for entities without an id and for
            two principals. Correct the argument.
        FileNotFoundError: If a file that is named is not there. Check the path.
        ImportError: Without cedarpy (extra `cedar`). Install the extra that the message names.
    """

    name = "cedar-authorization"

    def __init__(
        self,
        *,
        policies: str,
        tools: Sequence[ToolDefinition] | None = None,
        entities: list[dict[str, Any]] | str | None = None,
        schema: str | None = None,
        principal: TypeAndId | None = None,
        principal_resolver: PrincipalResolver | None = None,
        context_enricher: ContextEnricher | None = None,
        on_error: OnError = "throw",
        now: Callable[[], float] = time.time,
    ) -> None:
        if principal is not None and principal_resolver is not None:
            raise Invalid("give either principal or principal_resolver, not both")
        self._cedar = _cedar()
        self._sources = (policies, entities, schema)
        self._tools = None if tools is None else frozenset(each["name"] for each in tools)
        self._principal = principal or {"type": "User", "id": "anonymous"}
        self._resolver, self._enricher = principal_resolver, context_enricher
        self._on_error: OnError = on_error
        self._now = now
        self._counts: dict[str, int] = {}
        self._rules = self._read()

    @property
    def on_error(self) -> OnError:
        """The outcome for a tool use when a function that was given raises."""
        return self._on_error

    def before_tool_call(self, event: BeforeToolCallEvent, **kwargs: Any) -> Proceed | Deny:
        """Let the tool run if the policies permit it. Errors: what the given functions raise."""
        tool, data = event.tool_use["name"], _readable(event.tool_use.get("input") or {})
        who = self._principal if self._resolver is None else self._resolver(event.invocation_state)
        if not who or not who.get("type") or not who.get("id"):
            return Deny(reason="No principal identity is known for this call")
        for what, text in (("Tool name", tool), ("Principal type", who["type"]), ("Principal id", who["id"])):
            if '"' in text or "\\" in text:
                return Deny(reason=f"{what} has double quotes or a backslash: {text}")
        step = repr(None if event.questions is None else event.questions.step())
        counted = _mapping(event.agent.state.get(_STEP))
        uses = _mapping(counted.get("uses")) if counted.get("step") == step else {}
        known, use_id = self._count(event.agent, tool), event.tool_use["toolUseId"]
        count = int(uses.get(use_id, known + 1))
        request = {
            "principal": f'{who["type"]}::"{who["id"]}"',
            "action": f'Action::"{tool}"',
            "resource": _RESOURCE,
            "context": {"input": data, "session": self._session(event, tool, data, count)},
        }
        denial = self._denial(request)
        if denial is not None:
            return Deny(reason=denial)
        self._counts[tool] = max(known, count)
        event.agent.state.set(_COUNTS, {**_counts_of(event.agent), tool: max(known, count)})
        event.agent.state.set(_STEP, {"step": step, "uses": {**uses, use_id: count}})
        return Proceed()

    def reload(self) -> None:
        """Read policies, entities and schema again. What is wrong raises as in the constructor, and changes nothing."""
        self._rules = self._read()

    def reset_call_counts(self, agent: Any = None) -> None:
        """Count from nothing again. What an agent has in its state counts as before, unless it is given.

        Args:
            agent: The agent whose counts in its state begin again too; None for none.
        """
        self._counts.clear()
        if agent is not None:
            agent.state.set(_COUNTS, {})
            agent.state.set(_STEP, {})

    def _count(self, agent: Any, tool: str) -> int:
        stored = _counts_of(agent).get(tool)
        return max(self._counts.get(tool, 0), stored if isinstance(stored, int) else 0)

    def _session(self, event: BeforeToolCallEvent, tool: str, data: object, count: int) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self._enricher is not None:
            more = self._enricher({"tool_name": tool, "tool_input": data, "invocation_state": event.invocation_state})
        return {**more, "hour_utc": datetime.fromtimestamp(self._now(), UTC).hour, "call_count": count}

    def _denial(self, request: dict[str, Any]) -> str | None:
        """The reason for which the policies do not permit a request; None if they do."""
        rules = self._rules
        try:
            found = self._cedar.is_authorized(request, rules.policies, rules.entities, rules.schema)
        except (RuntimeError, TypeError, ValueError) as error:
            return f"Cedar evaluation failed: {error}"
        problems = [str(getattr(each, "error", each)) for each in found.diagnostics.errors or ()]
        # Cedar leaves out what it cannot evaluate: a policy that forbids would then forbid nothing.
        named = [_PROBLEM.match(each) for each in problems]
        undecided = any(each is None or each[1] not in rules.permits for each in named)
        if found.decision == self._cedar.Decision.NoDecision:
            return ": ".join(["Cedar evaluation failed", *([", ".join(problems)] if problems else [])])
        if found.allowed and not undecided:
            return None
        why = [str(each) for each in found.diagnostics.reasons or ()] + problems
        return ": ".join(["Access denied by Cedar policy", *([", ".join(why)] if why else [])])

    def _read(self) -> _Rules:
        policies, entities, schema = self._sources
        text, known = _text(policies, ".cedar"), _entities(entities)
        try:
            parsed: object = json.loads(self._cedar.policies_to_json_str(text))
        except ValueError as error:
            raise Invalid(f"Invalid Cedar policy: {error}") from error
        static = _mapping(_mapping(parsed).get("staticPolicies"))
        permits = frozenset(name for name, policy in static.items() if _mapping(policy).get("effect") == "permit")
        rules = _Rules(text, known, None if schema is None else _text(schema, ".cedarschema"), permits)
        if rules.schema is not None:
            found = self._cedar.validate_policies(rules.policies, rules.schema)
            if not found.validation_passed:
                wrong = ", ".join(f"{each.policy_id}: {each.error}" for each in found.errors)
                raise Invalid(f"Cedar policy validation failed: {wrong}")
        elif self._tools is not None:
            unknown = sorted(set(_actions(parsed)) - self._tools)
            if unknown:
                raise Invalid("Cedar policy validation failed: it names tools that there are not", got=unknown)
        return rules


def _cedar() -> ModuleType:
    try:
        import cedarpy
    except ImportError as error:
        raise ImportError("Cedar policies are decided by cedarpy: pip install 'repertory[cedar]'") from error
    return cast("ModuleType", cedarpy)


def _counts_of(agent: Any) -> dict[str, Any]:
    return _mapping(agent.state.get(_COUNTS))


def _text(source: str, ending: str) -> str:
    return _file(source) if source.endswith(ending) else source


def _file(path: str) -> str:
    if not Path(path).is_file():
        raise FileNotFoundError(f"a file of Cedar was not found: {path}")
    return Path(path).read_text(encoding="utf-8")


def _entities(source: list[dict[str, Any]] | str | None) -> list[dict[str, Any]]:
    """Read entities. Errors: `Invalid` for anything but a list of those with a `uid` of `type` and `id`."""
    read: object = source or []
    if isinstance(read, str):
        try:
            read = json.loads(read if read.lstrip().startswith("[") else _file(read))
        except (ValueError, RecursionError) as error:
            raise Invalid("the entities are no JSON", error=str(error)) from error
    if not isinstance(read, list):
        raise Invalid("the entities are a list", got=type(read).__name__)
    entities = cast("list[dict[str, Any]]", read)
    if not all(map(_is_entity, entities)):
        raise Invalid("each entity has a uid with type and id", got=json.dumps(entities))
    return entities


def _is_entity(entity: object) -> bool:
    uid = _mapping(_mapping(entity).get("uid"))
    uid = _mapping(uid.get("__entity", uid))
    return bool(uid.get("type") and uid.get("id"))


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _readable(value: object) -> object:
    """A value of JSON as Cedar reads it: it has no nulls, and whole numbers alone."""
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {name: _readable(each) for name, each in fields.items() if each is not None}
    if isinstance(value, list):
        return [_readable(each) for each in cast("list[object]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _actions(parsed: object) -> Iterator[str]:
    if isinstance(parsed, dict):
        found = cast("dict[str, object]", parsed)
        if found.get("type") == "Action" and isinstance(found.get("id"), str):
            yield cast("str", found["id"])
        for each in found.values():
            yield from _actions(each)
    elif isinstance(parsed, list):
        for each in cast("list[object]", parsed):
            yield from _actions(each)
