"""AG-UI 1.0: the input of a run, and a turn as its events.

A thread is a session, and a run a turn of it. A client sends its whole list of messages with each run; the session has
them, so only the user messages after the last one of the agent are new. Questions to a person end a run with the
outcome `interrupt`, and the `resume` of a later run answers them.

No event takes the text of one message back. If words that were sent do not count, because the model broke off and is
asked again, their message ends, the next try is a message of its own, and a `MESSAGES_SNAPSHOT` before the end of the
run, also of one that fails, leaves only the messages that count.

Source: the specification of the Agent User Interaction Protocol, https://docs.ag-ui.com.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias, cast

from msgspec import Struct

from repertory.core.ids import check_id
from repertory.core.media import media_block, plain_name, read_base64
from repertory.errors import Invalid
from repertory.service.decisions.narration import (
    MessageBegun,
    MessageClosed,
    MessageVoid,
    Narrated,
    ReasoningPiece,
    TextPiece,
    ToolBegan,
    ToolDone,
    TurnDone,
    reasoned,
    spoken,
)
from repertory.service.decisions.questions import (
    Question,
    asked_questions,
    question_name,
    read_question_name,
    response_to,
)
from repertory.service.decisions.turn_ids import digest

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, InterruptResponseContent, Json, Message, Usage
    from repertory.core.result import AgentResult

PROTOCOL = "1.0"
Event: TypeAlias = "dict[str, Json]"

_KNOWN = frozenset(
    (
        *("threadId", "runId", "protocolVersion", "parentRunId", "state", "messages", "tools", "context"),
        *("forwardedProps", "resume"),
    )
)


class RunInput(Struct, frozen=True, kw_only=True):
    """The run that a client asks for."""

    thread: str
    run: str
    parent: str | None
    new: list[ContentBlock]
    """The content that the user sent after the agent's last message."""
    token: str
    """The token of the turn: the run's own, or that of the turn whose questions are answered."""
    answers: list[InterruptResponseContent]
    sent: list[Event]
    """The messages of `new`, as the client has sent them."""
    knows_agent: bool
    """True if the client has a message of the agent."""


def read_run_input(body: object) -> RunInput:
    """The run. Errors: `Invalid` with the field that is wrong, unknown or not served."""
    if not isinstance(body, Mapping):
        raise Invalid("the body is a RunAgentInput")
    fields = cast("Mapping[str, object]", body)
    unknown = sorted(fields.keys() - _KNOWN)
    if unknown:
        raise Invalid(f"unknown fields: {', '.join(unknown)[:200]}")
    if fields.get("tools"):
        raise Invalid("tools: the tools of this agent run at the server; those of a page are not served")
    run = check_id(fields.get("runId"), "runId")
    parent = fields.get("parentRunId")
    token, answers = _answers(fields.get("resume"))
    messages = _objects(fields.get("messages"), "messages")
    newest = [] if answers else _newest(messages)
    new = [block for index, message in enumerate(newest) for block in _content(message.get("content"), f"new[{index}]")]
    if not answers and not new:
        raise Invalid("messages: a user's message follows that of the agent, or resume answers questions")
    return RunInput(
        thread=check_id(fields.get("threadId"), "threadId"),
        run=run,
        parent=parent if isinstance(parent, str) else None,
        new=[*_context(fields.get("context")), *new] if new else [],
        token=token or run,
        answers=answers,
        sent=[cast("Event", dict(message)) for message in newest],
        knows_agent=len(newest) < len([one for one in messages if one.get("role") in ("user", "assistant")]),
    )


def _objects(value: object, what: str) -> Sequence[Mapping[str, object]]:
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(item, Mapping) for item in items):
        raise Invalid(f"{what}: a list of objects")
    return cast("Sequence[Mapping[str, object]]", items)


