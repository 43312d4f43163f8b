"""A model that says what it was told to say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import anyio
import pytest

from repertory.backends.models.scripted import ScriptedModel, ScriptedReply
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import ContentBlock, Message, ToolSpec
from repertory.errors import Invalid, LimitReached, Throttled
from tests.read_streams import text_delta

pytestmark = pytest.mark.anyio

HELLO: list[Message] = [{"role": "user", "content": [{"text": "Hello"}]}]
ADD: list[ToolSpec] = [{"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object"}}}]


async def ask(model: ScriptedModel, messages: Sequence[Message] = HELLO) -> Answer:
    assembler = Assembler()
    async for event in model.stream(messages):
        assembler.feed(event)
    return assembler.finish()


async def test_replies_come_in_order() -> None:
    model = ScriptedModel(["one", "two"])
    assert (await ask(model)).message == {"role": "assistant", "content": [{"text": "one"}]}
    assert (await ask(model)).message == {"role": "assistant", "content": [{"text": "two"}]}


async def test_a_script_that_is_used_up_raises() -> None:
    model = ScriptedModel(["one"])
    await ask(model)
    with pytest.raises(LimitReached, match="no reply left"):
        await ask(model)


async def test_loop_repeats_the_last_reply() -> None:
    model = ScriptedModel(["one", "two"], loop=True)
    said = [(await ask(model)).message["content"][0]["text"] for _ in range(4)]
    assert said == ["one", "two", "two", "two"]


async def test_a_tool_use_gets_an_id_and_the_stop_reason_says_so() -> None:
    model = ScriptedModel(
        [{"toolUse": {"name": "add", "input": {"a": 1}}}, [{"text": "and"}, {"toolUse": {"name": "add"}}]]
    )
    first, second = await ask(model), await ask(model)
    assert first.stop_reason == second.stop_reason == "tool_use"
    use = {"toolUseId": "tooluse_1", "name": "add", "input": {"a": 1}}
    assert first.message["content"] == [{"toolUse": use}]
    assert second.message["content"] == [
        {"text": "and"},
        {"toolUse": {"toolUseId": "tooluse_2", "name": "add", "input": {}}},
    ]


async def test_ids_that_the_script_names_are_kept() -> None:
    answer = await ask(ScriptedModel([{"toolUse": {"toolUseId": "mine", "name": "add", "input": {}}}]))
    assert answer.message["content"] == [{"toolUse": {"toolUseId": "mine", "name": "add", "input": {}}}]


async def test_a_looped_tool_use_gets_a_new_id_each_time() -> None:
    model = ScriptedModel([{"toolUse": {"name": "add"}}], loop=True)
    ids = [(await ask(model)).message["content"][0]["toolUse"]["toolUseId"] for _ in range(3)]
    assert ids == ["tooluse_1", "tooluse_2", "tooluse_3"]


async def test_an_error_is_raised_and_the_next_call_goes_on() -> None:
    model = ScriptedModel([Throttled("slow down"), "fine"])
    with pytest.raises(Throttled):
        await ask(model)
    assert (await ask(model)).message["content"] == [{"text": "fine"}]


async def test_an_error_class_is_raised_too() -> None:
    with pytest.raises(TimeoutError):
        await ask(ScriptedModel([TimeoutError]))


async def test_a_function_decides_by_what_it_is_asked() -> None:
    def decide(
        messages: Sequence[Message], tool_specs: Sequence[ToolSpec] | None, system_prompt: str | None
    ) -> ScriptedReply:
        return f"{len(messages)} {[spec['name'] for spec in tool_specs or ()]} {system_prompt}"

    assembler = Assembler()
    async for event in ScriptedModel([decide]).stream(HELLO, ADD, "Be brief."):
        assembler.feed(event)
    assert assembler.finish().message["content"] == [{"text": "1 ['add'] Be brief."}]


async def test_calls_keep_what_was_asked() -> None:
    model = ScriptedModel(["one"])
    asked = list(HELLO)
    async for _ in model.stream(asked, ADD, "Be brief."):
        pass
    asked.clear()
    (call,) = model.calls
    assert call.messages == HELLO
    assert call.tool_specs == ADD
    assert call.system_prompt == "Be brief."


@pytest.mark.parametrize(
    ("chunk", "pieces"), [(None, ["Hello"]), (2, ["He", "ll", "o"]), (1, list("Hello")), (9, ["Hello"])]
)
async def test_chunk_is_the_number_of_characters_per_delta(chunk: int | None, pieces: list[str]) -> None:
    events = [event async for event in ScriptedModel(["Hello"], chunk=chunk).stream(HELLO)]
    assert [text for event in events if (text := text_delta(event)) is not None] == pieces


async def test_chunked_tool_input_and_reasoning_arrive_whole() -> None:
    reasoning = {"reasoningContent": {"reasoningText": {"text": "Let me think", "signature": "abc"}}}
    use = {"toolUse": {"toolUseId": "t", "name": "add", "input": {"a": [1, "two"]}}}
    answer = await ask(ScriptedModel([[reasoning, use]], chunk=3))
    assert answer.message["content"] == [reasoning, use]


async def test_delay_passes_before_each_event() -> None:
    """On virtual time: six events at ten seconds each."""
    model = ScriptedModel(["Hello"], delay_s=10.0)
    before = anyio.current_time()
    with anyio.fail_after(100):
        events = [event async for event in model.stream(HELLO)]
    assert anyio.current_time() - before == pytest.approx(10.0 * (len(events) - 1))


async def test_usage_is_an_estimate_that_grows_with_the_conversation() -> None:
    model = ScriptedModel(["1234"], loop=True)
    first = (await ask(model)).usage
    longer: list[Message] = [*HELLO, {"role": "assistant", "content": [{"text": "1234"}]}, *HELLO]
    second = (await ask(model, longer)).usage
    assert first == {"inputTokens": 2, "outputTokens": 1, "totalTokens": 3}
    assert second["inputTokens"] > first["inputTokens"]


class Counted(list[ContentBlock]):
    """The blocks of a message, which know how often somebody went through them."""

    passes = 0

    def __iter__(self) -> Iterator[ContentBlock]:
        self.passes += 1
        return super().__iter__()


async def test_messages_of_earlier_requests_are_not_counted_again() -> None:
    """Each request has messages of its own, whose contents are those of before."""
    model, contents = ScriptedModel(["one", "two", "three"]), [Counted([{"text": f"word {n}"}]) for n in range(30)]
    passes: list[int] = []
    for _ in range(3):
        before = sum(each.passes for each in contents)
        messages: list[Message] = [{"role": "user", "content": content} for content in contents]
        async for _event in model.stream(messages):
            pass
        passes.append(sum(each.passes for each in contents) - before)
    assert passes[1:] == [passes[0] - len(contents)] * 2


@pytest.mark.parametrize("reply", [1, None, [1], [{"image": {}}], [{"toolUse": {}}], {"text": 1}, object()])
async def test_a_reply_of_another_kind_is_refused(reply: Any) -> None:
    with pytest.raises(Invalid):
        await ask(ScriptedModel([reply]))


@pytest.mark.parametrize("chunk", [0, -1])
async def test_a_chunk_below_one_is_refused(chunk: int) -> None:
    with pytest.raises(Invalid, match="chunk"):
        ScriptedModel(["x"], chunk=chunk)


async def test_settings_cannot_be_updated() -> None:
    with pytest.raises(TypeError, match="temperature"):
        ScriptedModel(["x"]).update_config(temperature=1)
