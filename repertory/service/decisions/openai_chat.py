"""`POST /v1/chat/completions`: the request as a conversation, and a turn as a completion or its chunks.

The agent is the model. Its tools run at the server, and a completion shows what it said. A stream has the text of every
message of the turn, with an empty line between; a completion in one piece has the answer alone.

Chunks only add. If words that were sent do not count, because the model broke off and is asked again, the stream goes
on behind them when the new answer begins with them; else it ends with an error (`only_adding.py`).

Source: OpenAI's API reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from repertory.service.decisions.narration import MessageBegun, Narrated, TextPiece, TurnDone, answer_text, usage_of
from repertory.service.decisions.only_adding import REASON_CODES, REASON_TEXTS, OnlyAdding, TakenBack
from repertory.service.decisions.openai_fields import (
    ClientMessage,
    Transcript,
    WrongField,
    check_fields,
    error_body,
    error_kind,
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
from repertory.service.decisions.questions import asked_questions, question_text

if TYPE_CHECKING:
    from repertory.core.messages import Json, Usage
    from repertory.core.result import AgentResult
    from repertory.service.decisions.only_adding import Added
    from repertory.service.decisions.openai_fields import Fields

_READ = ("model", "messages", "stream", "stream_options", "conversation", "max_tokens", "max_completion_tokens")
_IGNORED = (
    *("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "user", "metadata", "store"),
    *("service_tier", "reasoning_effort", "verbosity", "safety_identifier", "parallel_tool_calls"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
)
"""The fields that are taken and have no effect, since the agent itself decides how its model is asked."""
KNOWN = frozenset((*_READ, *_IGNORED))
UNSERVED = {
    "n": is_one_of(1),
    "logprobs": is_unset,
    "top_logprobs": is_unset,
    "logit_bias": is_unset,
    "stop": is_unset,
    "tools": is_unset,
    "tool_choice": is_one_of("none", "auto"),
    "functions": is_unset,
    "function_call": is_one_of("none", "auto"),
    "response_format": is_one_of({"type": "text"}),
    "modalities": is_one_of(["text"]),
    "audio": is_unset,
    "prediction": is_unset,
    "web_search_options": is_unset,
    "moderation": is_unset,
}


class ChatRequest(Struct, frozen=True, kw_only=True):
    """The completion that a client asks for."""

    agent: str
    transcript: Transcript
    conversation: str | None
    """The session, when the client names one; then only the newest user message is new."""
    stream: bool
    include_usage: bool
    output_tokens: int | None


def read_chat(body: object) -> ChatRequest:
    """The request. Errors: `WrongField` with the field that is wrong, unknown or not served."""
    fields = check_fields(body, KNOWN, UNSERVED)
    agent = text_field(fields, "model")
    if agent is None:
        raise WrongField("model: the name of an agent; GET /v1/models lists them", param="model")
    messages = objects_at(fields.get("messages"), "messages")
    transcript = read_transcript([_message(message, f"messages[{number}]") for number, message in enumerate(messages)])
    if not transcript.new:
        raise WrongField("messages: the last one is a user's, and not empty", param="messages")
    options = fields_at(fields, "stream_options")
    tokens = positive_field(fields, "max_completion_tokens") or positive_field(fields, "max_tokens")
    return ChatRequest(
        agent=agent,
        transcript=transcript,
        conversation=conversation_in(fields),
        stream=flag_field(fields, "stream"),
        include_usage=flag_field(options, "include_usage"),
        output_tokens=tokens,
    )


def conversation_in(fields: Fields) -> str | None:
    """The session that a request names, by its id or an object with it; None for none. Errors: `WrongField`."""
    value = fields.get("conversation")
    if isinstance(value, dict):
        return text_field(fields_at(fields, "conversation"), "id")
    return text_field(fields, "conversation")


def _message(message: Fields, where: str) -> ClientMessage:
    speaker = speaker_in(message.get("role"), where)
    if message.get("tool_calls") or message.get("function_call"):
        raise WrongField(f"{where}: tools run at the server", param=where, code="unsupported_value")
    content = message.get("content")
    if content is None and speaker == "assistant":
        return ClientMessage(speaker, [])
    return ClientMessage(speaker, read_content(content, f"{where}.content"))


class Completion(Struct, frozen=True):
    """The fields that the completion and the chunks of one turn have in common."""

    id: str
    agent: str
    created: int
    """Epoch seconds."""

    def whole(self, result: AgentResult) -> dict[str, Json]:
        """The completion in one piece."""
        questions = asked_questions(result)
        text = question_text(questions) if questions else answer_text(result)
        message: dict[str, Json] = {"role": "assistant", "content": text, "refusal": None}
        choice: dict[str, Json] = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(result.stop_reason),
        }
        return {**self._head("chat.completion"), "choices": [choice], "usage": completion_usage(usage_of(result))}

    def chunk(self, delta: dict[str, Json], finish: str | None = None) -> dict[str, Json]:
        """One piece of a stream."""
        choice: dict[str, Json] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def usage_chunk(self, usage: Usage) -> dict[str, Json]:
        """The chunk with the usage, the last one of a stream whose client asks for it."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": completion_usage(usage)}

    def _head(self, kind: str) -> dict[str, Json]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.agent, "system_fingerprint": None}


