"""AgentCore Memory without a network: what the service's model says of its events, held strictly.

Order, ids and what a duplicate does are those of the service as its users have seen them: newest first by the time that
the writer gave, ids of padded milliseconds and a random part, a token that was used before creates nothing. Listings
with a filter lag behind when `filter_lag` says so, those without one when `lag` does.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from typing import Any

import anyio

from repertory.backends.sessions.agentcore.events import ListedEvent, NewEvent, Page
from repertory.errors import Failed, NotFound, RepertoryError, Throttled, Unavailable

MEMORY = "memory-0123456789"
ACTOR = "user-1"


class ServiceError(Exception):
    """An error as the service spells it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        shapes = {shape.name: shape.metadata.get("error", shape.metadata) for shape in MODEL.error_shapes}
        return int(shapes.get(self.code, {}).get("httpStatusCode", 500))


def _read_model() -> Any:
    return import_module("botocore.session").get_session().get_service_model("bedrock-agentcore")


MODEL = _read_model()
"""The service's description, as botocore has it."""


@dataclass
class StoredEvent:
    """An event that was created."""

    fields: dict[str, Any]
    number: int
    """In the order in which they were created."""

    @property
    def key(self) -> tuple[float, str]:
        return self.fields["eventTimestamp"], self.fields["eventId"]

    @property
    def texts(self) -> list[str]:
        """Everything that its payload says."""
        return [
            item["conversational"]["content"]["text"] if "conversational" in item else str(item.get("blob"))
            for item in self.fields["payload"]
        ]


