"""Turns as the event streams of protocols: whatever the events of a turn are, and in whatever order, what a client is
sent is valid by the protocol's own types, and in its order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from a2a.types import SendStreamingMessageSuccessResponse, Task
from ag_ui.core import Event as AgUiEvent
from hypothesis import given
from hypothesis import strategies as st
from openai import NOT_GIVEN
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from repertory import AgentResult, Interrupt
from repertory.service.decisions.a2a import TASK, TaskUpdates, in_words, task_of_result
from repertory.service.decisions.ag_ui import RunStream, ThreadRun, thread_messages
from repertory.service.decisions.narration import (
    EventNarration,
    MessageBegun,
    MessageClosed,
    MessageVoid,
    Narrated,
    ReasoningPiece,
    TextPiece,
    ToolBegan,
    ToolDone,
    TurnDone,
    answer_text,
    spoken,
)
from repertory.service.decisions.openai_chat import ChatStream, Completion
from repertory.service.decisions.openai_responses import RESPONSE, ResponseHead, ResponsesStream
from repertory.service.decisions.questions import asked_questions
from repertory.service.decisions.turn_ids import TurnId
from tests.core.result_strategies import AGENT_RESULTS, JSON, MESSAGES, NAMES
from tests.read_streams import narrated

USES: st.SearchStrategy[Any] = st.builds(
    lambda name, given: {"toolUseId": name, "name": "look", "input": given}, st.sampled_from(["t1", "t2"]), JSON
)
RESULTS: st.SearchStrategy[Any] = st.builds(
    lambda name, content: {"toolUseId": name, "status": "success", "content": content},
    st.sampled_from(["t1", "t2", "t3"]),
    st.lists(st.builds(lambda value: {"json": value}, JSON) | st.builds(lambda text: {"text": text}, st.text())),
)
SPEECH = MESSAGES | st.builds(
    lambda texts: {"role": "assistant", "content": [{"text": text} for text in texts]},
    st.lists(st.sampled_from(["a", "ab", "b"]), max_size=3),
)
ENDS_OF_TURNS = AGENT_RESULTS.filter(
    lambda result: (
        len({each.id for each in result.interrupts}) == len(result.interrupts)
        and max(result.metrics.usage.values()) < 2**53
    )
)
EVENTS: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.one_of(
        st.builds(lambda text: {"data": text, "delta": {}}, st.sampled_from(["", "a", "b", "ü"])),
        st.builds(lambda text: {"reasoning": True, "reasoningText": text, "delta": {}}, st.sampled_from(["", "r"])),
        st.builds(lambda message: {"message": message}, SPEECH),
        st.just({"message": {"role": "user", "content": [{"text": "asked"}]}}),
        st.builds(lambda use: {"tool_started": use}, USES),
        st.builds(lambda result: {"tool_finished": result}, RESULTS),
        st.just({"model_retry": {"attempt": 1, "delay_s": 0.1, "error": None}}),
        st.just({"event": {"messageStart": {"role": "assistant"}}}),
        st.builds(lambda result: {"result": result}, ENDS_OF_TURNS),
    ),
    max_size=12,
)
TURNS = st.builds(lambda events, result: [*events, {"result": result}], EVENTS, ENDS_OF_TURNS)
"""Turns that end with a result, and perhaps before."""


@given(EVENTS)
def test_a_narration_is_in_order_whatever_the_events_are(events: list[dict[str, Any]]) -> None:
    narration = EventNarration()
    told = [each for event in events for each in narration.tell(event)] + narration.cut()
    assert narration.cut() == []
    open_number, number, running, text = 0, 0, set[str](), ""
    for place, each in enumerate(told):
        match each:
            case MessageBegun(new):
                assert (open_number, new) == (0, number + 1)
                open_number = number = new
                text = ""
            case TextPiece(of, piece):
                assert of == open_number
                assert piece
                text += piece
            case ReasoningPiece(of, piece):
                assert of == open_number
                assert piece
            case MessageClosed(of, whole):
                assert (of, whole) == (open_number, text)
                open_number = 0
            case MessageVoid(of):
                assert of == open_number
                open_number = 0
            case ToolBegan(use):
                assert use["toolUseId"] not in running
                running.add(use["toolUseId"])
            case ToolDone(result):
                running.remove(result["toolUseId"])
            case TurnDone():
                assert place == len(told) - 1
    assert open_number == 0


@given(TURNS)
def test_the_last_message_of_a_narration_is_the_answer(events: list[dict[str, Any]]) -> None:
    told = narrated(events)
    result = next(event["result"] for event in events if "result" in event)
    answer = answer_text(result)
    closed = [each.text for each in told if isinstance(each, MessageClosed) and each.text]
    if answer:
        assert closed[-1] == answer


def chat_chunks(told: Sequence[Narrated], *, include_usage: bool) -> list[dict[str, Any]]:
    stream = ChatStream(Completion("chatcmpl-1", "helper", 1), include_usage=include_usage)
    return [chunk for each in told for chunk in stream.tell(each)]


@given(TURNS, st.booleans())
def test_a_chat_stream_is_valid(events: list[dict[str, Any]], include_usage: bool) -> None:
    sent = chat_chunks(narrated(events), include_usage=include_usage)
    broken = bool(sent) and "error" in sent[-1]
    if broken:
        assert sent.pop()["error"]["type"] == "server_error"
    chunks = [ChatCompletionChunk.model_validate_json(json.dumps(chunk), strict=True) for chunk in sent]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    if broken:
        assert set(reasons) == {None}
        return
    assert [reason is not None for reason in reasons] == [False] * (len(reasons) - 1) + [True]
    assert (chunks[-1].usage is not None) == (not chunks[-1].choices) == include_usage


@given(AGENT_RESULTS)
def test_a_completion_is_valid(result: AgentResult) -> None:
    made = ChatCompletion.model_validate_json(json.dumps(Completion("chatcmpl-1", "helper", 1).whole(result)))
    assert made.choices[0].message.content is not None
    assert made.usage is not None
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens


NAMED = ResponseHead(
    id=TurnId("helper", "s1", "t1").written(RESPONSE), agent="helper", token="t1", created=1, conversation="s1"
)
RESPONSE_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def response_events(events: list[dict[str, Any]], *, fails: bool) -> list[dict[str, Any]]:
    stream, narration = ResponsesStream(NAMED), EventNarration()
    sent = [
        *stream.begin(),
        *(made for event in events for told in narration.tell(event) for made in stream.tell(told)),
    ]
    if fails:
        sent += [made for told in narration.cut() for made in stream.tell(told)]
        sent += stream.fail({"code": "server_error", "message": "no"})
    return sent


@given(TURNS | EVENTS)
def test_a_responses_stream_is_valid_and_the_official_client_reads_it(events: list[dict[str, Any]]) -> None:
    fails = not any("result" in event for event in events)
    sent = response_events(events, fails=fails)
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=NOT_GIVEN, text_format=NOT_GIVEN)  # type: ignore[arg-type]
    begun: dict[str, str] = {}
    last: Any = None
    for event in sent:
        last = RESPONSE_EVENTS.validate_json(json.dumps(event))
        if event["type"] == "response.output_item.added":
            assert event["item"]["id"] not in begun
            begun[event["item"]["id"]] = "begun"
        elif event["type"] == "response.output_item.done":
            assert begun[event["item"]["id"]] == "begun"
            begun[event["item"]["id"]] = "done"
        state.handle_event(last)
    if sent[-1]["type"] == "error":
        assert [state for state in begun.values() if state == "begun"] == ["begun"]
        return
    assert set(begun.values()) <= {"done"}
    assert last.response.status in ("completed", "incomplete", "cancelled", "failed")
    assert sent[-1]["response"]["output"] == [
        event["item"] for event in sent if event["type"] == "response.output_item.done"
    ]


@given(AGENT_RESULTS, st.lists(MESSAGES, max_size=3))
def test_a_response_in_one_piece_is_valid(result: AgentResult, messages: list[Any]) -> None:
    made = Response.model_validate_json(json.dumps(NAMED.whole(result, messages)))
    answer = answer_text(result)
    if answer:
        last = [item for item in made.output if item.type == "message"][-1]
        assert last.content[0].text == answer  # type: ignore[union-attr]


TURN = TurnId("helper", "s1", "t1")


def updates_of(pieces: Any = "step") -> TaskUpdates:
    return TaskUpdates(TURN.written(TASK), "s1", lambda: 1e9, pieces=pieces)


@given(TURNS | EVENTS, st.sampled_from(["step", "all", "states"]))
def test_the_updates_of_a_task_are_valid_and_end_once(events: list[dict[str, Any]], pieces: str) -> None:
    updates, narration = updates_of(pieces), EventNarration()
    sent = [
        updates.task("working"),
        *(made for event in events for made in updates.fold(narration.tell(event))),
    ]
    if not any("result" in event for event in events):
        sent.append(updates.end("failed", "no"))
    held = ""
    for event in sent:
        read = SendStreamingMessageSuccessResponse.model_validate_json(json.dumps({"id": 1, "result": event})).result
        if read.kind == "artifact-update":
            text = "".join(part.root.text for part in read.artifact.parts)  # type: ignore[union-attr]
            held = held + text if read.append else text
    assert [event.get("final", False) for event in sent] == [False] * (len(sent) - 1) + [True]
    results = [event["result"] for event in events if "result" in event]
    if results and answer_text(results[0]):
        assert held.endswith(answer_text(results[0])) if pieces == "all" else held == answer_text(results[0])


@given(AGENT_RESULTS, st.lists(MESSAGES, max_size=3), st.none() | st.integers(0, 3))
def test_a_task_is_valid(result: AgentResult, history: list[Any], length: int | None) -> None:
    said = in_words(history, length)
    task = Task.model_validate_json(json.dumps(task_of_result(updates_of(), result, said)))
    assert task.id.startswith(TASK)
    assert len(task.history or ()) == len(said)
    assert length is None or len(said) <= length


AG_UI_EVENTS: TypeAdapter[Any] = TypeAdapter(AgUiEvent)
ENDS = {"TEXT_MESSAGE_START": "TEXT_MESSAGE_END", "REASONING_MESSAGE_START": "REASONING_MESSAGE_END"}
ENDS |= {"REASONING_START": "REASONING_END", "TOOL_CALL_START": "TOOL_CALL_END"}


@given(TURNS | EVENTS, st.lists(MESSAGES, max_size=2))
def test_the_events_of_a_run_are_valid_and_every_part_ends(events: list[dict[str, Any]], messages: list[Any]) -> None:
    stream, narration = RunStream(ThreadRun(thread="s1", run="r1", token="t1")), EventNarration()
    sent = stream.begin({"seen": 1}, messages)
    for event in events:
        for told in narration.tell(event):
            sent += stream.tell(told)
            if isinstance(told, TurnDone):
                sent += stream.end(told.result, told.usage, {}, messages)
    if sent[-1]["type"] != "RUN_FINISHED":
        sent += [made for told in narration.cut() for made in stream.tell(told)] + stream.fail("no", "500")
    open_parts: set[tuple[object, object]] = set()
    for event in sent:
        AG_UI_EVENTS.validate_json(json.dumps(event))
        about = event.get("messageId", event.get("toolCallId"))
        if event["type"] in ENDS:
            assert (event["type"], about) not in open_parts
            open_parts.add((event["type"], about))
        elif event["type"] in ENDS.values():
            open_parts.remove((next(begin for begin, end in ENDS.items() if end == event["type"]), about))
        elif str(event["type"]).endswith(("_CONTENT", "_ARGS")):
            assert any(about == known for _, known in open_parts)
            assert event["delta"] != ""
    assert open_parts == set()
    assert [event["type"] in ("RUN_FINISHED", "RUN_ERROR") for event in sent] == [False] * (len(sent) - 1) + [True]


@given(st.lists(MESSAGES, max_size=3))
def test_messages_of_a_session_have_ids_of_their_own(messages: list[Any]) -> None:
    made = thread_messages("s1", messages)
    assert len({message["id"] for message in made}) == len(made)


@given(NAMES, JSON)
def test_a_question_stands_in_every_protocol(name: str, reason: Any) -> None:
    asked = AgentResult(stop_reason="interrupt", message=None, interrupts=[Interrupt("i1", name, reason)])
    (question,) = asked_questions(asked)
    told = narrated([{"result": asked}])
    chunks = chat_chunks(told, include_usage=False)
    assert question.text in "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    whole = NAMED.whole(asked)
    assert json.loads(json.dumps(whole))["output"][-1]["call_id"] == "t1/i1"
    assert task_of_result(updates_of(), asked)["status"]["state"] == "input-required"  # type: ignore[call-overload,index]
    assert spoken({"role": "assistant", "content": []}) == ""