class ChatStream:
    """A fold of a narration into chunks."""

    def __init__(self, completion: Completion, *, include_usage: bool = False) -> None:
        self._completion = completion
        self._include_usage = include_usage
        self._adding = OnlyAdding(reasoning=False)
        self.is_broken = False
        """True once the stream has ended with an error. Nothing follows."""
        self._begun = False
        self._has_text = False
        self._apart = False
        """True if another message begins, so that an empty line is due before its text."""

    def tell(self, part: Narrated) -> list[dict[str, Json]]:
        """The chunks that this adds; those of the end with `TurnDone`, or with an error as soon as one is due."""
        added = self._adding.tell(part)
        return [] if added is None else self._added(added)

    def _added(self, added: Added) -> list[dict[str, Json]]:
        match added:
            case MessageBegun():
                self._apart = self._has_text
                return self._opened()
            case TextPiece(_, text):
                return [*self._opened(), self._completion.chunk({"content": self._piece(text)})]
            case TurnDone(result, usage):
                return [*self._opened(), *self._last(result, usage)]
            case TakenBack(reason):
                self.is_broken = True
                text = f"{REASON_TEXTS[reason]}: send the request again, with its Idempotency-Key if it has one"
                return [error_body(text, error_kind(500), code=REASON_CODES[reason])]
            case _:
                return []

    def _opened(self) -> list[dict[str, Json]]:
        if self._begun:
            return []
        self._begun = True
        return [self._completion.chunk({"role": "assistant", "content": ""})]

    def _piece(self, text: str) -> str:
        apart, self._apart, self._has_text = self._apart, False, True
        return f"\n\n{text}" if apart else text

    def _last(self, result: AgentResult, usage: Usage) -> list[dict[str, Json]]:
        due: list[dict[str, Json]] = []
        questions = asked_questions(result)
        if questions:
            self._apart = self._has_text
            due.append(self._completion.chunk({"content": self._piece(question_text(questions))}))
        due.append(self._completion.chunk({}, finish_reason(result.stop_reason)))
        if self._include_usage:
            due = [{**chunk, "usage": None} for chunk in due] + [self._completion.usage_chunk(usage)]
        return due


def finish_reason(stop_reason: str) -> str:
    """The reason of the completion's end, in OpenAI's words."""
    return "length" if is_cut_off(stop_reason) else "content_filter" if is_filtered(stop_reason) else "stop"


def completion_usage(usage: Usage) -> dict[str, Json]:
    """The tokens of the turn, all its model calls together."""
    read, cached, written = token_counts(usage)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def models_body(agents: list[str], owner: str) -> dict[str, Json]:
    """The answer to `GET /v1/models`."""
    return {"object": "list", "data": [model_fields(name, owner) for name in agents]}


def model_fields(agent: str, owner: str) -> dict[str, Json]:
    """An agent as a model."""
    return {"id": agent, "object": "model", "created": 0, "owned_by": owner}
