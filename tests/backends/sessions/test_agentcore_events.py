"""Events of AgentCore Memory over its protocol, and a service that refuses, breaks off and forgets to answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import anyio
import anyio.to_thread
import pytest

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.aws_errors import RetryPolicy
from repertory.backends.sessions.agentcore.events import AgentCoreEvents, ListedEvent, NewEvent
from repertory.errors import Failed, Invalid, LimitReached, NotFound, RepertoryError, Throttled, Unavailable, Unwritable
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY
from tests.backends.sessions.agentcore_server import Drop, Hang, MemoryServer, Plan, Say, agentcore_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("aws_keys")]

WAIT_S = 20.0
QUICK = RetryPolicy(timeout_s=10.0, first_delay_s=0.001)
SHORT = RetryPolicy(timeout_s=2.0, first_delay_s=0.001)
THROTTLED = Say("ThrottledException", "Rate exceeded")
BROKEN = Say("ServiceException", "Something went wrong")

_names = count()


@pytest.fixture(scope="module")
def running() -> Iterator[MemoryServer]:
    with agentcore_server() as server:
        yield server


@pytest.fixture
def service(running: MemoryServer) -> MemoryServer:
    running.plan = lambda operation, params: None
    running.operations()
    return running


@pytest.fixture
def session() -> str:
    """A session for this test alone."""
    return f"session-{next(_names)}"


def open_events(service: MemoryServer, patience: RetryPolicy = QUICK, memory: str = MEMORY) -> AgentCoreEvents:
    return AgentCoreEvents(memory, ACTOR, writer="w", aws=AwsSettings(endpoint_url=service.url), patience=patience)


@pytest.fixture
async def events(service: MemoryServer) -> AsyncIterator[AgentCoreEvents]:
    opened = open_events(service)
    with anyio.fail_after(WAIT_S):
        yield opened
        await opened.aclose()


def new(text: str, at_ms: int = 1_700_000_000_123, **metadata: str) -> NewEvent:
    payload = [{"blob": text}, {"conversational": {"content": {"text": text}, "role": "USER"}}]
    return NewEvent(at_ms=at_ms, payload=payload, metadata=metadata, token=f"token-{next(_names)}")


def texts(found: Any) -> list[str]:
    return [event.payload[0]["blob"] for event in found]


async def test_an_event_comes_back_as_it_was_created(events: AgentCoreEvents, session: str) -> None:
    text = 'Ünïcode \U0001f600 \\ " \n'
    wanted = new(text, repertory="rows.1f.2.one", place="New York")
    event_id = await events.create(session, wanted)
    (found,) = (await events.page(session, None, payloads=True)).events
    assert found == ListedEvent(
        event_id=event_id, at_ms=wanted.at_ms, metadata=wanted.metadata, payload=tuple(wanted.payload)
    )
    (found,) = (await events.page(session, None, payloads=False)).events
    assert (found.event_id, found.metadata, found.payload) == (event_id, wanted.metadata, ())


async def test_events_are_listed_newest_first_page_by_page(
    events: AgentCoreEvents, service: MemoryServer, session: str
) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(230):
            tasks.start_soon(events.create, session, new(str(number), 1_700_000_000_000 + number))
    service.operations()
    found: list[ListedEvent] = []
    token = None
    while True:
        page = await events.page(session, token, payloads=True)
        found += page.events
        token = page.next_token
        if token is None:
            break
    assert texts(found) == [str(number) for number in reversed(range(230))]
    assert service.operations() == ["ListEvents"] * 3


async def test_a_deleted_event_is_gone_and_deleting_it_again_is_no_error(events: AgentCoreEvents, session: str) -> None:
    first, second = await events.create(session, new("one")), await events.create(session, new("two"))
    for _ in range(2):
        await events.delete(session, first)
    assert [event.event_id for event in (await events.page(session, None, payloads=False)).events] == [second]


async def test_what_was_never_written_to_is_empty(service: MemoryServer, events: AgentCoreEvents) -> None:
    assert (await events.page("nobody", None, payloads=True)).events == []
    nobody = AgentCoreEvents(MEMORY, "nobody", writer="w", aws=AwsSettings(endpoint_url=service.url))
    assert list(await nobody.sessions()) == []
    await nobody.aclose()


async def test_sessions_are_listed_page_by_page(service: MemoryServer) -> None:
    actor = f"actor-{next(_names)}"
    events = AgentCoreEvents(MEMORY, actor, writer="w", aws=AwsSettings(endpoint_url=service.url))
    wanted = [f"s{number:03}" for number in range(105)]
    for name in wanted:
        service.memory.sessions[actor, name] = {}
    assert list(await events.sessions()) == wanted
    assert service.operations() == ["ListSessions"] * 2
    await events.aclose()


@pytest.mark.parametrize("says_duplicates", [True, False])
async def test_a_request_is_made_again_until_it_is_answered_and_done_once(
    events: AgentCoreEvents, service: MemoryServer, session: str, says_duplicates: bool
) -> None:
    service.memory.says_duplicates = says_duplicates
    conflict = Say("RetryableConflictException")
    service.next_plans("CreateEvent", THROTTLED, BROKEN, Drop(), conflict, Say("Whatever", status=503), Drop(done=True))
    event_id = await events.create(session, new("once"))
    assert service.operations() == ["CreateEvent"] * 7
    (found,) = service.memory.events(session)
    assert event_id == (found.fields["eventId"] if says_duplicates else "")
    service.memory.says_duplicates = True


@pytest.mark.parametrize(
    ("plan", "error", "match"),
    [
        (THROTTLED, Throttled, "fewer requests: Rate exceeded"),
        (BROKEN, Unavailable, "not available: Something went wrong"),
        (Drop(), Unavailable, "cannot be reached"),
        (Hang(), Unavailable, "no answer in time"),
    ],
)
async def test_what_does_not_help_within_the_bound_is_said(
    service: MemoryServer, session: str, plan: Plan, error: type[RepertoryError], match: str
) -> None:
    events = open_events(service, SHORT)
    await events.page(session, None, payloads=False)
    service.plan = lambda operation, params: plan
    with anyio.fail_after(WAIT_S), pytest.raises(error, match=match):
        await events.create(session, new("never"))
    service.end_hanging()
    await events.aclose()


@pytest.mark.parametrize(
    ("code", "error", "match"),
    [
        ("AccessDeniedException", Failed, "allow bedrock-agentcore:CreateEvent"),
        ("ValidationException", Unwritable, "refused the request: injected"),
        ("InvalidInputException", Failed, "refused the request"),
        ("ServiceQuotaExceededException", LimitReached, "which AWS can raise"),
        ("UnrecognizedClientException", Failed, "check AWS_ACCESS_KEY_ID"),
    ],
)
async def test_what_asking_again_cannot_help_is_said_at_once(
    events: AgentCoreEvents, service: MemoryServer, session: str, code: str, error: type[RepertoryError], match: str
) -> None:
    service.plan = lambda operation, params: Say(code, status=400)
    with pytest.raises(error, match=match) as caught:
        await events.create(session, new("never"))
    assert caught.value.fields["memory_id"] == MEMORY
    assert service.operations() == ["CreateEvent"]


async def test_a_memory_that_is_not_there_is_named_with_what_to_do(service: MemoryServer, session: str) -> None:
    events = open_events(service, memory="other-0123456789")
    for call in (events.create(session, new("x")), events.page(session, None, payloads=True), events.sessions()):
        with pytest.raises(NotFound, match="check memory_id and region_name") as caught:
            await call
        assert caught.value.fields["memory_id"] == "other-0123456789"
    await events.aclose()


async def test_without_credentials_or_a_region_the_error_says_what_to_set(
    service: MemoryServer, session: str, aws_keys: pytest.MonkeyPatch
) -> None:
    aws_keys.delenv("AWS_REGION")
    events = open_events(service)
    with pytest.raises(Invalid, match="AWS_REGION"):
        await events.page(session, None, payloads=True)
    aws_keys.setenv("AWS_REGION", "us-east-1")
    aws_keys.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(Invalid, match="AWS_ACCESS_KEY_ID"):
        await open_events(service).page(session, None, payloads=True)
    await events.aclose()


async def test_cancelling_ends_a_request_that_hangs(
    events: AgentCoreEvents, service: MemoryServer, session: str
) -> None:
    await events.page(session, None, payloads=False)
    service.plan = lambda operation, params: Hang()
    service.operations()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(events.create, session, new("never"))
        await anyio.to_thread.run_sync(service.hung.wait)
        tasks.cancel_scope.cancel()
    service.end_hanging()


async def test_after_closing_every_call_is_refused(events: AgentCoreEvents, session: str) -> None:
    await events.aclose()
    with pytest.raises(Invalid, match="closed before"):
        await events.page(session, None, payloads=True)
