"""Peers that know each other, one of which speaks wrongly: an older release, a fault, a database that it lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest

from repertory import AgentSpec, Peers, Runtime, ScriptedModel, error_to_json
from repertory.app.embedding.hosted import HostedSession
from repertory.backends.peer_ports import Handler, JsonLine, PeerRefused
from repertory.errors import Failed, Invalid, Retryable, StoreUnavailable
from tests.app.orchestration.session_shelf import Shelf
from tests.cluster.loopback_wire import LoopbackNetwork, LoopbackWire

pytestmark = pytest.mark.anyio
PATIENCE_S = 5.0
NO_ANSWERS: list[list[Any]] = [
    *([{"result": given}] for given in ({}, None, 5, [1], {"type": "multiagent_result"}, {"type": "agent_result"})),
    *([{"event": given}] for given in (None, 5, {"result": {}})),
    *([{"error": given}] for given in (None, {}, {"group": 5, "type": "Throttled", "text": 5})),
]
NO_VALUES: list[Any] = [None, 5, {"all": 5}, {"all": [5]}, {"all": {"why": "x", "interrupts": 5}}]
LATER: list[Any] = [
    {"full": -(10**400)},
    {"full": "x"},
    {"moved": 5},
    {"unavailable": error_to_json(StoreUnavailable("full"))},
]
DEEP: Any = {}
for _ in range(500):
    DEEP = {"a": DEEP}


class WrongWire(LoopbackWire):
    """Answers with the same lines whatever it is asked, as soon as it has some, and counts its calls."""

    lines: list[JsonLine] | None = None
    pause_s = 0.0
    calls = 0
    handle: Handler

    async def serve(self, handle: Handler, listening: Callable[[str], Awaitable[None]]) -> None:
        self.handle = handle
        await super().serve(self._handle, listening)

    def _handle(self, path: str, body: JsonLine) -> AbstractAsyncContextManager[AsyncIterator[JsonLine]]:
        return self._wrong() if self.lines is not None else self.handle(path, body)  # type: ignore[return-value]

    @asynccontextmanager
    async def _wrong(self) -> AsyncGenerator[AsyncIterator[JsonLine]]:
        async def answer() -> AsyncGenerator[JsonLine]:
            self.calls += 1
            for line in self.lines or ():
                yield line
                await anyio.sleep(self.pause_s)

        async with aclosing(answer()) as lines:
            yield lines


@asynccontextmanager
async def wrong_peer() -> AsyncGenerator[tuple[WrongWire, HostedSession]]:
    """The wire of a peer that has a session, and the session at a gateway."""
    shelf, network = Shelf(), LoopbackNetwork()
    wire = WrongWire(network, "wrong")
    spec = AgentSpec(name="support", model=ScriptedModel(["hi"], loop=True))
    gate = Peers(wire=network.wire("gate"), room=0, patience_s=PATIENCE_S)
    async with Runtime(sessions=shelf, peers=Peers(wire=wire)) as one, Runtime(sessions=shelf, peers=gate) as gateway:
        one.agent(spec)
        await anyio.sleep(3)
        session = gateway.agent(spec).session("s")
        assert str(await session.invoke("hello")) == "hi"
        yield wire, session


async def test_what_is_no_answer_of_a_peer_is_a_typed_error_that_blames_no_argument() -> None:
    async with wrong_peer() as (wire, session):
        for wire.lines in NO_ANSWERS:
            with pytest.raises(Failed, match="all have one release"):
                await session.invoke("again")
            with pytest.raises(Failed, match="all have one release"):
                _ = [event async for event in session.stream("again")]
        for value in NO_VALUES:
            wire.lines = [{"value": value}]
            for ask in (session.interrupts, session.timers, session.deferred, session.messages):
                with pytest.raises(Failed, match="all have one release"):
                    await ask()


async def test_a_peer_that_takes_a_call_and_gives_it_back_keeps_no_call_from_its_end() -> None:
    async with wrong_peer() as (wire, session):
        for wire.pause_s in (0.0, 0.05):
            for line in LATER:
                wire.lines, wire.calls, began = [{"run": "r"}, line], 0, anyio.current_time()
                with pytest.raises(Retryable):
                    await session.invoke("again")
                assert anyio.current_time() - began < 3 * PATIENCE_S
                assert wire.calls < 100


async def test_a_peer_that_is_asked_wrongly_says_what_is_wrong_and_ends_nothing() -> None:
    call: JsonLine = {"agent": "support", "session": "s", "token": "t", "call": {"prompt": "hi"}}
    ask: JsonLine = {"agent": "support", "session": "s", "call": {"question": "messages"}}
    wrong: list[tuple[str, JsonLine]] = [
        ("call", {**call, "call": {"prompt": DEEP}}),
        ("call", {**call, "call": {"invocation_state": DEEP}}),
        ("call", {**call, "call": "hi"}),
        ("call", {**call, "token": "a/b"}),
        ("call", {**call, "offset": "9.x", "events": True}),
        ("cancel", {**call, "token": 5}),
        ("ask", {**ask, "call": {"question": 5}}),
        ("ask", {**ask, "session": "a\0b"}),
        ("ask", {**ask, "session": ""}),
        ("ask", {**ask, "call": {"question": {"what": "change timers", "due": 5}}}),
        ("ask", {**ask, "call": {"question": {"what": "complete tool", "result": DEEP}}}),
    ]
    async with wrong_peer() as (wire, session):
        for path, body in wrong:
            with pytest.raises(PeerRefused) as found:
                async with wire.handle(path, body):
                    pass
            assert found.value.status == 400, body
        async with wire.handle("call", {**call, "offset": "9", "events": False}) as lines:
            assert any("result" in line for some in [each async for each in lines] for line in some.lines)  # type: ignore[union-attr]
        assert str(await session.invoke("still there?")) == "hi"


async def test_a_value_that_is_nested_too_deeply_for_other_processes_is_invalid() -> None:
    deep = dict[str, Any]()
    for _ in range(5000):
        deep = {"a": deep}
    async with wrong_peer() as (_, session):
        for call in (
            lambda: session.invoke("x", invocation_state=deep),
            lambda: session.post("x", invocation_state=deep),
        ):
            with pytest.raises(Invalid, match="what JSON cannot hold"):
                await call()
