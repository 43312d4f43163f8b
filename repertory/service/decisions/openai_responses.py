"""`/v1/responses`: the request, and a turn as a response or its events.

Each message of the agent is an output item, reasoning another one before it; the last message is the answer, those
before it say what the agent is about to do. Tools run at the server and are not shown. A question to a person is a
message in words and one `function_call` for each question, which a `function_call_output` answers, or the next text.

Items only grow. If words that were sent do not count, because the model broke off and is asked again, their item goes
on behind them when the new answer begins with them; else the stream ends with the event `error`, and the response has
the answer when it is retrieved. Reasoning that does not count is an `incomplete` item of the response.

Source: OpenAI's API reference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct

from repertory.service.decisions.narration import (
    MessageClosed,
    MessageVoid,
    Narrated,
    ReasoningPiece,
    TextPiece,
    TurnDone,
    answer_text,
    reasoned,
    spoken,
    usage_of,
)
from repertory.service.decisions.only_adding import REASON_CODES, REASON_TEXTS, OnlyAdding, TakenBack
from repertory.service.decisions.openai_chat import conversation_in
from repertory.service.decisions.openai_fields import (
    ClientMessage,
    Transcript,
    WrongField,
    check_fields,
    fields_at,
    flag_field,
    is_cut_off,
    is_filtered,
    is_one_of,
    is_unset,
    objects_at,
    positive_field,
    read_content,
    read_transcript,
    speaker_in,
    text_field,
    token_counts,
)
from repertory.service.decisions.questions import (
    Question,
    asked_questions,
    question_name,
    question_text,
    read_question_name,
)
from repertory.service.decisions.turn_ids import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.core.messages import Json, Message, Usage
    from repertory.core.result import AgentResult
    from repertory.service.decisions.only_adding import Added, TakenBackReason
    from repertory.service.decisions.openai_fields import Accepts, Fields

_READ = (
    *("model", "input", "instructions", "conversation", "previous_response_id", "stream", "stream_options"),
    *("background", "store", "max_output_tokens", "metadata"),
)
_IGNORED = (
    *("temperature", "top_p", "user", "service_tier", "reasoning", "safety_identifier", "parallel_tool_calls"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "truncation", "include"),
)
"""The fields that are taken and have no effect, since the agent itself decides how its model is asked."""
KNOWN = frozenset((*_READ, *_IGNORED))
UNSERVED: Mapping[str, Accepts] = {
    "tools": is_unset,
    "tool_choice": is_one_of("none", "auto"),
    "max_tool_calls": is_unset,
    "text": is_one_of({}, {"format": {"type": "text"}}, {"verbosity": "medium"}),
    "prompt": is_unset,
    "top_logprobs": is_unset,
    "moderation": is_unset,
    "context_management": is_unset,
    "background_options": is_unset,
    "access_programs": is_unset,
    "image": is_unset,
}
RESPONSE = "resp_"
"""The prefix of a response's id."""
METADATA_MAX = 16
"""The most keys of `metadata`, as at OpenAI; it is given back in the answer to the request, and not stored."""

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class ResponsesRequest(Struct, frozen=True, kw_only=True):
    """The response that a client asks for."""

    agent: str | None
    """The agent's name; None: the agent of the previous response."""
    transcript: Transcript
    answers: Mapping[str, str]
    """Question name to response: the results of `function_call` items."""
    conversation: str | None
    previous: str | None
    stream: bool
    background: bool
    store: bool
    output_tokens: int | None
    metadata: Mapping[str, str]


def read_responses(body: object) -> ResponsesRequest:
    """The request. Errors: `WrongField` with the field that is wrong, unknown or not served."""
    fields = check_fields(body, KNOWN, UNSERVED)
    sent, answers = _input(fields.get("input"))
    instructions = text_field(fields, "instructions")
    if instructions is not None:
        sent.insert(0, ClientMessage("system", [{"text": instructions}]))
    request = ResponsesRequest(
        agent=text_field(fields, "model"),
        transcript=read_transcript(sent),
        answers=answers,
        conversation=conversation_in(fields),
        previous=text_field(fields, "previous_response_id"),
        stream=flag_field(fields, "stream"),
        background=flag_field(fields, "background"),
        store=flag_field(fields, "store", default=True),
        output_tokens=positive_field(fields, "max_output_tokens"),
        metadata=_metadata(fields),
    )
    _check(request)
    return request


