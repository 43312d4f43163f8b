"""What hooks make of a message that is added: what they leave is stored, shown and answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from repertory import (
    AfterModelCallEvent,
    Agent,
    InterventionHandler,
    MessageAddedEvent,
    ScriptedModel,
    SQLiteSessionManager,
    Transform,
    tool,
)
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message, text_of, tool_results
from repertory.errors import HookFailed
from tests.app.orchestration.recorder import On, add, slow, use
from tests.service.histories import check_history

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


def agent_with(*replies: Any, **options: Any) -> Agent:
    options = {"tools": [add, slow], "callback_handler": None, "retry_strategy": None, **options}
    return Agent(ScriptedModel(list(replies)), **options)


def asked(agent: Agent) -> list[Sequence[Message]]:
    """What the agent's model was shown, call by call."""
    assert isinstance(agent.model, ScriptedModel)
    return [call.messages for call in agent.model.calls]


def texts(messages: Sequence[Message]) -> list[str]:
    return [text_of(message) for message in messages]


def results_of(agent: Agent) -> list[tuple[str, str]]:
    """Status and text of every tool result in the conversation."""
    found = [result for message in agent.messages for result in tool_results(message)]
    return [(result["status"], str(result["content"][0].get("text"))) for result in found]


def redact(event: MessageAddedEvent) -> None:
    for block in event.message["content"]:
        if "text" in block:
            block["text"] = block["text"].replace("swordfish", "****")
        for part in block["toolResult"]["content"] if "toolResult" in block else ():
            if "text" in part:
                part["text"] = str(part["text"]).replace("swordfish", "****")
        if "toolUse" in block:
            block["toolUse"]["input"] = "****"


def _bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


@pytest.mark.real_time
@pytest.mark.parametrize("durability", ["pipelined", "strict", "relaxed"])
async def test_an_edited_message_is_what_is_stored_shown_and_answered(tmp_path: Path, durability: Any) -> None:
    """The PIN is in the prompt, a tool's input, its result and the answer, and nowhere on the disk."""

    @tool
    async def look_up(pin: str) -> str:
        """Look a PIN up."""
        return f"it is {pin}"

    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = agent_with(
        use("look_up", pin="swordfish"),
        "Your PIN is swordfish.",
        tools=[look_up],
        session_manager=manager,
        durability=durability,
        hooks=[On(MessageAddedEvent, redact)],
    )
    async with agent:
        events = [event async for event in agent.stream_async("My PIN is swordfish.")]
        result = events[-1]["result"]
        assert str(result) == "Your PIN is ****."
        assert "swordfish" not in str([event["message"] for event in events if "message" in event])
        assert "swordfish" not in str(agent.messages)
        assert "swordfish" not in str(asked(agent))
        live = agent.messages
    later = agent_with(session_manager=manager)
    await later.ready()
    assert later.messages == live
    assert b"swordfish" not in _bytes_in(tmp_path)


async def test_a_replayed_answer_is_the_edited_one() -> None:
    agent = agent_with("Your PIN is swordfish.", hooks=[On(MessageAddedEvent, redact)])
    first = await agent.invoke_async("hi", idempotency_token="t")
    again = await agent.invoke_async("hi", idempotency_token="t")
    assert str(first) == str(again) == "Your PIN is ****."


class Capped(InterventionHandler):
    name = "capped"

    def after_model_call(self, event: AfterModelCallEvent, **kwargs: Any) -> Transform:
        return Transform(apply=lambda event: cap(event.stop_response))


def cap(event: Any) -> None:
    """No amount is above 100."""
    for block in event.message["content"]:
        if "toolUse" in block:
            block["toolUse"]["input"]["amount"] = min(block["toolUse"]["input"]["amount"], 100)
        elif block.get("text", "").startswith("{"):
            block["text"] = '{"amount": 100}'


class Payment(BaseModel):
    amount: int


@pytest.mark.parametrize("parts", [{"interventions": [Capped()]}, {"hooks": [On(MessageAddedEvent, cap)]}])
async def test_tools_and_callers_get_what_hooks_have_left_of_an_answer(parts: Any) -> None:
    paid = list[int]()

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    agent = agent_with(use("pay", amount=1000), "ok", "at first", '{"amount": 1000}', tools=[pay], **parts)
    await agent.invoke_async("go")
    options: Any = {"structured_output_model": Payment, "idempotency_token": "t"}
    results = [await agent.invoke_async("again", **options) for _ in range(2)]
    assert paid == [100]
    assert [each.structured_output for each in results] == [Payment(amount=100)] * 2


def every(message: Any, kind: str) -> list[dict[str, Any]]:
    """The blocks of that kind, to be broken."""
    return [block[kind] for block in message["content"] if kind in block]


