"""The page of open questions to people, and the answers that its forms give."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileStorage,
    Graph,
    HumanInTheLoop,
    Inspector,
    JournalSessions,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.app.sessions.sessions import SessionLocation
from repertory.errors import Invalid
from repertory.service.decisions.answers import ANSWER_CHARS_MAX, answer_of_form
from tests.inspector.inspected import HOSTILE_ID, Answer, Visitor, fill_states, pay, using

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')


@pytest.fixture
def place(tmp_path: Path) -> SQLiteSessions:
    return SQLiteSessions(tmp_path / "a.db")


@tool
def book(flight: str, tool_context: ToolContext) -> str:
    """Book a flight."""
    seat = tool_context.interrupt("seat", f"Which seat on {flight}?", may_answer=["travel", "ann"], expires_s=3600)
    return f"seat {seat!r}"


@asynccontextmanager
async def office(place: SessionLocation, *, asks: bool = True) -> AsyncGenerator[Runtime]:
    """A runtime in which `approval` waits for a yes, and `seat` for a text of the travel office."""
    async with Runtime(sessions=place) as runtime:
        clerk = ScriptedModel([*[using("pay", to="Ann", amount=5)] * asks, "Paid."], loop=True)
        spec = AgentSpec(name="clerk", model=clerk, tools=[pay], interventions=[HumanInTheLoop()])
        agent = runtime.agent(
            AgentSpec(
                name="agent", model=ScriptedModel([*[using("book", flight="LH")] * asks, "Booked."]), tools=[book]
            )
        )
        if asks:
            await runtime.agent(spec).session("approval").invoke("Pay Ann.")
            await agent.session("seat").invoke("Book it.")
        else:
            runtime.agent(spec)
        yield runtime


def forms_of(text: str, session_id: str) -> list[dict[str, str]]:
    """The hidden fields of each form that answers in this session."""
    action = f'action="/sessions/{quote(session_id, safe="")}/answer"'
    forms = [part.partition("</form>")[0] for part in text.split("<form ")[1:]]
    return [{name: unescape(value) for name, value in FIELD.findall(form)} for form in forms if action in form]


async def sent(visitor: Visitor, session_id: str, answer: Mapping[str, str]) -> Answer:
    """The page's answer to the first form of this session, filled in so."""
    form = forms_of((await visitor.get("/questions")).text, session_id)[0]
    return await visitor.post(f"/sessions/{session_id}/answer", {**form, **answer})


async def answered(runtime: Runtime, agent: str, session_id: str) -> str:
    """The result of the tool that asked, once the turn has gone on."""
    session = runtime.agents[agent].session(session_id)
    while await session.pending() is not None:  # noqa: ASYNC110
        await anyio.sleep(0.01)
    results = [
        block["toolResult"]
        for message in await session.history()
        for block in message["content"]
        if "toolResult" in block
    ]
    return str(results[-1]["content"][0]["text"])


async def test_the_page_lists_each_question_with_a_form_that_suits_it(place: SQLiteSessions) -> None:
    async with office(place):
        pass
    text = (await Visitor(Inspector(place, allow_changes=True, answers_as=["ann"])).get("/questions")).text
    assert text.count('<article class="question"') == 2
    for wanted in (
        "Approve &quot;pay&quot;?",
        "Which seat on LH?",
        "for travel, ann",
        'href="/sessions/seat?agent=agent"',
    ):
        assert wanted in text, wanted
    approval, seat = text.index("Approve &quot;pay"), text.index("Which seat")
    assert '<details class="more">' in text[approval:seat]
    assert '<details class="more" open>' in text[seat:]
    assert len(forms_of(text, "approval")) == len(forms_of(text, "seat")) == 2
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for named in re.findall(r' (?:for|aria-labelledby)="([^"]+)"', text):
        assert named in ids
    one = (await Visitor(Inspector(place)).get("/questions?session=seat")).text
    assert one.count('<article class="question"') == 1