def _check(request: ResponsesRequest) -> None:
    if request.agent is None and request.previous is None:
        raise WrongField("model: the name of an agent; GET /v1/models lists them", param="model")
    if request.previous is not None and request.conversation is not None:
        text = "previous_response_id and conversation: give one of them"
        raise WrongField(text, param="previous_response_id", code="mutually_exclusive_parameters")
    stored = request.conversation or request.previous
    if not request.store and (request.background or stored):
        raise WrongField("store: what goes on later is stored", param="store", code="unsupported_value")
    if request.answers and (request.transcript.messages or not stored):
        raise WrongField("input: answers to questions stand alone, in a conversation", param="input")
    if not request.answers and not request.transcript.new:
        raise WrongField("input: the last message is a user's, and not empty", param="input")


def _input(value: object) -> tuple[list[ClientMessage], dict[str, str]]:
    if isinstance(value, str):
        return [ClientMessage("user", read_content(value, "input"))], {}
    sent: list[ClientMessage] = []
    answers: dict[str, str] = {}
    for number, item in enumerate(objects_at(value, "input")):
        place = f"input[{number}]"
        match item:
            case {"type": "function_call_output", "call_id": str(call_id), "output": str(output)}:
                if read_question_name(call_id) is None or call_id in answers:
                    raise WrongField(f"{place}.call_id: a question of this server, once", param=f"{place}.call_id")
                answers[call_id] = output
            case {"role": role, "content": content, **more} if more.get("type", "message") == "message":
                sent.append(ClientMessage(speaker_in(role, place), read_content(content, f"{place}.content")))
            case {"type": "reasoning"} | {"type": "function_call"}:
                continue  # Items of earlier responses: the session knows them.
            case _:
                raise WrongField(f"{place}: not served here", param=place, code="unsupported_value")
    return sent, answers


def _metadata(fields: Fields) -> Mapping[str, str]:
    given = fields_at(fields, "metadata")
    if len(given) > METADATA_MAX or not all(isinstance(value, str) and len(value) <= 512 for value in given.values()):
        raise WrongField(f"metadata: at most {METADATA_MAX} short texts", param="metadata")
    return cast("Mapping[str, str]", given)


class ResponseHead(Struct, frozen=True, kw_only=True):
    """The fields that all events of one response have in common."""

    id: str
    agent: str
    token: str
    created: int
    """Epoch seconds."""
    conversation: str | None
    """The session; None for one that is not stored."""
    previous: str | None = None
    background: bool = False
    store: bool = True
    output_tokens: int | None = None
    metadata: Mapping[str, str] = {}

    def fields(
        self,
        status: ResponseStatus,
        output: Sequence[Json] = (),
        *,
        usage: Usage | None = None,
        error: Mapping[str, Json] | None = None,
        reason: str | None = None,
    ) -> dict[str, Json]:
        """The response as it is. `reason`: why it is incomplete."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": self.background,
            "completed_at": None,
            "error": None if error is None else dict(error),
            "incomplete_details": None if reason is None else {"reason": reason},
            "instructions": None,
            "max_output_tokens": self.output_tokens,
            "metadata": dict(self.metadata),
            "model": self.agent,
            "output": [*output],
            "parallel_tool_calls": True,
            "previous_response_id": self.previous,
            "conversation": None if self.conversation is None else {"id": self.conversation},
            "reasoning": None,
            "store": self.store,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": None if usage is None else response_usage(usage),
        }

    def ended(self, result: AgentResult, output: Sequence[Json], usage: Usage) -> dict[str, Json]:
        """The response at its end."""
        reason = "content_filter" if is_filtered(result.stop_reason) else None
        reason = "max_output_tokens" if is_cut_off(result.stop_reason) else reason
        status: ResponseStatus = "completed" if reason is None else "incomplete"
        if result.stop_reason == "cancelled":
            status = "cancelled"
        return self.fields(status, output, usage=usage, reason=reason)

    def whole(self, result: AgentResult, messages: Sequence[Message] = ()) -> dict[str, Json]:
        """The response in one piece. `messages`: those of the agent in the turn; else the answer alone is known."""
        replies = [message for message in messages if message["role"] == "assistant"]
        answer = answer_text(result)
        if result.message is not None and answer and (not replies or spoken(replies[-1]) != answer):
            replies.append(result.message)
        output: list[Json] = []
        for message in replies:
            if reasoning := reasoned(message):
                output.append(reasoning_item(self.item_id(len(output)), reasoning))
            if text := spoken(message):
                calls = any("toolUse" in block for block in message["content"])
                output.append(message_item(self.item_id(len(output)), text, calls=calls))
        output += self.question_items(asked_questions(result), len(output))
        return self.ended(result, output, usage_of(result))

    def item_id(self, place: int) -> str:
        """The id of the output item at a place; the same in each narration of the turn."""
        return f"item_{digest(self.id)[:24]}_{place}"

    def question_items(self, questions: Sequence[Question], place: int) -> list[Json]:
        """The items that ask a person."""
        if not questions:
            return []
        items: list[Json] = [message_item(self.item_id(place), question_text(questions))]
        for question in questions:
            items.append(
                {
                    "type": "function_call",
                    "id": self.item_id(place + question.number),
                    "call_id": question_name(self.token, question.id),
                    "name": question.name,
                    "arguments": json.dumps({"reason": question.reason}),
                    "status": "completed",
                }
            )
        return items


def message_item(item_id: str, text: str | None, *, calls: bool = False, status: str = "completed") -> dict[str, Json]:
    """A message of the agent; `text`: None for one that begins."""
    content: list[Json] = [] if text is None else [text_part(text)]
    item: dict[str, Json] = {
        "type": "message",
        "id": item_id,
        "status": status,
        "role": "assistant",
        "content": content,
    }
    return {**item, "phase": "commentary"} if calls else item


def reasoning_item(item_id: str, text: str | None, *, status: str = "completed") -> dict[str, Json]:
    """The reasoning of the model; `text`: None for one that begins."""
    content: list[Json] = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": item_id, "status": status, "summary": [], "content": content}


def text_part(text: str) -> dict[str, Json]:
    """The one part of a message's content."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class _Item(Struct):
    """The output item that is under way."""

    place: int
    id: str
    reasoning: bool
    text: list[str]


