"""Answers whose parts wait for their end: they are bounded, and put together in time that is linear in their size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from repertory.backends.models.anthropic_answers import MessagesReader
from repertory.backends.models.bedrock_answers import ConverseReader
from repertory.backends.models.completions import CompletionReader
from repertory.backends.models.gemini_answer import ContentReader
from repertory.core.answer import TOOL_USES_MAX
from repertory.core.limits import ANSWER_BYTES
from repertory.errors import TooLarge


class Piece(str):
    """A text that counts the characters that are copied when it is added to another one."""

    copied = 0
    __slots__ = ()

    def __add__(self, other: str) -> Piece:
        Piece.copied += len(self) + len(other)
        return Piece(str.__add__(self, other))

    def __radd__(self, other: str) -> Piece:
        return Piece(other) + self


Chunk = Mapping[str, Any]
Feed = Callable[[Any], Any]


def chat(delta: Chunk) -> Chunk:
    return {"id": "x", "choices": [{"index": 0, "delta": delta}]}


def thoughts(number: int) -> Chunk:
    return chat({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": Piece("abcdefgh")}]})


def sealed_thoughts(number: int) -> Chunk:
    return chat({"reasoning_details": [{"type": "reasoning.encrypted", "index": number, "data": "a" * 9_000}]})


def changing_thoughts(number: int) -> Chunk:
    return chat({"reasoning_details": [{"type": "reasoning.text", "index": 0, f"more {number}": "a" * 9_000}]})


def nameless_call(number: int) -> Chunk:
    return chat({"tool_calls": [{"index": 0, "id": "x", "function": {"arguments": Piece("abcdefgh")}}]})


def custom_call(number: int) -> Chunk:
    return chat({"tool_calls": [{"index": 0, "id": "x", "custom": {"name": "n", "input": Piece("abcdefgh")}}]})


def another_call(number: int) -> Chunk:
    return chat({"tool_calls": [{"index": number, "function": {"arguments": "a"}}]})


def sources(number: int) -> Chunk:
    return chat({"annotations": [{"type": "url_citation", "url": f"{number}" + "a" * 9_000}]})


def sound(number: int) -> Chunk:
    return chat({"audio": {"data": "AAAA" * 3_000}})


def part(delta: Chunk) -> Chunk:
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def own_text(number: int) -> Chunk:
    return part({"type": "x", "encrypted": Piece("abcdefgh")})


def own_citation(number: int) -> Chunk:
    return part({"type": "citations_delta", "citation": {"a": "a" * 9_000}})


def another_part(number: int) -> Chunk:
    block = {"type": "server_tool_use", "id": "s", "name": "n", "input": {"a": "a" * 9_000}}
    return {"type": "content_block_start", "index": number + 1, "content_block": block}


def gemini(candidate: Chunk) -> Chunk:
    return {"candidates": [candidate]}


def called(called: Chunk) -> Chunk:
    return gemini({"content": {"parts": [{"function_call": {"will_continue": True, **called}}]}})


def argument(number: int) -> Chunk:
    piece = {"json_path": "$.a[0].b", "string_value": Piece("abcdefgh"), "will_continue": True}
    return called({"partial_args": [piece]})


def far_argument(number: int) -> Chunk:
    return called({"partial_args": [{"json_path": f"$.a{number}[9999]", "string_value": "a"}]})


def gemini_source(number: int) -> Chunk:
    return gemini({"citation_metadata": {"citations": [{"uri": f"{number}" + "a" * 9_000}]}})


def openai() -> Feed:
    return CompletionReader().feed


def anthropic() -> Feed:
    reader = MessagesReader()
    block = {"type": "server_tool_use", "id": "s", "name": "n", "input": {}}
    list(reader.feed({"type": "message_start", "message": {}}))
    list(reader.feed({"type": "content_block_start", "index": 0, "content_block": block}))
    return reader.feed


def nova_result(number: int) -> Chunk:
    delta = {"toolResult": [{"text": Piece("abcdefgh")}]}
    return {"contentBlockDelta": {"contentBlockIndex": 0, "delta": delta}}


def nova_json(number: int) -> Chunk:
    return {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolResult": [{"json": {"a": "a" * 9_000}}]}}}


def bedrock() -> Feed:
    reader: Any = ConverseReader()
    result = {"toolUseId": "u", "status": "success", "type": "x"}
    reader.feed({"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolResult": result}}})
    return reader.feed  # type: ignore[no-any-return]


def google() -> Feed:
    reader = ContentReader("seed")
    list(reader.feed(called({"name": "f"})))
    return reader.feed


FLOODS: list[tuple[Callable[[], Feed], Callable[[int], Chunk]]] = [
    *((openai, each) for each in (thoughts, sealed_thoughts, changing_thoughts, nameless_call, custom_call)),
    *((openai, each) for each in (another_call, sources, sound)),
    *((anthropic, each) for each in (own_text, own_citation, another_part)),
    *((bedrock, each) for each in (nova_result, nova_json)),
    *((google, each) for each in (argument, far_argument, gemini_source)),
]


@pytest.mark.parametrize(("reader", "flood"), FLOODS, ids=lambda each: each.__name__)
def test_what_a_reader_holds_back_has_a_bound(
    reader: Callable[[], Feed], flood: Callable[[int], Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repertory.backends.models.held_back.ANSWER_BYTES", ANSWER_BYTES // 32)
    feed = reader()
    with pytest.raises(TooLarge, match="the model's answer is too large"):
        for number in range(ANSWER_BYTES // 32 // 40 + 9):
            list(feed(flood(number)))


@pytest.mark.parametrize(
    ("reader", "growing"),
    [
        *((openai, thoughts), (openai, nameless_call), (openai, custom_call)),
        *((anthropic, own_text), (bedrock, nova_result), (google, argument)),
    ],
    ids=lambda each: each.__name__,
)
def test_pieces_are_put_together_once(reader: Callable[[], Feed], growing: Callable[[int], Chunk]) -> None:
    Piece.copied, feed = 0, reader()
    for number in range(500):
        list(feed(growing(number)))
    assert Piece.copied <= 500 * len("abcdefgh"), "each piece at most once"


def test_there_are_no_more_tool_calls_than_an_answer_may_have() -> None:
    feed = CompletionReader().feed
    for number in range(TOOL_USES_MAX):
        list(feed(another_call(number)))
    with pytest.raises(TooLarge, match="tool uses"):
        list(feed(another_call(TOOL_USES_MAX)))


def text_of(events: Iterator[Any]) -> list[Any]:
    deltas = [each["contentBlockDelta"]["delta"] for each in events if "contentBlockDelta" in each]
    return [delta for delta in deltas if "text" not in delta]


def test_pieces_are_put_together_in_their_order() -> None:
    chat_reader = CompletionReader()
    for number in range(3):
        list(chat_reader.feed(thoughts(number)))
    list(chat_reader.feed({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
    detail = {"type": "reasoning.text", "index": 0, "text": "abcdefgh" * 3}
    assert text_of(chat_reader.finish()) == [{"providerContent": {"content": {"reasoning_details": [detail]}}}]

    feed = anthropic()
    for piece in (
        {"encrypted": "a"},
        {"encrypted": "b"},
        {"partial_json": '{"q"'},
        {"citation": 1},
        {"partial_json": ":1}"},
    ):
        list(feed(part({"type": "x", **piece})))
    (whole,) = text_of(feed({"type": "content_block_stop", "index": 0}))
    content = whole["providerContent"]["content"]
    assert (content["encrypted"], content["input"], content["citations"]) == ("ab", {"q": 1}, [1])

    feed = google()
    pieces = [
        {"json_path": "$.a[1].b", "string_value": "x", "will_continue": True},
        {"json_path": "$.a[1].b", "string_value": "y", "will_continue": True},
        {"json_path": "$.n", "number_value": 2.0},
        {"json_path": "$.c", "string_value": "z", "will_continue": True},
        {"json_path": "$.c", "string_value": "!"},
    ]
    for piece in pieces:
        list(feed(called({"partial_args": [piece]})))
    ended = feed(gemini({"content": {"parts": [{"function_call": {"will_continue": False}}]}, "finish_reason": "STOP"}))
    assert text_of(ended) == [{"toolUse": {"input": '{"a": [null, {"b": "xy"}], "n": 2, "c": "z!"}'}}]
