"""Events of one actor in AgentCore Memory: creates, lists (newest first) and deletes them, with retries and no more.

Source: the service model of `bedrock-agentcore` (CreateEvent, ListEvents, DeleteEvent, ListSessions).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from itertools import count
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.aws_clients import AwsService, AwsSettings, aws_clients
from repertory.backends.aws_errors import (
    EXPIRED,
    OF_SESSIONS,
    UNKNOWN_KEY,
    WRONG_SIGNATURE,
    AwsErrors,
    PageTokens,
    Refusal,
    RetryPolicy,
    aws_client_errors,
    with_retries,
)
from repertory.errors import (
    Invalid,
    NotFound,
    RepertoryError,
    StoreLimitReached,
    StoreNotFound,
    StoreUnavailable,
    Unwritable,
)

PAGE_EVENTS_MAX = 100
"""Events that one list request asks for: the service's maximum."""

_SERVICE = AwsService(name="bedrock-agentcore", wanted_by="AgentCoreMemorySessionManager", extra="agentcore")
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

PayloadItem = Mapping[str, Any]
"""One item of an event as the service has it: `conversational`, `blob` or `json`."""
T = TypeVar("T")


class NewEvent(Struct, frozen=True, kw_only=True):
    at_ms: int
    """Epoch milliseconds; the service lists events by it."""
    payload: Sequence[PayloadItem]
    metadata: Mapping[str, str]
    token: str
    """The same for every attempt at this event, and unique to it: the service keeps the first."""


class ListedEvent(Struct, frozen=True, kw_only=True):
    """An event as it was listed."""

    event_id: str
    at_ms: int
    metadata: Mapping[str, str]
    payload: Sequence[PayloadItem] = ()
    """Empty when it was not requested."""


class Page(Struct, frozen=True, kw_only=True):
    """One page of a listing, newest first."""

    events: Sequence[ListedEvent]
    next_token: str | None
    """None on the last page."""


class MemoryEvents(Protocol):
    """The events of one actor in one memory, by session. Sessions have the service's names.

    Errors of every method: `Throttled` and `Unavailable` when retries did not help (an event may have been created all
    the same), `Failed`, `NotFound` (no such memory), `LimitReached`, `Invalid` (credentials; after `aclose`).
    """

    @property
    def name(self) -> str:
        """Equal names mean the same events."""
        ...

    async def create(self, session: str, event: NewEvent) -> str:
        """Create an event and return its id; empty when the service does not return one."""
        ...

    async def page(self, session: str, token: str | None, *, payloads: bool) -> Page:
        """The newest events, or the page with that token. No events when there is no such session."""
        ...

    async def delete(self, session: str, event_id: str) -> None:
        """Delete an event. A missing event is no error."""
        ...

    async def sessions(self) -> Sequence[str]: ...

    async def aclose(self) -> None: ...