class ResponsesStream:
    """A fold of a narration into events, numbered from 0."""

    def __init__(self, named: ResponseHead) -> None:
        self._named = named
        self._adding = OnlyAdding(reasoning=True)
        self.is_broken = False
        """True once the stream has ended with an error. Nothing follows."""
        self._number = 0
        self._places = 0
        """The number of items that have begun, which is the place of the next: no two have the same."""
        self._output: list[Json] = []
        """The items that have ended, as the client has them."""
        self._item: _Item | None = None

    def resume(self, after: int) -> list[dict[str, Json]]:
        """The events for a client that has those up to the number `after`, when the model has been asked again here: an
        error, if it may have words of the answer that does not count.
        """
        return [self._broken("again")] if self._number <= after else []

    def begin(self) -> list[dict[str, Json]]:
        """The events before the narration."""
        begun = self._named.fields("in_progress")
        return [self._event("created", {"response": begun}), self._event("in_progress", {"response": begun})]

    def tell(self, part: Narrated) -> list[dict[str, Json]]:
        """The events that this adds; those of the end with `TurnDone`, or with an error as soon as one is due."""
        added = self._adding.tell(part)
        return [] if added is None else self._added(added)

    def _added(self, added: Added) -> list[dict[str, Json]]:
        match added:
            case TextPiece(_, text):
                return [*self._turned_to(reasoning=False), self._delta(text)]
            case ReasoningPiece(_, text):
                return [*self._turned_to(reasoning=True), self._delta(text)]
            case MessageClosed(_, _, _, calls):
                return self._done(calls=calls)
            case MessageVoid():
                return self._done(status="incomplete")
            case TurnDone(result, usage):
                return self._end(result, usage)
            case TakenBack("cancelled", TurnDone(result, usage)):
                due = self._done(status="incomplete")
                return [*due, self._last(self._named.ended(result, self._output, usage))]
            case TakenBack(reason):
                return [self._broken(reason)]
            case _:
                return []

    def fail(self, error: Mapping[str, Json]) -> list[dict[str, Json]]:
        """The last events when the turn fails. `error`: its `code` and `message`."""
        due = self._done(status="incomplete")
        return [*due, self._last(self._named.fields("failed", self._output, error=error))]

    def _end(self, result: AgentResult, usage: Usage) -> list[dict[str, Json]]:
        due: list[dict[str, Json]] = []
        for item in self._named.question_items(asked_questions(result), self._places):
            due += self._whole_item(cast("dict[str, Json]", item))
        return [*due, self._last(self._named.ended(result, self._output, usage))]

    def _last(self, response: dict[str, Json]) -> dict[str, Json]:
        kind = response["status"] if response["status"] in ("completed", "failed") else "incomplete"
        return self._event(str(kind), {"response": response})

    def _broken(self, reason: TakenBackReason) -> dict[str, Json]:
        self.is_broken = True
        number, self._number = self._number, self._number + 1
        next_move = "retrieve the response" if self._named.store else "send the request again"
        return {
            "type": "error",
            "sequence_number": number,
            "code": REASON_CODES[reason],
            "message": f"{REASON_TEXTS[reason]}: {next_move}",
            "param": None,
        }

    def _whole_item(self, item: dict[str, Json]) -> list[dict[str, Json]]:
        if item["type"] == "message":
            text = cast("list[dict[str, str]]", item["content"])[0]["text"]
            return [*self._turned_to(reasoning=False), self._delta(text), *self._done()]
        place = {"output_index": self._next_index()}
        self._output.append(item)
        about: dict[str, Json] = {"item_id": item["id"], **place}
        return [
            self._event("output_item.added", {"item": {**item, "arguments": "", "status": "in_progress"}, **place}),
            self._event("function_call_arguments.delta", {"delta": item["arguments"], **about}),
            self._event(
                "function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"], **about}
            ),
            self._event("output_item.done", {"item": item, **place}),
        ]

    def _turned_to(self, *, reasoning: bool) -> list[dict[str, Json]]:
        """The events with which an item of this kind begins, unless it has begun."""
        if self._item is not None and self._item.reasoning is reasoning:
            return []
        due, place = self._done(calls=not reasoning), self._next_index()
        self._item = item = _Item(place, self._named.item_id(place), reasoning, [])
        begun = self._whole(item, None, status="in_progress")
        part: dict[str, Json] = {"type": "reasoning_text", "text": ""} if reasoning else text_part("")
        due.append(self._event("output_item.added", {"item": begun, "output_index": place}))
        due.append(self._event("content_part.added", {"part": part, **_about(item)}))
        return due

    def _delta(self, text: str) -> dict[str, Json]:
        assert self._item is not None
        self._item.text.append(text)
        if self._item.reasoning:
            return self._event("reasoning_text.delta", {"delta": text, **_about(self._item)})
        return self._event("output_text.delta", {"delta": text, "logprobs": [], **_about(self._item)})

    def _done(self, *, calls: bool = False, status: str = "completed") -> list[dict[str, Json]]:
        """The events with which the item ends that is under way, if any."""
        item, self._item = self._item, None
        if item is None:
            return []
        text, about = "".join(item.text), _about(item)
        whole = self._whole(item, text, calls=calls, status=status)
        self._output.append(whole)
        if item.reasoning:
            part: dict[str, Json] = {"type": "reasoning_text", "text": text}
            done = self._event("reasoning_text.done", {"text": text, **about})
        else:
            part = text_part(text)
            done = self._event("output_text.done", {"text": text, "logprobs": [], **about})
        return [
            done,
            self._event("content_part.done", {"part": part, **about}),
            self._event("output_item.done", {"item": whole, "output_index": item.place}),
        ]

    def _whole(self, item: _Item, text: str | None, *, status: str, calls: bool = False) -> dict[str, Json]:
        if item.reasoning:
            return reasoning_item(item.id, text, status=status)
        return message_item(item.id, text, calls=calls, status=status)

    def _next_index(self) -> int:
        place, self._places = self._places, self._places + 1
        return place

    def _event(self, kind: str, fields: Mapping[str, Json]) -> dict[str, Json]:
        number, self._number = self._number, self._number + 1
        return {"type": f"response.{kind}", "sequence_number": number, **fields}


def _about(item: _Item) -> dict[str, Json]:
    return {"item_id": item.id, "output_index": item.place, "content_index": 0}


def response_usage(usage: Usage) -> dict[str, Json]:
    """The tokens of the turn, all its model calls together."""
    read, cached, written = token_counts(usage)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": usage.get("cacheWriteInputTokens", 0)},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


def error_code(status: int) -> str:
    """The code of a failed response."""
    return "rate_limit_exceeded" if status == 429 else "invalid_prompt" if status in (400, 413, 422) else "server_error"
