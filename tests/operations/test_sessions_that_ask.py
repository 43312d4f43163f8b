"""The pages of sessions that may ask a person: none that asks is missing, whatever was done to it before."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentSpec,
    BeforeNodeCallEvent,
    Graph,
    HostedAgent,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.app.sessions.reading import opened
from repertory.app.sessions.sessions import SessionLocation
from repertory.backends.ports import IdPage
from repertory.backends.sessions.sqlite import reading
from repertory.core.tenants import stored_id
from tests.operations.operated_places import place_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SessionLocation:
    return place_of(request.param, tmp_path)


@tool
def pay(tool_context: ToolContext) -> str:
    """Pay."""
    return f"paid: {tool_context.interrupt('approve')}"


@tool(effects=False)
def look() -> str:
    """Look."""
    return "seen"


def reply(messages: Sequence[Any], tools: object, prompt: str | None) -> Any:
    """Ask for the tools where the user says so, and else answer."""
    said = str(messages[-1]["content"])
    return [{"toolUse": {"name": "look"}}, {"toolUse": {"name": "pay"}}] if "'Pay.'" in said else "Fine."


def model() -> ScriptedModel:
    return ScriptedModel([reply], loop=True)


@asynccontextmanager
async def office(place: SessionLocation) -> AsyncGenerator[HostedAgent]:
    async with Runtime(sessions=place) as runtime:
        yield runtime.agent(AgentSpec(name="clerk", model=model(), tools=[pay, look]))


async def candidates(place: SessionLocation, limit: int = 1000, prefix: str = "") -> list[str]:
    """The sessions of all pages, in order."""
    found: list[str] = []
    async with opened(place) as store:
        while True:
            page = IdPage(prefix, found[-1] if found else "", limit, asking=True)
            lines = [info.session_id for info in await store.sessions(page=page)]
            found += lines
            if len(lines) < limit:
                return found


async def asking(place: SessionLocation) -> set[str]:
    """The sessions that ask, as their journals say, every one of which is read."""
    async with Sessions(place) as sessions:
        ids = [info.session_id for info in await sessions.list()]
        return {each for each in ids if await sessions.interrupts_in(each)}


async def asks(agent: HostedAgent, session_id: str) -> None:
    """A turn that waits for a person."""
    result = await agent.session(session_id).invoke("Pay.", drop_interrupts=True)
    assert result.stop_reason == "interrupt"


async def test_sessions_whose_last_word_is_a_message_are_left_out(place: SessionLocation) -> None:
    async with office(place) as agent:
        for number in range(6):
            await asks(agent, f"s{number}")
        one, two = agent.session("s1"), agent.session("s2")
        answers = [each.respond("yes") for each in await one.interrupts()]
        await one.invoke(answers)
        await two.invoke("Never mind.", drop_interrupts=True)
    await Sessions(place).mark("s3", "here")
    ours = await candidates(place)
    assert ours == ["s0", "s3", "s4", "s5"]
    assert await candidates(place, limit=1) == ours
    assert await candidates(place, limit=2, prefix="s4") == ["s4"]


async def test_none_that_asks_is_missing_after_any_history(place: SessionLocation, rng: Random) -> None:
    names = [f"s{number}" for number in range(12)] + [stored_id("acme", f"s{number}") for number in range(3)]
    async with Sessions(place) as sessions:
        for _ in range(3):
            async with office(place) as agent:
                for name in rng.sample(names, 8):
                    session = agent.session(name)

                    async def answered(name: str = name) -> None:
                        one = agent.session(name)
                        await one.invoke([each.respond("yes") for each in await one.interrupts()])

                    acts: list[Callable[[], Awaitable[object]]] = [
                        lambda name=name: asks(agent, name),
                        answered,
                        lambda session=session: session.invoke("Never mind.", drop_interrupts=True),
                        lambda session=session: session.invoke("Hello."),
                    ]
                    for act in rng.choices(acts, (4, 2, 1, 1), k=2):
                        with contextlib.suppress(Exception):
                            await act()
            for name in rng.sample(names, 6):
                # Nobody holds them any more, and a session that never began has nothing to go back to.
                with contextlib.suppress(Exception):
                    match rng.randrange(4):
                        case 0:
                            await sessions.fork(name, f"{name}-fork{rng.randrange(1000)}")
                        case 1:
                            await sessions.rewind(name, rng.randrange(1, 8))
                        case 2:
                            await sessions.mark(name, "there")
                        case _:
                            await sessions.delete(name)
            found = await candidates(place)
            assert found == sorted(found)
            assert await asking(place) <= {*found}
    assert await asking(place)


async def test_a_question_before_a_node_is_found(place: SessionLocation) -> None:
    def made(_: str) -> Graph:
        graph = Graph({"a": Agent(ScriptedModel(["Fine."], loop=True), callback_handler=None)}, id="office")
        graph.hooks.add_callback(BeforeNodeCallEvent, lambda event: event.interrupt("go on"))
        return graph

    async with office(place) as agent:
        await agent.session("plain").invoke("Hello.", drop_interrupts=True)
    async with Runtime(sessions=place) as runtime:
        await runtime.orchestrator("office", made).session("run").invoke("Go.")
    assert "run" in await candidates(place)
    assert "run" in await asking(place)


def test_a_bare_agent_that_asks_is_found_before_and_after_the_ends_are_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anyio

    place = SQLiteSessions(tmp_path / "a.db")
    for settle_after in (1, 10_000):
        monkeypatch.setattr(reading, "SETTLE_AFTER", settle_after)
        for number in range(4):
            manager = SQLiteSessionManager(f"{settle_after}-{number}", path=place.path)
            agent = Agent(model(), tools=[pay, look], session_manager=manager, callback_handler=None)
            waiting = agent("Pay.")
            if number % 2:
                agent([each.respond("yes") for each in waiting.interrupts])
    assert anyio.run(candidates, place) == sorted(f"{after}-{number}" for after in (1, 10_000) for number in (0, 2))
