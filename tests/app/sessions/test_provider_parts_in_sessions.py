"""Answers with parts that only their provider can read, and with pictures: wherever a session is kept and passed on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentResult,
    AgentSpec,
    BeforeModelCallEvent,
    FileSessionManager,
    FileSessions,
    InMemoryStorage,
    JournalSessions,
    RepositorySessionManager,
    Runtime,
    ScriptedModel,
    Sessions,
    SlidingWindowConversationManager,
    SQLiteSessions,
    ToolContext,
    event_from_json,
    event_to_json,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession
from repertory.evaluation.replaying import Variant, replay
from repertory.toolbox.delegation import Fixed, make_subagent
from tests.app.sessions.provider_parts import CONVERSATION, DRAWN, FOUND, PICTURE, SEARCHED, THOUGHT, WORDS, texts
from tests.compat.test_repository_sessions import CustomSessionRepository
from tests.service.asgi_client import ADA, serving

pytestmark = pytest.mark.anyio

SEARCH = [THOUGHT, SEARCHED, FOUND, {"text": "It rains."}]
IMAGE = {"image": {"format": "png", "source": {"bytes": PICTURE}}}
SOUND = {"audio": {"format": "wav", "source": {"bytes": b"RIFF"}}}
DRAWING = [{"text": "Here."}, IMAGE, SOUND, DRAWN]
FILM = {"video": {"format": "mp4", "source": {"bytes": b"\x00ftyp"}}}
PROMPTS = "What is the weather?", "Draw it."


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@pytest.fixture(params=["sqlite", "journals", "files"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match request.param:
        case "sqlite":
            return SQLiteSessions(tmp_path / "a.db")
        case "journals":
            return JournalSessions(InMemoryStorage())
        case _:
            return FileSessions(tmp_path / "sessions")


def of(place: Any, *replies: Any, name: str = "ada", **options: Any) -> Agent:
    manager = PlacedSession(name, place)
    return Agent(ScriptedModel(list(replies)), session_manager=manager, callback_handler=None, tools=[add], **options)


async def filled(place: Any) -> None:
    async with of(place, SEARCH, DRAWING) as agent:
        for prompt in PROMPTS:
            await agent.invoke_async(prompt)


def answers(messages: Any) -> list[Any]:
    return [message["content"] for message in messages if message["role"] == "assistant"]


async def stored(place: Any, name: str = "ada") -> list[Any]:
    (agent,) = (await Sessions(place).show(name)).agents.values()
    return answers([each.message for each in agent.messages])


@pytest.mark.real_time
async def test_a_session_goes_on_with_all_that_was_answered(place: Any) -> None:
    await filled(place)
    model = ScriptedModel([[FILM]])
    async with Agent(model, session_manager=PlacedSession("ada", place), callback_handler=None) as agent:
        assert answers(await agent.history()) == [SEARCH, DRAWING]
        assert str(await agent.invoke_async("And a film.")).strip() == ""
    assert answers(model.calls[0].messages) == [SEARCH, DRAWING]
    assert await stored(place) == [SEARCH, DRAWING, [FILM]]


@pytest.mark.real_time
async def test_copies_of_a_session_and_its_export_have_all_of_it(place: Any, tmp_path: Path) -> None:
    await filled(place)
    sessions = Sessions(place)
    other = SQLiteSessions(tmp_path / "other.db")
    await sessions.export("ada", tmp_path / "ada.jsonl")
    await Sessions(other).import_(tmp_path / "ada.jsonl")
    await sessions.copy("ada", other, new_id="copied")
    await sessions.copy("ada", FileSessions(tmp_path / "copied"))
    for where, name in ((other, "ada"), (other, "copied"), (FileSessions(tmp_path / "copied"), "ada")):
        assert await stored(where, name) == [SEARCH, DRAWING]
    await sessions.fork("ada", "forked")
    async with of(place, "ok", name="forked") as agent:
        assert answers(await agent.history())[:2] == [SEARCH, DRAWING]


@pytest.mark.real_time
async def test_a_text_is_found_by_the_words_for_a_part_and_taken_back_with_the_part(place: Any) -> None:
    await filled(place)
    sessions = Sessions(place)
    assert [hit.seq for hit in (await sessions.search("provider weather")).hits]
    assert not (await sessions.search("EqgfCioIARgB")).hits
    await sessions.redact_text("ada", "EqgfCioIARgB")
    assert await stored(place) == [[THOUGHT, {"text": "It rains."}], DRAWING]
    async with of(place, "ok") as agent:
        await agent.invoke_async("go on")
    assert await stored(place) == [[THOUGHT, {"text": "It rains."}], DRAWING, [{"text": "ok"}]]


async def test_an_agent_begins_with_such_messages_and_hooks_edit_copies_of_them() -> None:
    agent = Agent(ScriptedModel(["one", "two"]), messages=CONVERSATION, callback_handler=None, tools=[add])  # type: ignore[arg-type]
    seen: list[Any] = []

    def edit(event: BeforeModelCallEvent) -> None:
        seen.append(event.agent.messages[1]["content"])
        event.agent.messages[5] = {"role": "assistant", "content": [IMAGE, DRAWN, {"text": "edited"}]}

    agent.hooks.add_callback(BeforeModelCallEvent, edit)
    await agent.invoke_async("And now?")
    assert seen[0] == CONVERSATION[1]["content"]
    assert list(agent.messages)[:5] == CONVERSATION[:5]
    assert agent.messages[5]["content"] == [IMAGE, DRAWN, {"text": "edited"}]
    with_bytes = agent.take_snapshot(preset="session")
    again = Agent(ScriptedModel(["two"]), callback_handler=None, tools=[add])
    again.load_snapshot(json.loads(json.dumps(with_bytes)))
    assert again.messages == agent.messages
    again.load_snapshot(json.loads(json.dumps(with_bytes.to_dict())))
    assert again.messages == agent.messages


async def test_a_result_is_its_text_and_passes_through_json_whole() -> None:
    agent = Agent(ScriptedModel([[*SEARCH, *DRAWING]]), callback_handler=None)
    result = await agent.invoke_async("?")
    assert str(result) == "It rains.\nHere."
    assert AgentResult.from_dict(json.loads(json.dumps(result.to_dict()))).message == result.message
    event = json.loads(json.dumps(event_to_json({"message": result.message})))
    assert event_from_json(event) == {"message": result.message}
    whole = json.loads(json.dumps(event_to_json({"result": result})))
    assert event_from_json(whole)["result"].message == result.message  # type: ignore[attr-defined]


async def test_the_messages_of_a_session_are_json_over_http() -> None:
    runtime = Runtime(sessions=JournalSessions(InMemoryStorage()))
    runtime.agent(AgentSpec(name="helper", model=ScriptedModel([DRAWING])))
    async with serving(runtime) as client:
        assert (await client.say("Draw it.")).json()["text"].strip() == "Here."
        shown = (await client.get(f"{ADA}/messages")).json()["messages"][1]["message"]["content"]
    assert shown[1]["image"]["source"]["bytes"] == {"__bytes_encoded__": True, "data": "iVBORw0KAAI="}
    inner = shown[3]["providerContent"]["content"]["inlineThing"]
    assert inner["data"] == {"__bytes_encoded__": True, "data": "AAE="}


async def test_a_turn_with_such_answers_is_replayed() -> None:
    place = JournalSessions(InMemoryStorage())
    await filled(place)
    variant = Variant(name="new", model=ScriptedModel([DRAWING, SEARCH]))
    found = await replay(place, "ada", variant=variant, concurrency=1)
    assert [row.replayed.text for row in found.rows if row.replayed] == ["Here.", "It rains."]
    assert [row.recorded.text for row in found.rows if row.recorded] == ["It rains.", "Here."]
    assert len(variant.model.calls) == 2  # type: ignore[union-attr]
    assert answers(variant.model.calls[1].messages) == [SEARCH]  # type: ignore[union-attr]


async def test_another_agent_is_shown_words_in_the_place_of_a_part() -> None:
    use = {"toolUse": {"name": "subagent", "input": {"task": "do it"}}}
    model = ScriptedModel([[*SEARCH, IMAGE], use, "did it", "done"])
    agent = Agent(model, tools=[make_subagent(context=Fixed("all"))], callback_handler=None)
    await agent.invoke_async("hi")
    await agent.invoke_async("go")
    assert answers(model.calls[2].messages) == [[{"text": WORDS[0]}, {"text": "It rains."}, IMAGE]]


@pytest.mark.real_time
def test_a_repository_of_a_user_has_a_text_for_each_part_and_gives_them_back() -> None:
    repository = CustomSessionRepository()

    def ours(*replies: Any) -> Agent:
        manager = RepositorySessionManager("ada", repository)
        return Agent(ScriptedModel(list(replies)), session_manager=manager, callback_handler=None)

    ours(SEARCH, DRAWING)(PROMPTS[0])
    found = repository.list_messages("ada", "default")
    assert texts([found[1].message]) == [[*WORDS[:2], "It rains."]]
    assert answers(ours().messages) == [SEARCH]
    started = Agent(ScriptedModel([]), callback_handler=None)
    manager = RepositorySessionManager("ada", repository)
    manager.initialize(started)
    assert texts(started.messages)[1] == [*WORDS[:2], "It rains."], "who reads records by hand gets the texts"
    manager.append_message({"role": "assistant", "content": DRAWING}, started)
    assert texts([repository.list_messages("ada", "default")[-1].message]) == [["Here.", WORDS[-1]]]
    manager.redact_latest_message({"role": "assistant", "content": [SEARCHED]}, started)
    assert texts([repository.list_messages("ada", "default")[-1].redact_message]) == [[WORDS[0]]]


@pytest.mark.real_time
def test_a_turn_that_waits_for_a_person_has_a_text_for_each_part_in_the_agents_document(tmp_path: Path) -> None:
    @tool(context=True)
    def pay(tool_context: ToolContext) -> str:
        """Pay."""
        return f"paid: {tool_context.interrupt('pay', reason=1)}"

    def ours(*replies: Any) -> Agent:
        manager = FileSessionManager("ada", tmp_path)
        return Agent(ScriptedModel(list(replies)), session_manager=manager, callback_handler=None, tools=[pay])

    asks = [*SEARCH, {"toolUse": {"toolUseId": "t1", "name": "pay", "input": {}}}]
    asked = ours(asks)("Pay.").interrupts
    (path,) = tmp_path.rglob("agent.json")
    internal = json.loads(path.read_text())["_internal_state"]["interrupt_state"]
    held = internal["pending_tool_execution"]["assistant_message"]
    assert texts([held]) == [[*WORDS[:2], "It rains."]]
    again = ours("Paid.")
    result = again([{"interruptResponse": {"interruptId": asked[0].id, "response": "yes"}}])
    assert str(result) == "Paid."
    assert again.messages[1]["content"] == asks


@pytest.mark.real_time
async def test_old_answers_with_parts_leave_the_window_whole(place: Any) -> None:
    options: Callable[[], Any] = lambda: SlidingWindowConversationManager(window_size=2)  # noqa: E731
    async with of(place, SEARCH, DRAWING, "ok", conversation_manager=options()) as agent:
        for prompt in (*PROMPTS, "Thanks."):
            await agent.invoke_async(prompt)
    model = ScriptedModel(["bye"])
    manager = PlacedSession("ada", place)
    async with Agent(model, session_manager=manager, callback_handler=None, conversation_manager=options()) as agent:
        await agent.invoke_async("Bye.")
    assert answers(model.calls[0].messages) in ([], [[{"text": "ok"}]])
    assert await stored(place) == [SEARCH, DRAWING, [{"text": "ok"}], [{"text": "bye"}]]