async def test_an_answer_goes_on_with_the_turn_of_a_live_agent(place: SQLiteSessions) -> None:
    async with office(place) as runtime:
        visitor = Visitor(Inspector(runtime, allow_changes=True, answers_as=["travel"]))
        done = await sent(visitor, "approval", {"choice": "yes"})
        assert (done.status, done.headers["location"]) == (303, "/questions?answered=approval")
        assert await answered(runtime, "clerk", "approval") == "paid 5 to Ann"
        page = (await visitor.get(done.headers["location"])).text
        assert 'role="status"' in page
        assert forms_of(page, "approval") == []
        assert (await sent(visitor, "seat", {"choice": "json", "text": '{"row": 12}'})).status == 303
        assert await answered(runtime, "agent", "seat") == "seat {'row': 12}"


async def test_an_answer_over_stored_sessions_waits_for_a_process_with_the_agent(place: SQLiteSessions) -> None:
    async with office(place):
        pass
    app = Inspector(place, allow_changes=True)
    visitor = Visitor(app)
    old = forms_of((await visitor.get("/questions")).text, "approval")[0]
    assert (await visitor.post("/sessions/approval/answer", {**old, "choice": "no"})).status == 303
    text = (await visitor.get("/questions")).text
    assert "It has an answer, which waits for a process with the agent clerk." in text
    assert forms_of(text, "approval") == []
    # The same form again is the same answer; another answer is refused.
    assert (await visitor.post("/sessions/approval/answer", {**old, "choice": "no"})).status == 303
    other = await visitor.post("/sessions/approval/answer", {**old, "choice": "yes"})
    assert other.status == 409
    assert "Somebody has given another answer" in other.text
    async with office(place, asks=False) as runtime:
        assert (await answered(runtime, "clerk", "approval")).startswith("CONFIRMATION_FAILED")
        late = await visitor.post("/sessions/approval/answer", {**old, "choice": "no"})
        assert late.status == 409
        assert "has its answer, or is asked no longer" in late.text
    await app.aclose()


async def test_many_people_who_answer_at_once_give_one_answer(place: SQLiteSessions) -> None:
    async with office(place):
        pass
    app = Inspector(place, allow_changes=True)
    visitor = Visitor(app)
    form = forms_of((await visitor.get("/questions")).text, "approval")[0]
    statuses: list[int] = []

    async def answer(text: str) -> None:
        done = await visitor.post("/sessions/approval/answer", {**form, "choice": "text", "text": text})
        statuses.append(done.status)

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(answer, str(number))
    assert sorted(statuses) == [303, *[409] * 7]
    assert len((await Sessions(place).cluster()).calls) == 1
    await app.aclose()


async def test_only_the_people_whom_a_question_names_answer_it(place: SQLiteSessions) -> None:
    async with office(place):
        pass
    app = Inspector(place, allow_changes=True)
    visitor = Visitor(app)
    text = (await visitor.get("/questions")).text
    assert "It is for travel, ann. These pages answer for nobody by name." in text
    assert forms_of(text, "seat") == []
    interrupt = (await Sessions(place).interrupts_in("seat"))[0].interrupt.id
    token = forms_of(text, "approval")[0]["form_token"]
    refused = await visitor.post(
        "/sessions/seat/answer", {"form_token": token, "interrupt": interrupt, "choice": "yes"}
    )
    assert refused.status == 403
    asked = {"who": "bob"}
    of_user = Inspector(
        place, allow_changes=True, answers_as=lambda scope: [asked["who"]] if scope["type"] == "http" else []
    )
    assert forms_of((await Visitor(of_user).get("/questions")).text, "seat") == []
    asked["who"] = "ann"
    assert (await sent(Visitor(of_user), "seat", {"choice": "text", "text": "12A"})).status == 303
    with pytest.raises(Invalid):
        Inspector(place, answers_as="ann")
    await app.aclose()
    await of_user.aclose()