def _newest(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The user messages after the agent's last one. What a page says as its system is left out: the agent has a system
    prompt of its own.
    """
    newest: list[Mapping[str, object]] = []
    for number, message in enumerate(messages):
        match message:
            case {"role": "user"}:
                newest.append(message)
            case {"role": "assistant" | "tool"}:
                newest = []
            case {"role": "system" | "developer" | "reasoning" | "activity"}:
                pass
            case _:
                raise Invalid(f"messages[{number}]: a message has a role")
    return newest


def _content(content: object, where: str) -> list[ContentBlock]:
    if isinstance(content, str):
        return [{"text": content}] if content.strip() else []
    blocks: list[ContentBlock] = []
    for number, part in enumerate(_objects(content, where)):
        what = f"{where}[{number}]"
        match part:
            case {"type": "text", "text": str(text)}:
                if text.strip():
                    blocks.append({"text": text})
            case {
                "type": "image" | "document" | "video",
                "source": {"type": "data", "value": str(data), "mimeType": str(mime_type)},
            }:
                blocks.append(media_block(read_base64(data, what), mime_type, _file_name(part.get("metadata"))))
            case _:
                raise Invalid(f"{what}: text, or an image, document or video as data")
    return blocks


def _file_name(metadata: object) -> str:
    match metadata:
        case {"filename": str(name)} if name:
            return plain_name(name)
        case _:
            return "file"


def _context(value: object) -> list[ContentBlock]:
    """The page's description of itself, which comes before the user's content."""
    blocks: list[ContentBlock] = []
    for item in _objects([] if value is None else value, "context"):
        blocks.append({"text": f"{item.get('description', '')}:\n{item.get('value', '')}"})
    return blocks


def _answers(value: object) -> tuple[str | None, list[InterruptResponseContent]]:
    token: str | None = None
    answers: list[InterruptResponseContent] = []
    for entry in _objects([] if value is None else value, "resume"):
        named = entry.get("interruptId")
        found = read_question_name(named) if isinstance(named, str) else None
        if found is None or token not in (None, found[0]):
            raise Invalid("resume: the ids of interrupts of one run")
        token = check_id(found[0], "interruptId")
        if entry.get("status") == "cancelled":
            # False is a no for every reader, a program's own `if answer:` included.
            answers.append(response_to(found[1], False))
        elif entry.get("status") == "resolved":
            answers.append(response_to(found[1], entry.get("payload")))
        else:
            raise Invalid("resume: a status is resolved or cancelled")
    return token, answers


class ThreadRun(Struct, frozen=True, kw_only=True):
    """The fields that all events of a run have in common."""

    thread: str
    run: str
    token: str
    parent: str | None = None

    def message_id(self, number: int) -> str:
        """The id of a message of the agent; the same in each narration of the turn."""
        return f"msg_{digest(self.thread, self.token)[:24]}_{number}"


class RunStream:
    """A fold of a narration into events."""

    def __init__(self, run: ThreadRun) -> None:
        self._run = run
        self._parts = 0
        self._open: tuple[str, str] | None = None
        """The kind and the id of the message that is under way."""
        self._tools: list[str] = []
        """The ids of tool calls without a result."""
        self._void = False
        self._parent: str | None = None
        """The id of the last message of the agent that counts."""

    def begin(
        self, state: Mapping[str, Json], messages: Sequence[Message] = (), sent: Sequence[Event] = ()
    ) -> list[Event]:
        """The events before the narration. `state`: the agent's. `messages`: those of the session so far, for a client
        that does not know them; `sent`: its own new ones.
        """
        started: Event = {
            "type": "RUN_STARTED",
            "threadId": self._run.thread,
            "runId": self._run.run,
            "protocolVersion": PROTOCOL,
        }
        if self._run.parent is not None:
            started["parentRunId"] = self._run.parent
        due: list[Event] = [started, {"type": "STATE_SNAPSHOT", "snapshot": dict(state)}]
        return [*due, self._snapshot(messages, sent)] if messages else due

    @property
    def is_out_of_step(self) -> bool:
        """True if the client has received messages that do not count, and needs those of the session."""
        return self._void

    def _snapshot(self, messages: Sequence[Message], sent: Sequence[Event] = ()) -> Event:
        known: list[Json] = [*thread_messages(self._run.thread, messages)]
        # Under the client's own ids they would stay in front of the others, which it does not know.
        for index, message in enumerate(sent, len(messages)):
            known.append({**message, "id": f"{digest(self._run.thread)[:16]}_{index}"})
        return {"type": "MESSAGES_SNAPSHOT", "messages": known}

    def tell(self, part: Narrated) -> list[Event]:
        """The events that this part of the narration adds."""
        match part:
            case TextPiece(_, text):
                return [*self._turned_to("text"), self._piece("TEXT_MESSAGE_CONTENT", text)]
            case ReasoningPiece(_, text):
                return [*self._turned_to("reasoning"), self._piece("REASONING_MESSAGE_CONTENT", text)]
            case MessageBegun() | MessageClosed() | MessageVoid():
                if isinstance(part, MessageVoid):
                    self._void, self._parent = True, None
                return self._closed()
            case ToolBegan(use):
                return [*self._closed(), *self._call(use["toolUseId"], use["name"], use["input"])]
            case ToolDone(result):
                return self._result(result["toolUseId"], result["content"])
            case TurnDone():
                return self._closed()

    def end(
        self, result: AgentResult, usage: Usage, state: Mapping[str, Json], messages: Sequence[Message] = ()
    ) -> list[Event]:
        """The last events. `state`: the agent's at the end; `messages`: those of the session, for a client that is out
        of step.
        """
        finished: Event = {"type": "RUN_FINISHED", "threadId": self._run.thread, "runId": self._run.run}
        questions = asked_questions(result)
        if questions:
            finished["outcome"] = {
                "type": "interrupt",
                "interrupts": [self._interrupt(question) for question in questions],
            }
        elif result.stop_reason == "cancelled":
            finished["outcome"] = {"type": "cancelled"}
        else:
            finished["outcome"] = {"type": "success"}
        read, written = usage["inputTokens"], usage["outputTokens"]
        if read or written:
            finished["usage"] = [{"inputTokens": read, "outputTokens": written, "totalTokens": usage["totalTokens"]}]
        return [
            *self._closed(),
            {"type": "STATE_SNAPSHOT", "snapshot": dict(state)},
            *([self._snapshot(messages)] if messages else []),
            finished,
        ]

    def fail(self, message: str, code: str, messages: Sequence[Message] = ()) -> list[Event]:
        """The last events when the turn fails. `messages`: those of the session, for a client that is out of step."""
        snapshot = [self._snapshot(messages)] if messages else []
        return [*self._closed(), *snapshot, {"type": "RUN_ERROR", "message": message, "code": code}]

    def _turned_to(self, kind: str) -> list[Event]:
        if self._open is not None and self._open[0] == kind:
            return []
        due = self._closed()
        self._parts += 1
        message = self._run.message_id(self._parts)
        self._open = kind, message
        if kind == "text":
            self._parent = message
            return [*due, {"type": "TEXT_MESSAGE_START", "messageId": message, "role": "assistant"}]
        return [
            *due,
            {"type": "REASONING_START", "messageId": message},
            {"type": "REASONING_MESSAGE_START", "messageId": message, "role": "reasoning"},
        ]

    def _piece(self, kind: str, text: str) -> Event:
        assert self._open is not None
        return {"type": kind, "messageId": self._open[1], "delta": text}

    def _closed(self) -> list[Event]:
        if self._open is None:
            return []
        (kind, message), self._open = self._open, None
        if kind == "text":
            return [{"type": "TEXT_MESSAGE_END", "messageId": message}]
        return [
            {"type": "REASONING_MESSAGE_END", "messageId": message},
            {"type": "REASONING_END", "messageId": message},
        ]

    def _call(self, call: str, name: str, given: Json) -> list[Event]:
        self._tools.append(call)
        start: Event = {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": name}
        if self._parent is not None:
            start["parentMessageId"] = self._parent
        return [
            start,
            {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": json.dumps(given, ensure_ascii=False)},
            {"type": "TOOL_CALL_END", "toolCallId": call},
        ]

    def _result(self, call: str, content: Sequence[Mapping[str, object]]) -> list[Event]:
        if call not in self._tools:
            return []
        self._tools.remove(call)
        message = f"{self._run.message_id(0)}_{digest(call)[:12]}"
        return [
            {
                "type": "TOOL_CALL_RESULT",
                "messageId": message,
                "toolCallId": call,
                "role": "tool",
                "content": result_text(content),
            }
        ]

    def _interrupt(self, question: Question) -> Json:
        asked: dict[str, Json] = {
            "id": question_name(self._run.token, question.id),
            "reason": "input_required",
            "message": question.text,
            "metadata": {"name": question.name, "reason": question.reason},
        }
        if question.expires_at is not None:
            until = datetime.fromtimestamp(question.expires_at, UTC)
            asked["expiresAt"] = until.isoformat().replace("+00:00", "Z")
        return asked


def thread_messages(thread: str, messages: Sequence[Message]) -> list[Event]:
    """The messages of a session as the protocol has them. Their ids are made of the thread and their place."""
    made: list[Event] = []
    for index, message in enumerate(messages):
        about = f"{digest(thread)[:16]}_{index}"
        if message["role"] == "assistant":
            made += _of_agent(about, message)
            continue
        for block in message["content"]:
            if "toolResult" in block:
                result = block["toolResult"]
                call, content = result["toolUseId"], result_text(result["content"])
                made.append(
                    {"id": f"{about}_{digest(call)[:12]}", "role": "tool", "toolCallId": call, "content": content}
                )
        if text := spoken(message):
            made.append({"id": about, "role": "user", "content": text})
    return made


def _of_agent(about: str, message: Message) -> list[Event]:
    made: list[Event] = []
    if reasoning := reasoned(message):
        made.append({"id": f"{about}_reasoning", "role": "reasoning", "content": reasoning})
    calls: list[Json] = [
        {
            "id": block["toolUse"]["toolUseId"],
            "type": "function",
            "function": {"name": block["toolUse"]["name"], "arguments": json.dumps(block["toolUse"]["input"])},
        }
        for block in message["content"]
        if "toolUse" in block
    ]
    event: Event = {"id": about, "role": "assistant", "content": spoken(message)}
    return [*made, {**event, "toolCalls": calls} if calls else event]


def result_text(content: Sequence[Mapping[str, object]]) -> str:
    """A tool's result as text; media by their kind."""
    texts: list[str] = []
    for part in content:
        match part:
            case {"text": str(text)}:
                texts.append(text)
            case {"json": value}:
                texts.append(json.dumps(value, ensure_ascii=False, default=str))
            case _:
                texts.append(f"({', '.join(part)})")
    return "\n".join(texts)
