"""Turns whose model is asked again in the middle of an answer, told to strict clients of each protocol: each of them
ends with the answer that is stored, or with an error, and with nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory import AgentResult
from repertory.service.decisions.a2a import TaskUpdates
from repertory.service.decisions.ag_ui import RunStream, ThreadRun
from repertory.service.decisions.narration import EventNarration, MessageVoid, TextPiece, TurnDone, answer_text
from repertory.service.decisions.openai_chat import ChatStream, Completion
from repertory.service.decisions.openai_responses import RESPONSE, ResponseHead, ResponsesStream
from repertory.service.decisions.turn_ids import TurnId
from tests.read_streams import narrated

# Letters are few, so that a second try often begins as the first one did, and often does not. The last one is two
# surrogates, which pieces may cut in two.
WORDS = st.text("ab", max_size=4) | st.sampled_from(["aaaa", "ab", "\U0001f600a"])
THOUGHTS = st.lists(st.sampled_from(["r", "s"]), max_size=2)


def data(text: str) -> dict[str, Any]:
    return {"data": text, "delta": {"text": text}}


def thought(text: str) -> dict[str, Any]:
    return {"reasoning": True, "reasoningText": text, "delta": {}}


def retry(error: Exception | None = None) -> dict[str, Any]:
    return {"model_retry": {"attempt": 1, "delay_s": 0.0, "error": error}}


def whole(text: str, *uses: str, reasoning: str = "") -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reasoning:
        content.append({"reasoningContent": {"reasoningText": {"text": reasoning}}})
    content += [{"text": text}] if text or not uses else []
    content += [{"toolUse": {"toolUseId": use, "name": "look", "input": {}}} for use in uses]
    return {"role": "assistant", "content": content}


def cut(text: str, places: Sequence[int]) -> list[dict[str, Any]]:
    """The text in pieces of UTF-16, as some services send it."""
    units = text.encode("utf-16-le")
    bounds = sorted({0, len(units), *(min(2 * place, len(units)) for place in places)})
    pieces = [units[begin:end].decode("utf-16-le", "surrogatepass") for begin, end in pairwise(bounds)]
    return [data(piece) for piece in pieces]


class PlayedTurn(NamedTuple):
    """A turn, and what the journal has of it at its end."""

    events: list[dict[str, Any]]
    messages: list[Any]
    result: AgentResult | None
    """None for a turn that fails."""


@st.composite
def streamed(draw: st.DrawFn, text: str, thoughts: Sequence[str]) -> list[dict[str, Any]]:
    """One try of an answer."""
    return [*map(thought, thoughts), *cut(text, draw(st.lists(st.integers(0, 4), max_size=3)))]


@st.composite
def turns(draw: st.DrawFn) -> PlayedTurn:
    """Steps that are tried several times, whose message may be replaced, and that may end early."""
    events: list[dict[str, Any]] = []
    messages: list[Any] = []
    for number in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(0, 2))):
            events += draw(streamed(draw(WORDS), draw(THOUGHTS)))
            if draw(st.booleans()):  # A block that is begun and void.
                start = {"toolUse": {"toolUseId": f"void{number}", "name": "look"}}
                events.append({"event": {"contentBlockStart": {"start": start}}})
            events.append(retry())
        ends = draw(st.sampled_from(["", "", "", "", "cancelled", "fails"]))
        text, thoughts = draw(WORDS), draw(THOUGHTS)
        events += draw(streamed(text, thoughts))
        if ends == "fails":
            return PlayedTurn(events, messages, None)
        if ends == "cancelled":
            result = AgentResult(stop_reason="cancelled", message=whole("Cancelled by user"))
            return PlayedTurn([*events, {"result": result}], messages, result)
        kept = draw(st.sampled_from([text, text, text, "[taken back]"]))
        uses = [f"t{number}"] if draw(st.booleans()) else []
        messages.append(whole(kept, *uses, reasoning="".join(thoughts)))
        events.append({"message": messages[-1]})
        if not uses:
            stop_reason = "end_turn" if kept == text else "guardrail_intervened"
            result = AgentResult(stop_reason=stop_reason, message=messages[-1])
            return PlayedTurn([*events, {"result": result}], messages, result)
        use = {"toolUseId": uses[0], "name": "look", "input": {}}
        events += [{"tool_started": use}, {"tool_finished": {"toolUseId": uses[0], "status": "success", "content": []}}]
    result = AgentResult(stop_reason="limit_turns", message=messages[-1])
    return PlayedTurn([*events, {"result": result}], messages, result)


TURNS = turns()


def texts(messages: Sequence[Any]) -> list[str]:
    said = ["".join(block.get("text", "") for block in message["content"]) for message in messages]
    return [text for text in said if text]


class Refused(Exception):
    """A client has got an error."""


def narration_of(told: PlayedTurn) -> list[Any]:
    narration = EventNarration()
    return [each for event in told.events for each in narration.tell(event)] + narration.cut()


# Strict clients. Each returns the texts that it takes for final, or raises `Refused`.


def chat_client(told: PlayedTurn) -> list[str]:
    stream = ChatStream(Completion("chatcmpl-1", "helper", 1))
    sent = [chunk for each in narration_of(told) for chunk in stream.tell(each)]
    text, finished = "", False
    for chunk in sent:
        assert not finished
        if "error" in chunk:
            assert chunk is sent[-1]
            assert stream.is_broken
            raise Refused(chunk["error"]["code"])
        (choice,) = chunk["choices"]
        text += choice["delta"].get("content", "")
        finished = choice["finish_reason"] is not None
    if not finished:
        raise Refused("cut off")
    return text.split("\n\n") if text else []


HEAD = ResponseHead(
    id=TurnId("helper", "s1", "t1").written(RESPONSE), agent="helper", token="t1", created=1, conversation="s1"
)


def responses_client(told: PlayedTurn) -> list[str]:
    stream = ResponsesStream(HEAD)
    sent = [*stream.begin(), *(event for each in narration_of(told) for event in stream.tell(each))]
    if told.result is None:
        assert not stream.is_broken or sent[-1]["type"] == "error"
        sent += [] if stream.is_broken else stream.fail({"code": "server_error", "message": "no"})
    deltas: dict[object, str] = {}
    done: list[Any] = []
    for number, event in enumerate(sent):
        assert event["sequence_number"] == number
        match event:
            case {"type": "response.output_item.added", "item": {"id": item}}:
                deltas[item] = ""
            case {
                "type": "response.output_text.delta" | "response.reasoning_text.delta",
                "item_id": item,
                "delta": text,
            }:
                deltas[item] += text
            case {"type": "response.output_text.done" | "response.reasoning_text.done", "item_id": item, "text": text}:
                assert deltas[item] == text
            case {"type": "response.output_item.done", "item": item}:
                done.append(item)
            case {"type": "error", "code": code}:
                assert event is sent[-1]
                raise Refused(code)
            case _:
                pass
    last = sent[-1]["response"]
    assert [item["id"] for item in done] == [*deltas]
    assert last["output"] == done
    said = [item for item in done if item["type"] == "message"]
    limited = told.result is not None and told.result.stop_reason == "limit_turns"
    if last["status"] != ("incomplete" if limited else "completed"):
        raise Refused(last["status"])
    assert all(item["status"] == "completed" for item in said)
    return [item["content"][0]["text"] for item in said]


def a2a_client(told: PlayedTurn) -> list[str]:
    updates = TaskUpdates("t1", "s1", lambda: 1e9)
    sent = [update for each in narration_of(told) for update in updates.tell(each)]
    sent += [updates.end("failed", "no")] if told.result is None else []
    held = ""
    for update in sent:
        if update["kind"] == "artifact-update":
            text = update["artifact"]["parts"][0]["text"]
            held = f"{held}{text}" if update["append"] else text
    state = sent[-1]["status"]["state"]
    if state == "failed":
        assert held in ("", *texts(told.messages))
        raise Refused(state)
    return [held] if held else []


def ag_ui_client(told: PlayedTurn) -> list[str]:
    stream = RunStream(ThreadRun(thread="s1", run="r1", token="t1"))
    sent = stream.begin({})
    for each in narration_of(told):
        sent += stream.tell(each)
        if isinstance(each, TurnDone):
            sent += stream.end(each.result, each.usage, {}, told.messages if stream.is_out_of_step else [])
    sent += [] if told.result else stream.fail("no", "500", told.messages if stream.is_out_of_step else [])
    thread: dict[Any, str] = {}
    for event in sent:
        match event:
            case {"type": "TEXT_MESSAGE_START", "messageId": name}:
                assert name not in thread
                thread[name] = ""
            case {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": str(piece)}:
                thread[name] += piece
            case {"type": "TOOL_CALL_START", "parentMessageId": name}:
                assert name in thread
            case {"type": "MESSAGES_SNAPSHOT", "messages": list(messages)}:
                thread = {one["id"]: one["content"] for one in messages if one["role"] == "assistant"}
    final = [text for text in thread.values() if text]
    if told.result is None:
        if told.messages:  # Without messages there is nothing to take the words back with.
            assert final == texts(told.messages)
        raise Refused("RUN_ERROR")
    return final


def stored(told: PlayedTurn, *, answer_alone: bool = False) -> list[str]:
    """The texts that count."""
    assert told.result is not None
    cancelled = [answer_text(told.result)] if told.result.stop_reason == "cancelled" else []
    final = [*texts(told.messages), *cancelled]
    return final if not answer_alone else [text for text in [answer_text(told.result)] if text]


CLIENTS = [chat_client, responses_client, a2a_client, ag_ui_client]


@pytest.mark.parametrize("client", CLIENTS)
@given(told=TURNS)
def test_a_strict_client_has_the_stored_answer_or_an_error(
    client: Callable[[PlayedTurn], list[str]], told: PlayedTurn
) -> None:
    try:
        final = client(told)
    except Refused:
        return
    if client is ag_ui_client and told.result is not None and told.result.stop_reason == "cancelled":
        assert final[: len(told.messages)] == texts(told.messages)[: len(final)]
    else:
        assert final == stored(told, answer_alone=client is a2a_client)


@pytest.mark.parametrize("client", CLIENTS)
@given(told=TURNS)
def test_a_turn_without_void_words_is_never_an_error(
    client: Callable[[PlayedTurn], list[str]], told: PlayedTurn
) -> None:
    void = any(isinstance(each, MessageVoid) for each in narration_of(told))
    if not void and told.result is not None and told.result.stop_reason in ("end_turn", "limit_turns"):
        assert client(told) == stored(told, answer_alone=client is a2a_client)


FORTY = [data("The answer is "), data("forty"), retry()]
USE = {"toolUseId": "t1", "name": "look", "input": {}}
LOOKS = [{"message": whole("", "t1")}, {"tool_started": USE}]
LOOKS += [{"tool_finished": {"toolUseId": "t1", "status": "success", "content": []}}]


def answered(*events: dict[str, Any], text: str, stop_reason: str = "end_turn") -> PlayedTurn:
    message = whole(text)
    result = AgentResult(stop_reason=stop_reason, message=message)
    before = [event["message"] for event in events if "message" in event]
    return PlayedTurn([*events, {"message": message}, {"result": result}], [*before, message], result)


@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_that_begins_with_the_void_words_goes_on_behind_them(
    client: Callable[[PlayedTurn], list[str]],
) -> None:
    told = answered(*FORTY, data("The an"), data("swer is forty"), data("-two."), text="The answer is forty-two.")
    assert client(told) == ["The answer is forty-two."]
    twice = answered(*FORTY, data("The"), retry(), data("The answer is forty-two."), text="The answer is forty-two.")
    assert client(twice) == ["The answer is forty-two."]


@pytest.mark.parametrize("client", [chat_client, responses_client])
@pytest.mark.parametrize(
    ("events", "text", "stop_reason", "code"),
    [
        ([*FORTY, data("It is 42.")], "It is 42.", "end_turn", "answer_begun_again"),
        ([*FORTY, data("The answer")], "The answer", "end_turn", "answer_begun_again"),
        ([*FORTY, *LOOKS, data("It is 42.")], "It is 42.", "end_turn", "answer_begun_again"),
        ([*FORTY], "", "end_turn", "answer_begun_again"),
        ([data("my secret")], "[blocked]", "guardrail_intervened", "content_filter"),
        ([data("my secret")], "[edited]", "end_turn", "answer_replaced"),
        ([data("The answer")], "", "end_turn", "answer_replaced"),
    ],
)
def test_words_that_stay_wrong_are_an_error_that_says_why(
    client: Callable[[PlayedTurn], list[str]], events: list[dict[str, Any]], text: str, stop_reason: str, code: str
) -> None:
    with pytest.raises(Refused, match=code):
        client(answered(*events, text=text, stop_reason=stop_reason))


@pytest.mark.parametrize("client", CLIENTS)
def test_reasoning_that_is_void_spoils_no_answer(client: Callable[[PlayedTurn], list[str]]) -> None:
    events = [thought("Hm"), retry(), thought("Well"), data("42")]
    assert client(answered(*events, text="42")) == ["42"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_message_of_tool_uses_alone_does_not_spoil_what_is_said_again_later(
    client: Callable[[PlayedTurn], list[str]],
) -> None:
    assert client(answered(*FORTY, *LOOKS, data("The answer is forty."), text="The answer is forty.")) == [
        "The answer is forty."
    ]


def test_the_error_comes_with_the_first_word_that_differs() -> None:
    stream, narration = ChatStream(Completion("chatcmpl-1", "helper", 1)), EventNarration()
    for event in [*FORTY, data("The answer is ")]:
        for told in narration.tell(event):
            stream.tell(told)
    assert not stream.is_broken
    (error,) = [chunk for told in narration.tell(data("fifty")) for chunk in stream.tell(told)]
    assert error["error"]["code"] == "answer_begun_again"
    assert [chunk for told in narration.tell(data("-two")) for chunk in stream.tell(told)] == []


def test_an_artifact_is_again_what_it_was_as_soon_as_words_are_void() -> None:
    updates, narration = TaskUpdates("t1", "s1", lambda: 1e9), EventNarration()
    events = [data("Let me see."), {"message": whole("Let me see.", "t1")}, *LOOKS[1:], data("It is fo")]
    for event in events:
        for told in narration.tell(event):
            updates.tell(told)
    (update,) = [update for told in narration.tell(retry()) for update in updates.tell(told)]
    assert (update["artifact"]["parts"], update["append"]) == ([{"kind": "text", "text": "Let me see."}], False)


def test_a_tool_call_after_void_words_is_not_theirs() -> None:
    stream, told = RunStream(ThreadRun(thread="s1", run="r1", token="t1")), narrated([*FORTY, *LOOKS])
    started = [event for each in told for event in stream.tell(each) if event["type"] == "TOOL_CALL_START"]
    assert [event.get("parentMessageId") for event in started] == [None]
    assert stream.is_out_of_step


def test_a_pair_of_surrogates_that_pieces_cut_in_two_is_one_character() -> None:
    events = [data("a\ud83d"), data("\ude00b\ud83d"), {"message": whole("a\U0001f600b\ufffd")}]
    assert [each.text for each in narrated(events) if isinstance(each, TextPiece)] == ["a", "\U0001f600b", "\ufffd"]


@pytest.mark.parametrize(("after", "tells"), [(-1, 0), (4, 0), (5, 1), (40, 1)])
def test_a_client_that_resumes_behind_a_retry_gets_an_error(after: int, tells: int) -> None:
    stream = ResponsesStream(HEAD)
    sent = [*stream.begin(), *(event for told in narrated([thought("r")]) for event in stream.tell(told))]
    assert sent[-1]["sequence_number"] == 4
    assert len(stream.resume(after)) == tells
    assert stream.is_broken == bool(tells)