async def test_nothing_is_answered_without_the_right_the_token_and_the_words(place: SQLiteSessions) -> None:
    async with office(place):
        pass
    allowed = Inspector(place, allow_changes=True)
    visitor = Visitor(allowed)
    form = {**forms_of((await visitor.get("/questions")).text, "approval")[0], "choice": "yes"}
    at = "/sessions/approval/answer"
    for refused in (
        await visitor.post(at, {**form, "form_token": ""}),
        await visitor.post(at, form, origin="http://evil.example"),
        await visitor.post(at, form, sec_fetch_site="cross-site"),
        await Visitor(allowed).post(at, form),
        await Visitor(Inspector(place)).post(at, form),
    ):
        assert refused.status == 403
    blind = Visitor(Inspector(place, allow_changes=True, content=False))
    hidden = (await blind.get("/questions")).text
    assert "Approve" not in hidden
    assert forms_of(hidden, "approval") == []
    token = re.search(r'name="form_token" value="(\w+)"', (await blind.get("/sessions/approval")).text)
    assert token is not None
    assert (await blind.post(at, {**form, "form_token": token[1]})).status == 403
    for wrong in (
        {"choice": ""},
        {"choice": "maybe"},
        {"choice": "text", "text": "  "},
        {"choice": "json", "text": "{"},
    ):
        assert (await visitor.post(at, {**form, **wrong})).status == 422
    assert (await visitor.post(at, {**form, "interrupt": "none"})).status == 409
    assert (await visitor.post("/sessions/nobody/answer", form)).status in (404, 409)
    assert (await Sessions(place).cluster()).calls == []
    await allowed.aclose()


async def test_a_journal_in_a_folder_is_answered_by_its_live_agent_alone(tmp_path: Path) -> None:
    place = JournalSessions(FileStorage(tmp_path / "objects"))
    async with office(place) as runtime:
        beside = Visitor(Inspector(place, allow_changes=True))
        refused = await sent(beside, "approval", {"choice": "yes"})
        assert refused.status == 422
        assert (
            await sent(Visitor(Inspector(runtime, allow_changes=True)), "approval", {"choice": "yes"})
        ).status == 303
        assert await answered(runtime, "clerk", "approval") == "paid 5 to Ann"


async def test_the_question_of_a_node_is_answered_for_its_graph(place: SQLiteSessions) -> None:
    async with Runtime(sessions=place) as runtime:

        def made(_: str) -> Graph:
            node = Agent(
                ScriptedModel([using("pay", to="Ann", amount=5), "Paid."]),
                tools=[pay],
                interventions=[HumanInTheLoop()],
            )
            return Graph({"clerk": node}, id="office")

        graph = runtime.orchestrator("office", made)
        await graph.session("run").invoke("Pay Ann.")
        assert (await sent(Visitor(Inspector(runtime, allow_changes=True)), "run", {"choice": "yes"})).status == 303
        while await graph.session("run").interrupts():  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def test_hostile_questions_stay_text_and_are_answered(place: SQLiteSessions) -> None:
    await fill_states(place)
    async with Runtime(sessions=place) as runtime:
        spec = AgentSpec(
            name="clerk",
            model=ScriptedModel([using("pay", to="<img src=x>", amount=1)]),
            tools=[pay],
            interventions=[HumanInTheLoop()],
        )
        await runtime.agent(spec).session(HOSTILE_ID).invoke("Pay.")
    app = Inspector(place, allow_changes=True)
    visitor = Visitor(app)
    text = (await visitor.get("/questions")).text
    for tag in ("<script>alert", "<img", "<b onclick", "\x1b", "\u202e"):
        assert tag not in text, tag
    for session_id in ("hostile-question", HOSTILE_ID):
        form = forms_of(text, session_id)[0]
        done = await visitor.post(f"/sessions/{quote(session_id, safe='')}/answer", {**form, "choice": "yes"})
        assert done.status == 303
        assert "<img" not in (await visitor.get(done.headers["location"])).text
    assert (await visitor.get(f"/questions?after={quote('<img>')}")).status == 422
    await app.aclose()


def test_forms_are_read_as_answers_and_what_is_none_is_refused() -> None:
    assert [answer_of_form(choice, "x") for choice in ("yes", "no", "retry", "fail")] == ["yes", "no", "retry", "fail"]
    assert answer_of_form("text", "a\r\nb") == "a\nb"
    assert answer_of_form("result", "42") == {"result": "42"}
    assert answer_of_form("json", "[1, null]") == [1, None]
    for choice, text in (
        ("json", "NaN"),
        ("json", "[" * 100_000),
        ("text", "x" * (ANSWER_CHARS_MAX + 1)),
        ("result", "\n"),
    ):
        with pytest.raises(Invalid):
            answer_of_form(choice, text)