@dataclass
class FakeMemory:
    """The memory named `MEMORY`. Calls may come from any thread."""

    seed: int = 0
    memories: set[str] = field(default_factory=lambda: {MEMORY})
    sessions: dict[tuple[str, str], dict[str, StoredEvent]] = field(default_factory=dict)
    """Actor and session to events by id."""
    tokens: dict[str, StoredEvent] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    """Long-term records, as `MemoryRecordSummary` spells them; the service orders them by score."""
    says_duplicates: bool = True
    """Whether a request that repeats an earlier one is answered with its event."""
    lag: Callable[[StoredEvent], int] = lambda event: 0
    """How many events must be created after one before a listing shows it."""
    filter_lag: int = 0
    """The same for listings with a filter."""
    calls: list[str] = field(default_factory=list)
    created: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._lock = threading.Lock()

    def call(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """What the service answers. Errors: `ServiceError`."""
        check(MODEL.operation_model(operation).input_shape, params, operation)
        if params["memoryId"] not in self.memories:
            raise ServiceError("ResourceNotFoundException", f"Memory not found: {params['memoryId']}")
        with self._lock:
            self.calls.append(operation)
            return getattr(self, _HANDLERS[operation])(params)

    def events(self, session: str, actor: str = ACTOR) -> list[StoredEvent]:
        """The events of a session, oldest first."""
        return sorted(self.sessions.get((actor, session), {}).values(), key=lambda event: event.key)

    def expire(self, session: str, count: int, actor: str = ACTOR) -> None:
        """Forget the oldest events."""
        for event in self.events(session, actor)[:count]:
            del self.sessions[actor, session][event.fields["eventId"]]

    def take_calls(self) -> list[str]:
        """What was asked since the last look."""
        taken, self.calls = self.calls, []
        return taken

    def _retrieve_records(self, params: dict[str, Any]) -> dict[str, Any]:
        criteria, path = params["searchCriteria"], params["namespacePath"]
        strategy = criteria.get("memoryStrategyId")
        found = [
            record
            for record in self.records
            if any(f"{name}/".startswith(f"{path.rstrip('/')}/") for name in record["namespaces"])
            and strategy in (None, record["memoryStrategyId"])
        ]
        found.sort(key=lambda record: -record.get("score", 0.0))
        return {"memoryRecordSummaries": found[: criteria.get("topK", 10)]}

    def _create_event(self, params: dict[str, Any]) -> dict[str, Any]:
        token = params.get("clientToken")
        if token in self.tokens:
            return {"event": self.tokens[token].fields} if self.says_duplicates else {}
        self.created += 1
        at_s = params["eventTimestamp"]
        at_s = at_s.timestamp() if isinstance(at_s, datetime) else at_s
        event_id = f"{round(at_s * 1000):019d}#{self._rng.randrange(16**8):08x}"
        kept = {name: params[name] for name in ("memoryId", "actorId", "sessionId", "payload")}
        fields = {**kept, "eventId": event_id, "eventTimestamp": round(at_s, 3), "branch": {"name": "main"}}
        if params.get("metadata"):
            fields["metadata"] = params["metadata"]
        event = StoredEvent(fields, self.created)
        self.sessions.setdefault((params["actorId"], params["sessionId"]), {})[event_id] = event
        if token:
            self.tokens[token] = event
        return {"event": fields}

    def _list_events(self, params: dict[str, Any]) -> dict[str, Any]:
        wanted = params.get("filter", {}).get("eventMetadata", [])
        found = [
            event
            for event in reversed(self.events(params["sessionId"], params["actorId"]))
            if self.created - event.number >= (self.filter_lag if wanted else self.lag(event))
            and all(_matches(event.fields.get("metadata", {}), expression) for expression in wanted)
        ]
        if params.get("nextToken"):
            at_s, _, event_id = params["nextToken"].partition(" ")
            found = [event for event in found if event.key < (float(at_s), event_id)]
        count = params.get("maxResults", 20)
        page = found[:count]
        left_out = set() if params.get("includePayloads") else {"payload"}
        answer: dict[str, Any] = {
            "events": [{name: value for name, value in event.fields.items() if name not in left_out} for event in page]
        }
        if len(found) > count:
            answer["nextToken"] = f"{page[-1].key[0]} {page[-1].key[1]}"
        return answer

    def _get_event(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"event": self._find(params).fields}

    def _delete_event(self, params: dict[str, Any]) -> dict[str, Any]:
        event_id = self._find(params).fields["eventId"]
        del self.sessions[params["actorId"], params["sessionId"]][event_id]
        return {"eventId": event_id}

    def _list_sessions(self, params: dict[str, Any]) -> dict[str, Any]:
        names = sorted(session for actor, session in self.sessions if actor == params["actorId"])
        if not names:
            raise ServiceError("ResourceNotFoundException", f"Actor not found: {params['actorId']}")
        names = [name for name in names if name > params.get("nextToken", "")]
        count = params.get("maxResults", 20)
        answer: dict[str, Any] = {
            "sessionSummaries": [
                {"sessionId": name, "actorId": params["actorId"], "createdAt": 0.0} for name in names[:count]
            ]
        }
        if len(names) > count:
            answer["nextToken"] = names[count - 1]
        return answer

    def _find(self, params: dict[str, Any]) -> StoredEvent:
        events = self.sessions.get((params["actorId"], params["sessionId"]), {})
        if params["eventId"] not in events:
            raise ServiceError("ResourceNotFoundException", f"Event not found: {params['eventId']}")
        return events[params["eventId"]]


def _matches(metadata: dict[str, Any], expression: dict[str, Any]) -> bool:
    key = expression["left"]["metadataKey"]
    match expression["operator"]:
        case "EXISTS":
            return key in metadata
        case "NOT_EXISTS":
            return key not in metadata
        case _:
            return metadata.get(key) == expression["right"]["metadataValue"]


def check(shape: Any, value: Any, path: str) -> None:
    """Refuse what the service's model does not allow."""
    if getattr(shape, "is_document_type", False):
        return
    bounds = shape.metadata
    if shape.type_name == "structure":
        unknown = set(value) - set(shape.members)
        missing = set(shape.required_members) - set(value)
        if unknown or missing or (getattr(shape, "is_tagged_union", False) and len(value) != 1):
            raise ServiceError("ValidationException", f"{path}: unknown {unknown}, missing {missing}")
        for name, item in value.items():
            check(shape.members[name], item, f"{path}.{name}")
    elif shape.type_name == "list":
        _check_length(bounds, value, path)
        for place, item in enumerate(value):
            check(shape.member, item, f"{path}[{place}]")
    elif shape.type_name == "map":
        _check_length(bounds, value, path)
        for key, item in value.items():
            check(shape.key, key, f"{path} key")
            check(shape.value, item, f"{path}.{key}")
    elif shape.type_name == "string":
        _check_length(bounds, value, path)
        if "pattern" in bounds and not re.fullmatch(bounds["pattern"], value):
            raise ServiceError("ValidationException", f"{path}: {value!r} does not match {bounds['pattern']}")
        if getattr(shape, "enum", None) and value not in shape.enum:
            raise ServiceError("ValidationException", f"{path}: {value!r} is not one of {shape.enum}")
    elif shape.type_name == "integer" and not bounds.get("min", value) <= value <= bounds.get("max", value):
        raise ServiceError("ValidationException", f"{path}: {value} is out of bounds")


def _check_length(bounds: dict[str, Any], value: Any, path: str) -> None:
    if not bounds.get("min", 0) <= len(value) <= bounds.get("max", len(value)):
        raise ServiceError("ValidationException", f"{path}: {len(value)} is not a length between {bounds}")


_HANDLERS = {
    "CreateEvent": "_create_event",
    "ListEvents": "_list_events",
    "GetEvent": "_get_event",
    "DeleteEvent": "_delete_event",
    "ListSessions": "_list_sessions",
    "RetrieveMemoryRecords": "_retrieve_records",
}

Fault = str
"""`refused` and `throttled` (nothing is done), `lost` (it is done, and the answer gets lost)."""


@dataclass
class DirectEvents:
    """`MemoryEvents` of a fake memory without a network and without retries, for virtual time."""

    memory: FakeMemory
    plan: Callable[[str], Fault | None] = lambda operation: None
    """What goes wrong with the next request, by operation."""
    latency_s: Callable[[], float] = lambda: 0.0
    actor: str = ACTOR
    closed: bool = False

    @property
    def name(self) -> str:
        return f"fake:{id(self.memory)}/{self.actor}"

    async def create(self, session: str, event: NewEvent) -> str:
        metadata = {key: {"stringValue": value} for key, value in event.metadata.items()}
        params = {"sessionId": session, "eventTimestamp": event.at_ms / 1000, "payload": list(event.payload)}
        answer = await self._ask("CreateEvent", {**params, "clientToken": event.token, "metadata": metadata})
        return str(answer["event"]["eventId"]) if answer else ""

    async def page(self, session: str, token: str | None, *, payloads: bool) -> Page:
        params: dict[str, Any] = {"sessionId": session, "includePayloads": payloads, "maxResults": 100}
        answer = await self._ask("ListEvents", params | ({"nextToken": token} if token else {}))
        events = [
            ListedEvent(
                event_id=each["eventId"],
                at_ms=round(each["eventTimestamp"] * 1000),
                metadata={key: value["stringValue"] for key, value in each.get("metadata", {}).items()},
                payload=tuple(each.get("payload", ())),
            )
            for each in answer["events"]
        ]
        return Page(events=events, next_token=answer.get("nextToken"))

    async def delete(self, session: str, event_id: str) -> None:
        try:
            await self._ask("DeleteEvent", {"sessionId": session, "eventId": event_id})
        except NotFound:
            return

    async def sessions(self) -> Sequence[str]:
        try:
            answer = await self._ask("ListSessions", {"maxResults": 100})
        except NotFound:
            return []
        return [each["sessionId"] for each in answer["sessionSummaries"]]

    async def aclose(self) -> None:
        self.closed = True

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        await anyio.sleep(self.latency_s())
        fault = self.plan(operation)
        if fault == "refused":
            raise Unavailable("injected", operation=operation)
        if fault == "throttled":
            raise Throttled("injected", operation=operation)
        try:
            answer = self.memory.call(operation, {"memoryId": MEMORY, "actorId": self.actor, **params})
        except ServiceError as error:
            raise _ours(error) from error
        if fault == "lost":
            raise Unavailable("injected: the answer got lost", operation=operation)
        return answer


def _ours(error: ServiceError) -> RepertoryError:
    if error.code == "ResourceNotFoundException":
        return NotFound(error.message)
    return Failed(error.message, code=error.code)
