"""`stream_text`: what `print(agent(...))` would print, piece by piece, where nothing can be taken back."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from pydantic import BaseModel

from repertory import Agent, AgentSpec, BeforeToolCallEvent, Runtime, ScriptedModel, ToolContext, tool
from repertory.app.agent.printer import ASKED_AGAIN, REPLACED, TextOfTurn
from tests.app.orchestration.recorder import add, use

pytestmark = pytest.mark.anyio


class Person(BaseModel):
    name: str


async def text_of(agent: Agent, prompt: Any = "go", **options: Any) -> list[str]:
    return [piece async for piece in agent.stream_text(prompt, **options)]


def told(*events: Any) -> str:
    text = TextOfTurn()
    return "".join([text.told(event) for event in events])


async def test_pieces_come_as_they_are_and_each_message_begins_a_line() -> None:
    model = ScriptedModel([[{"text": "Let me add."}, use("add", a=1, b=2)], "It is 3."], chunk=6)
    pieces = await text_of(Agent(model, tools=[add], callback_handler=None))
    assert "".join(pieces) == "Let me add.\nIt is 3."
    assert len(pieces) == 4


async def test_a_session_of_a_runtime_streams_text_too() -> None:
    async with Runtime() as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["Hello there."], chunk=6))).session("s")
        assert [piece async for piece in session.stream_text("hi")] == ["Hello ", "there."]


async def test_a_question_to_a_person_and_a_limit_are_the_last_piece_in_words() -> None:
    @tool
    def pay(tool_context: ToolContext) -> str:
        return str(tool_context.interrupt("pay", reason="Pay 5?"))

    agent = Agent(ScriptedModel([[{"text": "I ask."}, use("pay")], "Done."]), tools=[pay], callback_handler=None)
    assert "".join(await text_of(agent)) == "I ask.\npay: Pay 5?"
    busy = Agent(ScriptedModel([use("add", a=1, b=2)], loop=True), tools=[add], callback_handler=None)
    assert await text_of(busy, limits={"turns": 1}) == ["Stopped by a limit: limit_turns."]


async def test_structured_output_and_an_answer_that_was_given_before_come_whole() -> None:
    agent = Agent(ScriptedModel([use("Person", name="Ada")]), callback_handler=None)
    assert await text_of(agent, structured_output_model=Person) == ['{"name":"Ada"}']
    once = Agent(ScriptedModel(["Only once."]), callback_handler=None)
    assert await text_of(once, idempotency_token="t") == await text_of(once, idempotency_token="t") == ["Only once."]


async def test_a_line_says_that_an_answer_begins_anew_or_was_replaced() -> None:
    answer: dict[str, Any] = {"role": "assistant", "content": [{"text": "One two."}]}
    again = ({"data": "One"}, {"model_retry": {}}, {"data": "One two."}, {"message": answer})
    assert told(*again) == f"One\n{ASKED_AGAIN}\nOne two."
    assert told({"data": "Secret."}, {"message": answer}) == f"Secret.\n{REPLACED}\nOne two."


async def test_leaving_the_stream_cancels_the_turn() -> None:
    agent = Agent(ScriptedModel(["One two three.", "Four."], chunk=4), callback_handler=None)
    async with aclosing(agent.stream_text("go")) as pieces:
        assert await anext(pieces) == "One "
    assert (await agent.invoke_async("on")).text == "Four."


async def test_a_response_is_an_object_of_the_type_that_was_asked_for() -> None:
    found: list[object] = []

    @tool
    def ask(tool_context: ToolContext) -> str:
        found.append(tool_context.interrupt("who", response_model=Person))
        found.append(tool_context.interrupt("sure", response_model=bool))
        return "known"

    model = ScriptedModel([use("ask"), "Done.", use("ask"), "Done."])
    agent = Agent(model, tools=[ask], callback_handler=None)
    result = await agent.invoke_async("go")
    for answer in ({"name": "Ada"}, "yes"):
        only = result.interrupts[0].id
        result = await agent.invoke_async([{"interruptResponse": {"interruptId": only, "response": answer}}])
    assert found[-2:] == [Person(name="Ada"), True]
    result = await agent.invoke_async("again")
    await agent.invoke_async([{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": {"nam": 1}}}])
    error = agent.messages[-2]["content"][0]["toolResult"]
    assert (error["status"], "not what was asked for: Field required" in str(error)) == ("error", True)


async def test_a_hook_gets_a_typed_response_too() -> None:
    def allow(event: BeforeToolCallEvent) -> None:
        if not event.interrupt("allow", response_model=bool):
            event.cancel_tool = "refused"

    agent = Agent(ScriptedModel([use("add", a=1, b=2), "No."]), tools=[add], hooks=[allow], callback_handler=None)
    asked = (await agent.invoke_async("go")).interrupts[0].id
    await agent.invoke_async([{"interruptResponse": {"interruptId": asked, "response": "no"}}])
    assert "refused" in str(agent.messages[2])