class AgentCoreEvents:
    """`MemoryEvents` of the service. Building one connects to nothing.

    Throttling, 5xx and broken connections are retried with backoff, for `patience.timeout_s` in all; botocore's own
    retries are off. May be used from several event loops, each of which closes its own connections.
    """

    def __init__(
        self,
        memory_id: str,
        actor_id: str,
        *,
        writer: str,
        aws: AwsSettings | None = None,
        patience: RetryPolicy | None = None,
    ) -> None:
        """`writer` must be unique to this object: it makes the retry delays of different objects differ."""
        self._memory_id = memory_id
        self._actor_id = actor_id
        self._writer = writer
        # botocore waits for 60 s each by default; an owner's lease is over by then.
        self._aws = aws or AwsSettings(connect_timeout_s=5.0, read_timeout_s=20.0)
        self._patience = replace(patience or RetryPolicy(first_delay_s=0.2), unavailable=StoreUnavailable)
        self._clients = aws_clients(_SERVICE, self._aws)
        self._numbers = count(1)
        self._closed = False

    @property
    def name(self) -> str:
        return f"agentcore:{self._aws.endpoint_url or ''}/{self._memory_id}/{self._actor_id}"

    async def create(self, session: str, event: NewEvent) -> str:
        request: dict[str, Any] = {
            "sessionId": session,
            # By addition, since `datetime.fromtimestamp` goes through a float, which may be off by a millisecond.
            "eventTimestamp": _BEGINNING + event.at_ms * _MS,
            "payload": list(event.payload),
            "clientToken": event.token,
        }
        if event.metadata:
            request["metadata"] = {key: {"stringValue": value} for key, value in event.metadata.items()}
        answer = await self._ask("create_event", request)
        return str(answer.get("event", {}).get("eventId", ""))

    async def page(self, session: str, token: str | None, *, payloads: bool) -> Page:
        request: dict[str, Any] = {
            "sessionId": session,
            "includePayloads": payloads,
            "maxResults": PAGE_EVENTS_MAX,
        }
        if token is not None:
            request["nextToken"] = token
        answer = await self._ask_about("list_events", request)
        events = [_event(each) for each in answer.get("events", ())]
        return Page(events=events, next_token=answer.get("nextToken") or None)

    async def delete(self, session: str, event_id: str) -> None:
        await self._ask_about("delete_event", {"sessionId": session, "eventId": event_id})

    async def sessions(self) -> Sequence[str]:
        found: list[str] = []
        request: dict[str, Any] = {"maxResults": PAGE_EVENTS_MAX}
        tokens = PageTokens()
        while True:
            answer = await self._ask_about("list_sessions", request)
            found.extend(str(each["sessionId"]) for each in answer.get("sessionSummaries", ()))
            token = tokens.next(answer.get("nextToken"))
            if token is None:
                return found
            request["nextToken"] = token

    async def aclose(self) -> None:
        """Close, and release the connections of the running event loop."""
        self._closed = True
        await self._clients.aclose()

    async def _ask_about(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask; an empty answer when the service does not know the event, the session or the actor."""
        try:
            return await self._ask(operation, request)
        except NotFound as error:
            # A session without events does not exist for the service. A memory that does not is a mistake of the
            # settings.
            if error.fields["missing"] == "memory":
                raise
            return {}

    async def _ask(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._closed:
            raise Invalid("this was closed before", name=self.name)

        async def attempt() -> Mapping[str, Any]:
            try:
                client = await self._clients.get()
                ask = getattr(client, operation)
                answer = await ask(memoryId=self._memory_id, actorId=self._actor_id, **request)
                return cast("Mapping[str, Any]", answer)
            except aws_client_errors() as error:
                where = {"memory_id": self._memory_id, "actor_id": self._actor_id, "session": request.get("sessionId")}
                raise AGENTCORE_ERRORS.from_foreign(error, where) from error

        return await self._patiently(attempt)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await with_retries(attempt, self._patience, self._jitter)

    def _jitter(self) -> float:
        """The next number of this writer's own sequence."""
        # No random numbers outside of `app`: tests are repeatable, and writers still wait for different times.
        digest = blake2b(f"{self._writer} {next(self._numbers)}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) / 2**32


def _event(fields: Mapping[str, Any]) -> ListedEvent:
    metadata = cast("Mapping[str, Mapping[str, object]]", fields.get("metadata") or {})
    return ListedEvent(
        event_id=str(fields["eventId"]),
        at_ms=(fields["eventTimestamp"] - _BEGINNING) // _MS,
        metadata={key: str(value.get("stringValue", "")) for key, value in metadata.items()},
        payload=tuple(fields.get("payload") or ()),
    )


# Maps AgentCore Memory's own errors to ours; the common AWS errors are in `aws_errors.py`.
#
#     not there        no such memory, or event               NotFound
#     over a bound     ServiceQuotaExceededException          LimitReached
#     leave out        refused by validation                  Unwritable
#     give up          not allowed                            Failed
#
# Source: the service model of `bedrock-agentcore` (API version 2024-02-28).

_ACCESS = (
    "the identity may not do this: allow bedrock-agentcore:CreateEvent, ListEvents, DeleteEvent and ListSessions on the"
    " memory"
)
_HINTS = {
    "accessdeniedexception": _ACCESS,
    "expiredtokenexception": EXPIRED,
    "unrecognizedclientexception": UNKNOWN_KEY,
    "invalidsignatureexception": WRONG_SIGNATURE,
}
_NO_MEMORY = "there is no such memory here: check memory_id and region_name, or create it and wait until it is active"


def _particular(refusal: Refusal) -> RepertoryError | None:
    if refusal.name == "resourcenotfoundexception":
        text_of_refusal = refusal.message.lower()
        # The error has no field for what is missing; its words are all there is.
        missing = next((part for part in ("event", "session", "actor") if part in text_of_refusal), "memory")
        hint = _NO_MEMORY if missing == "memory" else "there is nothing of that name in the memory"
        return StoreNotFound(f"{hint} ({refusal.message})", missing=missing, **refusal.where)
    if refusal.name in ("validationexception", "invalidinputexception"):
        return Unwritable(f"AgentCore refused the request: {refusal.message}", **refusal.fields)
    if refusal.name == "servicequotaexceededexception":
        text = f"a quota of AgentCore is used up, which AWS can raise: {refusal.message}"
        return StoreLimitReached(text, **refusal.fields)
    return None


AGENTCORE_ERRORS = AwsErrors(service="AgentCore", hints=_HINTS, particular=_particular, kinds=OF_SESSIONS)
