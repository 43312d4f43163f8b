"""The rules of the offline model, and that it streams them as a model does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from repertory.backends.models.offline import OFFLINE_LABEL, OfflineModel, Say, Situation, Use, decide
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import Message, ToolResult, ToolSpec, text_of
from tests.read_streams import text_delta

pytestmark = pytest.mark.anyio

TOOLS = ("calculator", "current_time", "list_files", "read_file", "write_file", "append_file")
SPECS: list[ToolSpec] = [
    {"name": name, "description": name, "inputSchema": {"json": {"type": "object"}}} for name in TOOLS
]


def user(text: str) -> Message:
    return {"role": "user", "content": [{"text": text}]}


async def ask(messages: Sequence[Message], specs: Sequence[ToolSpec] | None = SPECS) -> Answer:
    assembler = Assembler()
    async for event in OfflineModel().stream(messages, specs):
        assembler.feed(event)
    return assembler.finish()


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("What is 12 * 7?", Use("calculator", {"expression": "12 * 7"})),
        ("what's 3 plus 4", Use("calculator", {"expression": "3+4"})),
        ("Calculate (2 + 3) * 4 please", Use("calculator", {"expression": "(2 + 3) * 4"})),
        ("12 x 12", Use("calculator", {"expression": "12*12"})),
        ("What is 1.5/0.5?", Use("calculator", {"expression": "1.5/0.5"})),
        ("What time is it?", Use("current_time")),
        ("what is the date today", Use("current_time")),
        ("list files", Use("list_files")),
        ("Which notes do I have?", Use("list_files")),
        ("read groceries.txt", Use("read_file", {"path": "groceries.txt"})),
        ("Please read the note groceries.", Use("read_file", {"path": "groceries.txt"})),
        (
            "save note groceries: milk, 2 + 2 eggs",
            Use("write_file", {"path": "groceries.txt", "text": "milk, 2 + 2 eggs"}),
        ),
        ("Write a file called a/b.md: one\ntwo", Use("write_file", {"path": "a/b.md", "text": "one\ntwo"})),
        ("append to note groceries: bread", Use("append_file", {"path": "groceries.txt", "text": "bread"})),
    ],
)
async def test_a_request_becomes_a_tool_use(text: str, use: Use) -> None:
    assert decide(Situation(text=text, texts=[text], tools=TOOLS)) == use


@pytest.mark.parametrize(
    "text", ["Hello", "I went home at 5", "my number is 12", "The year 2024 was good", "I moved on 2024-05-01", "", "?"]
)
async def test_other_texts_call_no_tool(text: str) -> None:
    assert isinstance(decide(Situation(text=text, texts=[text], tools=TOOLS)), Say)


async def test_without_the_tool_the_model_says_what_it_lacks() -> None:
    answer = await ask([user("What is 12 * 7?")], None)
    assert text_of(answer.message) == f"{OFFLINE_LABEL}That takes the tool calculator, which I was not given."


async def test_every_answer_is_labelled() -> None:
    for text in ("Hello", "My name is Ada", "What is my name?", "gibberish", ""):
        assert text_of((await ask([user(text)])).message).startswith(OFFLINE_LABEL)


@pytest.mark.parametrize(
    ("told", "asked", "expected"),
    [
        ("My name is Ada.", "What is my name?", "Your name is Ada."),
        ("Call me Bob", "what's my name", "Your name is Bob."),
        ("my dog is called Rex, by the way", "Do you remember my dog?", "Your dog is Rex, by the way."),
        ("Hello", "What is my name?", "You have not told me what your name is."),
    ],
)
async def test_facts_are_remembered_from_the_conversation(told: str, asked: str, expected: str) -> None:
    noted = (await ask([user(told)])).message
    answer = await ask([user(told), noted, user(asked)])
    assert text_of(answer.message) == OFFLINE_LABEL + expected


async def test_the_latest_fact_wins() -> None:
    messages = [user("My name is Ada."), user("My name is Grace."), user("What is my name?")]
    assert text_of((await ask(messages)).message) == f"{OFFLINE_LABEL}Your name is Grace."


async def test_a_summary_keeps_the_facts() -> None:
    answer = await ask([user("My name is Ada."), user("I like tea"), user("Summarize this conversation.")])
    assert "name is Ada" in text_of(answer.message)
    assert "I like tea" in text_of(answer.message)


@pytest.mark.parametrize(
    ("name", "result", "expected"),
    [
        ("calculator", {"status": "success", "content": [{"text": "84"}]}, "The result is 84."),
        ("read_file", {"status": "success", "content": [{"text": "milk"}]}, "The file says: milk"),
        ("other", {"status": "success", "content": [{"json": {"a": 1}}]}, 'The tool other answered: {"a": 1}'),
        ("calculator", {"status": "error", "content": [{"text": "no"}]}, "The tool calculator failed: no"),
    ],
)
async def test_tool_results_become_the_answer(name: str, result: dict[str, Any], expected: str) -> None:
    finished: ToolResult = {"toolUseId": "t1", **result}  # type: ignore[typeddict-item]
    messages: list[Message] = [
        user("go"),
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": name, "input": {}}}]},
        {"role": "user", "content": [{"toolResult": finished}]},
    ]
    assert text_of((await ask(messages)).message) == OFFLINE_LABEL + expected


async def test_a_tool_use_streams_like_any_models() -> None:
    answer = await ask([user("What is 12 * 7?")])
    assert answer.stop_reason == "tool_use"
    (block,) = answer.message["content"]
    assert block["toolUse"]["name"] == "calculator"
    assert block["toolUse"]["input"] == {"expression": "12 * 7"}


async def test_the_same_conversation_gets_the_same_answer() -> None:
    messages = [user("What is 12 * 7?")]
    assert await ask(messages) == await ask(messages)


async def test_two_tool_uses_of_one_conversation_have_two_ids() -> None:
    first = (await ask([user("What time is it?")])).message
    use_id = first["content"][0]["toolUse"]["toolUseId"]
    result: ToolResult = {"toolUseId": use_id, "status": "success", "content": [{"text": "noon"}]}
    messages: list[Message] = [user("What time is it?"), first, {"role": "user", "content": [{"toolResult": result}]}]
    second = await ask([*messages, {"role": "assistant", "content": [{"text": "noon"}]}, user("What time is it?")])
    assert second.message["content"][0]["toolUse"]["toolUseId"] != use_id


async def test_words_stream_one_by_one() -> None:
    events = [event async for event in OfflineModel().stream([user("My name is Ada")])]
    pieces = [text for event in events if (text := text_delta(event)) is not None]
    assert pieces == ["[offline]", " Noted:", " your", " name", " is", " Ada."]


async def test_an_empty_conversation_is_answered() -> None:
    assert text_of((await ask([])).message).startswith(OFFLINE_LABEL)


@pytest.mark.parametrize(
    "text",
    [
        "save" + " to the" * 200 + " x",
        "1" * 100_000,
        "(" * 100_000,
        "list " * 20_000,
        "what is my" + " " * 100_000 + "!",
    ],
    ids=["ways to read it", "digits", "brackets", "words", "spaces"],
)
async def test_no_text_takes_for_ever(text: str) -> None:
    """Some took time that doubled with each word."""
    assert isinstance(decide(Situation(text=text, texts=[text], tools=TOOLS)), Say)


async def test_a_long_text_is_saved() -> None:
    text = "x" * 100_000
    said = f"save note long: {text}"
    assert decide(Situation(text=said, texts=[said], tools=TOOLS)) == Use(
        "write_file", {"path": "long.txt", "text": text}
    )