ANOTHER = {"toolUse": {"toolUseId": "t9", "name": "add", "input": {}}}
EDITS: dict[str, Callable[[Any], object]] = {
    "empty": lambda message: message.clear(),
    "no content": lambda message: message["content"].clear(),
    "unknown role": lambda message: message.update(role="system"),
    "other role": lambda message: message.update(role="assistant" if message["role"] == "user" else "user"),
    "no block": lambda message: message["content"].append("text"),
    "no JSON": lambda message: message["content"].append({"text": object()}),
    "another tool use": lambda message: message["content"].append(ANOTHER),
    "another id": lambda message: [use.update(toolUseId="t9") for use in every(message, "toolUse")],
    "a use without a name": lambda message: [use.pop("name") for use in every(message, "toolUse")],
    "an emptied result": lambda message: [result.clear() for result in every(message, "toolResult")],
    "a result of text": lambda message: [result.update(content="text") for result in every(message, "toolResult")],
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
async def test_an_edit_that_makes_no_message_is_logged_and_undone(edit: Any, caplog: pytest.LogCaptureFixture) -> None:
    agent = agent_with(use("add", a=1, b=2), "3", hooks=[On(MessageAddedEvent, lambda event: edit(event.message))])
    await agent.invoke_async("1 + 2?")
    assert texts(agent.messages) == ["1 + 2?", "", "", "3"]
    assert results_of(agent) == [("success", "3")]
    check_history(agent.messages)
    assert "hook broke a message" in caplog.text


@pytest.mark.real_time
async def test_callbacks_find_the_message_that_is_added_at_the_end_of_the_conversation(tmp_path: Path) -> None:
    """The prompt, the tool use, the results and the answer, of two turns: each once, as the last one."""
    seen: list[tuple[str, int]] = []

    async def look(event: MessageAddedEvent) -> None:
        assert event.agent.messages[-1] is event.message
        assert sum(each is event.message for each in event.agent.messages) == 1
        seen.append((event.message["role"], len(event.agent.messages)))

    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = agent_with(use("add", a=1, b=2), "3", "Bye.", session_manager=manager, hooks=[look])
    async with agent:
        await agent.invoke_async("What is 1 + 2?")
        await agent.invoke_async("Thanks.")
        live = list(agent.messages)
    assert [role for role, _ in seen] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert [length for _, length in seen] == [1, 2, 3, 4, 5, 6]
    async with agent_with(session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db")) as restored:
        assert list(restored.messages) == live


@pytest.mark.real_time
@pytest.mark.parametrize("way", ["in the event", "in the list", "by assignment"])
async def test_what_callbacks_make_of_the_added_message_in_the_list_is_stored(tmp_path: Path, way: str) -> None:
    def hide(event: MessageAddedEvent) -> None:
        hidden: Message = {"role": event.message["role"], "content": [{"text": "****"}]}
        if "swordfish" not in text_of(event.message):
            return
        if way == "in the event":
            event.message["content"][0] = {"text": "****"}
        elif way == "in the list":
            event.agent.messages[-1] = hidden
        else:
            event.agent.messages = [*event.agent.messages[:-1], hidden]

    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = agent_with("It is swordfish.", "Bye.", session_manager=manager, hooks=[hide])
    async with agent:
        await agent.invoke_async("swordfish?")
        await agent.invoke_async("swordfish!")
        assert texts(agent.messages) == ["****", "****", "****", "Bye."]
        assert texts(asked(agent)[1]) == ["****", "****", "****"]
    assert b"swordfish" not in _bytes_in(tmp_path)
    async with agent_with(session_manager=SQLiteSessionManager("s", path=tmp_path / "a.db")) as restored:
        assert texts(restored.messages) == ["****", "****", "****", "Bye."]


async def test_a_callback_that_trims_the_conversation_keeps_the_message_that_is_added() -> None:
    def keep_two(event: MessageAddedEvent) -> None:
        del event.agent.messages[:-2]

    agent = agent_with("one", "two", hooks=[keep_two])
    await agent.invoke_async("first")
    await agent.invoke_async("second")
    assert texts(agent.messages) == ["second", "two"]


async def test_the_message_that_is_added_cannot_be_taken_away() -> None:
    def drop(event: MessageAddedEvent) -> None:
        if text_of(event.message) == "second":
            event.agent.messages.pop()

    agent = agent_with("one", "two", hooks=[drop])
    await agent.invoke_async("first")
    await agent.invoke_async("second")
    assert texts(agent.messages) == ["first", "one", "second", "two"]


async def test_a_guard_that_refuses_a_message_leaves_nothing_of_it_in_the_list() -> None:
    def refuse(event: MessageAddedEvent) -> None:
        if text_of(event.message) == "secret" and event.agent.messages:
            raise RuntimeError("no")

    agent = agent_with("one", "two")
    agent.hooks.add_callback(MessageAddedEvent, refuse, guard=True)
    await agent.invoke_async("first")
    with pytest.raises(HookFailed):
        await agent.invoke_async("secret")
    assert texts(agent.messages) == ["first", "one"]
    await agent.invoke_async("third")
    assert texts(agent.messages) == ["first", "one", "third", "two"]
