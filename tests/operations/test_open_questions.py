"""The open questions of many sessions: listed on every kind of place, page by page, and answered from the list."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, AgentSpec, Graph, Runtime, ScriptedModel, Sessions, ToolContext, tool
from repertory.app.sessions.sessions import SessionLocation
from repertory.core.tenants import stored_id
from repertory.errors import Invalid
from repertory.operations import questions
from repertory.operations.questions import OpenQuestion
from tests.operations.operated_places import LOCAL, fill, place_of, talk

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture(params=LOCAL)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SessionLocation:
    return place_of(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> SessionLocation:
    return place_of("journal in memory", tmp_path)


@tool
def pay(amount: int, tool_context: ToolContext) -> str:
    """Pay an amount."""
    return f"paid: {tool_context.interrupt('approve', {'amount': amount}, may_answer=['finance'], expires_s=3600)}"


def replies(times: int = 1) -> ScriptedModel:
    return ScriptedModel([*[{"toolUse": {"name": "pay", "input": {"amount": 5}}}] * times, "Done."], loop=True)


@asynccontextmanager
async def asking(place: SessionLocation, *session_ids: str, name: str = "clerk") -> AsyncGenerator[Runtime]:
    """A runtime whose sessions wait for an answer, each asked after the one before."""
    async with Runtime(sessions=place) as runtime:
        agent = runtime.agent(AgentSpec(name=name, model=replies(len(session_ids)), tools=[pay]))
        for session_id in session_ids:
            await agent.session(session_id).invoke("Pay.")
        yield runtime


async def every(sessions: Sessions, **wanted: Any) -> tuple[list[OpenQuestion], int]:
    """All questions, and the number of pages."""
    found, after, pages = list[OpenQuestion](), "", 0
    while True:
        page = await sessions.interrupts(after=after, **wanted)
        found, pages = [*found, *page.questions], pages + 1
        if page.next is None:
            return found, pages
        after = page.next


def names(found: Sequence[OpenQuestion]) -> list[str]:
    return [one.session_id for one in found]


async def test_questions_of_all_sessions_are_listed_with_what_a_person_needs(place: SessionLocation) -> None:
    began = time.time()
    await fill(place, "quiet", talk("hello", "good day").rows)
    async with asking(place, "ann", "bob"):
        pass
    page = await Sessions(place).interrupts()
    assert (page.next, dict(page.unreadable)) == (None, {})
    assert [(one.session_id, one.agent_id) for one in page.questions] == [("ann", "clerk"), ("bob", "clerk")]
    asked = page.questions[0]
    assert began - 1 < asked.asked_at < time.time() + 1
    interrupt = asked.interrupt
    assert (interrupt.name, interrupt.reason, interrupt.tool) == ("approve", {"amount": 5}, "pay")
    assert (interrupt.input, interrupt.session_id) == ({"amount": 5}, "ann")
    newest = await Sessions(place).interrupts(newest_first=True)
    assert names(newest.questions) == ["bob", "ann"]


async def test_an_answered_question_is_no_longer_listed(place: SessionLocation) -> None:
    async with asking(place, "ann", "bob") as runtime:
        asked = (await Sessions(place).interrupts()).questions[0]
        await runtime.agents["clerk"].session(asked.session_id).invoke([asked.interrupt.respond("yes")])
        assert names((await Sessions(place).interrupts()).questions) == ["bob"]


async def test_pages_show_each_question_once_in_either_order(memory: SessionLocation) -> None:
    ids = [f"s{number}" for number in (3, 1, 4, 0, 2)]
    async with asking(memory, *ids):
        pass
    async with Sessions(memory) as sessions:
        found, pages = await every(sessions, limit=2)
        assert (names(found), pages) == (ids, 3)
        found, pages = await every(sessions, limit=2, newest_first=True)
        assert (names(found), pages) == (ids[::-1], 3)


async def test_a_page_reads_few_sessions_and_the_next_goes_on_behind_them(
    memory: SessionLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(7):
        await fill(memory, f"a{number}", talk("hello", "good day").rows)
    async with asking(memory, "b1", "b2", "b3"):
        pass
    monkeypatch.setattr(questions, "_RANGE_SESSIONS", 4)
    monkeypatch.setattr(questions, "_ENDS_READ_MAX", 3)
    async with Sessions(memory) as sessions:
        first = await sessions.interrupts()
        assert (list(first.questions), first.next is None) == ([], False)
        found, pages = await every(sessions)
        assert (names(found), pages) == (["b1", "b2", "b3"], 5)


async def test_questions_are_chosen_by_tenant_agent_and_age(memory: SessionLocation) -> None:
    async with asking(memory, stored_id("acme", "s"), stored_id("globex", "s"), "own"):
        pass
    async with asking(memory, "other", name="teller"):
        pass
    async with Sessions(memory) as sessions:
        assert len((await every(sessions))[0]) == 4
        assert names((await every(sessions, tenant="acme"))[0]) == ["acme~s"]
        assert names((await every(sessions, tenant=""))[0]) == ["own", "other"]
        assert names((await every(sessions, tenant="initech"))[0]) == []
        assert names((await every(sessions, agent="teller"))[0]) == ["other"]
        assert (await every(sessions, older_than=3600))[0] == []
        assert len((await every(sessions, newer_than=3600))[0]) == 4
    later = Sessions(memory, wall=lambda: time.time() + 7200)
    assert len((await every(later, older_than=3600))[0]) == 4
    assert (await every(later, newer_than=3600))[0] == []


async def test_a_cursor_of_no_tenant_names_no_tenant(memory: SessionLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(memory, "a", stored_id("acme", "s"), "b", "c"):
        pass
    monkeypatch.setattr(questions, "_RANGE_SESSIONS", 2)
    async with Sessions(memory) as sessions:
        after, found = "", list[str]()
        for _ in range(3):
            page = await sessions.interrupts(tenant="", after=after)
            found += names(page.questions)
            if page.next is None:
                break
            after = page.next
            assert "acme" not in str(questions.QuestionCursor.read(after))
        assert found == ["a", "b", "c"]


async def test_the_question_of_a_node_is_listed_once_for_its_graph(memory: SessionLocation) -> None:
    async with Runtime(sessions=memory) as runtime:
        graph = runtime.orchestrator("office", lambda _: Graph({"clerk": Agent(replies(), tools=[pay])}, id="office"))
        await graph.session("s").invoke("Pay.")
        (asked,) = (await Sessions(memory).interrupts()).questions
        assert asked.agent == "office"
        assert (asked.agent_id, asked.interrupt.name, asked.interrupt.tool) == ("multi_agent.office", "approve", "pay")
        assert asked.asked_at > time.time() - 60
        result = await graph.session("s").invoke([asked.interrupt.respond("yes")])
        assert result.status.value == "completed"


@pytest.mark.parametrize(
    "wanted",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": "5"},
        {"after": "x"},
        {"after": "WzEsMl0="},
        {"after": 3},
        {"older_than": -1},
        {"older_than": "1h"},
        {"newer_than": -0.5},
        {"newer_than": True},
        {"agent": 3},
        {"tenant": 3},
    ],
    ids=str,
)
async def test_a_wrong_page_is_refused(memory: SessionLocation, wanted: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        await Sessions(memory).interrupts(**wanted)
