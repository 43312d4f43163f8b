"""The Agent2Agent protocol, version 0.3, over JSON-RPC: messages as prompts, and a turn as a task and its updates.

A context is a session, and a task a turn of it. A task's id says which turn it is, so the journal knows the task after
a restart. The id of a message names its turn: a message that is sent again is not heard again.

The artifact with the answer is replaced, not only added to: it has the text of the step that runs. If words that were
sent do not count, because the model broke off and is asked again, it has the text of the step before at once.

Source: the specification at https://a2a-protocol.org, release 0.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from msgspec import Struct

from repertory.core.ids import check_id
from repertory.core.media import media_block, plain_name, read_base64
from repertory.errors import Invalid
from repertory.service.decisions.narration import (
    MessageBegun,
    MessageClosed,
    MessageVoid,
    Narrated,
    TextPiece,
    TurnDone,
    answer_text,
    spoken,
)
from repertory.service.decisions.questions import (
    Question,
    answered_by,
    asked_questions,
    numbered_questions,
    question_text,
    response_to,
)
from repertory.service.decisions.turn_ids import TurnId, digest, read_turn_id

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import ContentBlock, InterruptResponseContent, Json, Message
    from repertory.core.result import AgentResult
    from repertory.service.decisions.sent_again import AnswersWith

PROTOCOL = "0.3.0"
TASK = "task_"
"""The prefix of a task's id."""
ANSWER = "answer"
"""The name of the artifact that holds the agent's answer."""
INTERRUPTS_KEY = "interrupts"
"""The key of a data part that lists the questions that a task waits for."""
INTERRUPT_RESPONSE_KEY = "interruptResponse"
"""The key of a data part that answers one question."""

TaskState = Literal["submitted", "working", "input-required", "completed", "canceled", "failed"]
TaskJson: TypeAlias = "dict[str, Json]"

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
NO_TASK, NOT_CANCELABLE, NO_PUSH, UNSUPPORTED = -32001, -32002, -32003, -32004


class Refused(Exception):
    """An error of the protocol. `code`: JSON-RPC's or the protocol's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class RpcRequest(Struct, frozen=True):
    """A JSON-RPC request."""

    id: str | int | None
    method: str
    params: Mapping[str, object]


def read_request(body: object) -> RpcRequest:
    """The request. Errors: `Refused`."""
    fields = _object(body)
    request_id, method, params = fields.get("id"), fields.get("method"), fields.get("params")
    known = isinstance(request_id, str | int | None) and isinstance(params, dict | None)
    if fields.get("jsonrpc") != "2.0" or not isinstance(method, str) or not known:
        raise Refused(INVALID_REQUEST, "a request has jsonrpc 2.0, a method, an id and params")
    return RpcRequest(cast("str | int | None", request_id), method, _object(cast("object", params)))


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def success(request_id: str | int | None, result: Json) -> TaskJson:
    """The answer to a request."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def failure(request_id: str | int | None, error: Refused) -> TaskJson:
    """The error that answers a request."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": error.code, "message": error.text}}


class Sent(Struct, frozen=True, kw_only=True):
    """A message of a client."""

    message_id: str
    context: str | None
    task: str | None
    """The task that it goes on with."""
    parts: list[Mapping[str, object]]
    blocking: bool
    history_length: int | None


def read_message(params: Mapping[str, object]) -> Sent:
    """The message in the params of `message/send` and `message/stream`. Errors: `Refused`."""
    message, settings = _object(params.get("message")), _object(params.get("configuration"))
    message_id, given = message.get("messageId"), message.get("parts")
    parts = [_object(part) for part in cast("list[object]", given)] if isinstance(given, list) else []
    if not isinstance(message_id, str) or not message_id or not parts:
        raise Refused(INVALID_PARAMS, "message: it has a messageId, a role and parts")
    if message.get("role") != "user":
        raise Refused(INVALID_PARAMS, "message.role: user")
    if settings.get("pushNotificationConfig") is not None:
        raise Refused(NO_PUSH, "push notifications are not supported: stream, or ask for the task")
    return Sent(
        message_id=message_id,
        context=_id_in(message, "contextId"),
        task=_id_in(message, "taskId"),
        parts=parts,
        blocking=settings.get("blocking") is not False,
        history_length=_length_in(settings),
    )


def _id_in(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise Refused(INVALID_PARAMS, f"{name}: text")
    return value


def _length_in(fields: Mapping[str, object]) -> int | None:
    value = fields.get("historyLength")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise Refused(INVALID_PARAMS, "historyLength: a number of messages")
    return value


class TaskQuery(Struct, frozen=True):
    """The task that a request names."""

    turn: TurnId
    history_length: int | None


def read_query(params: Mapping[str, object], agent: str) -> TaskQuery:
    """The task in the params of `tasks/...`. Errors: `Refused`, also for a task of another agent."""
    return TaskQuery(task_turn(params.get("id"), agent), _length_in(params))


def task_turn(given: object, agent: str) -> TurnId:
    """The turn of a task's id. Errors: `Refused`."""
    turn = read_turn_id(TASK, given)
    if turn is None or turn.agent != agent:
        raise Refused(NO_TASK, "no such task")
    return turn


def context_id(given: str) -> str:
    """A context as the id of a session. Errors: `Refused`."""
    try:
        return check_id(given, "contextId")
    except Invalid as error:
        raise Refused(INVALID_PARAMS, str(error)) from None


def message_token(caller: str, message_id: str) -> str:
    """The token of the turn that a caller's message begins."""
    return f"a2a-{digest(caller, message_id)}"


def new_context(caller: str, message_id: str) -> str:
    """The context of a message that names none: the same when it is sent again."""
    return f"ctx-{digest(caller, message_id)[:32]}"


def prompt_of(parts: Sequence[Mapping[str, object]]) -> list[ContentBlock]:
    """A message's parts as content blocks. Errors: `Refused` for no content, and for what cannot be read."""
    try:
        blocks = [_block(part) for part in parts]
    except Invalid as error:
        raise Refused(INVALID_PARAMS, f"a part cannot be read: {error}") from None
    blocks = [block for block in blocks if block.get("text") != ""]
    if not blocks:
        raise Refused(INVALID_PARAMS, "the message has no content")
    return blocks


def _block(part: Mapping[str, object]) -> ContentBlock:
    match part:
        case {"kind": "text", "text": str(text)}:
            return {"text": text if text.strip() else ""}
        case {"kind": "data", "data": dict()}:
            return {"text": data_text(part["data"])}
        case {"kind": "file", "file": dict()}:
            return _file(_object(part["file"]))
        case _:
            raise Invalid("a part is text, data or a file")


def data_text(data: object) -> str:
    """The data of a part as a prompt says it: without indentation, which makes deep values many times as large."""
    return f"Structured data:\n{json.dumps(data, ensure_ascii=False)}"


def _file(file: Mapping[str, object]) -> ContentBlock:
    mime_type, name = str(file.get("mimeType") or ""), str(file.get("name") or "file")
    match file:
        case {"bytes": str(data)}:
            kind = mime_type.partition(";")[0].strip().lower()
            return media_block(read_base64(data, "a file"), kind, plain_name(name))
        case {"uri": str(uri)}:
            return {"text": f"File {name} ({mime_type or 'unknown type'}) at {uri}"}
        case _:
            raise Invalid("a file has bytes or a uri")


def answers_with(sent: Sent) -> AnswersWith:
    """The way in which a message may answer questions."""
    return "nothing" if sent.task is None else "ids" if any(map(_answers_by_data, sent.parts)) else "text"


def answers_in_parts(
    parts: Sequence[Mapping[str, object]], asked: Sequence[Interrupt]
) -> list[InterruptResponseContent]:
    """A message's parts as answers to the questions of its task: data parts, or one text. Errors: `Refused`."""
    given = [_object(part["data"]) for part in parts if _answers_by_data(part)]
    if not given:
        texts = [str(part["text"]) for part in parts if part.get("kind") == "text" and "text" in part]
        if not texts or len(texts) != len(parts):
            raise Refused(INVALID_PARAMS, question_text(numbered_questions(asked)))
        try:
            return answered_by("".join(texts), asked)
        except Invalid as error:
            raise Refused(INVALID_PARAMS, str(error)) from None
    if len(given) != len(parts):
        raise Refused(INVALID_PARAMS, "answers to interrupts stand alone in a message")
    answers: list[InterruptResponseContent] = []
    for each in given:
        answer = _object(each[INTERRUPT_RESPONSE_KEY])
        interrupt_id, response = answer.get("interruptId"), answer.get("response")
        if not isinstance(interrupt_id, str) or response is None:
            raise Refused(INVALID_PARAMS, "an answer is {interruptResponse: {interruptId: text, response: value}}")
        answers.append(response_to(interrupt_id, response))
    return answers


def _answers_by_data(part: Mapping[str, object]) -> bool:
    return part.get("kind") == "data" and INTERRUPT_RESPONSE_KEY in _object(part.get("data"))


class TaskUpdates:
    """A fold of a narration into the updates of a task. `at`: their timestamp, in epoch seconds."""

    def __init__(self, turn: TurnId, at: float) -> None:
        self._turn = turn
        self._id = turn.written(TASK)
        self._at = at
        self._fresh = True
        """True if the next piece replaces the artifact's content."""
        self._has_artifact = False
        self._whole = ""
        """The text of the last message that has ended, which the artifact holds until another one begins."""

    def begin(self, history: Sequence[Message] = ()) -> TaskJson:
        """The task, as it begins."""
        return self.task("working", history)

    def task(
        self,
        state: TaskState,
        history: Sequence[Message] = (),
        *,
        answer: str = "",
        asked: Sequence[Question] = (),
        why: str = "",
    ) -> TaskJson:
        """The task as it is now. `why`: the text about its state."""
        made: TaskJson = {
            "kind": "task",
            "id": self._id,
            "contextId": self._turn.session_id,
            "status": self._status(state, asked, why),
        }
        if answer:
            made["artifacts"] = [self._artifact(answer)]
        if history:
            made["history"] = [self._message(message, index) for index, message in enumerate(history)]
        return made

    def tell(self, part: Narrated) -> list[TaskJson]:
        """The updates that this part of the narration adds; the last one with `TurnDone`."""
        match part:
            case MessageBegun():
                self._fresh = True
                return []
            case TextPiece(_, text):
                return [self._piece(text)]
            case MessageClosed(_, text):
                self._whole = text or self._whole
                return []
            case MessageVoid():
                return [] if self._fresh else self._holding(self._whole)
            case TurnDone(result):
                return self._end(result)
            case _:
                return []

    def fail(self, why: str) -> list[TaskJson]:
        """The last update of a turn that fails."""
        return [self._update("failed", (), why)]

    def _end(self, result: AgentResult) -> list[TaskJson]:
        asked = asked_questions(result)
        due: list[TaskJson] = []
        if self._has_artifact and not asked:
            answer = answer_text(result)
            last = self._piece("") if answer == self._whole else self._holding(answer)[0]
            due.append({**last, "append": answer == self._whole, "lastChunk": True})
        return [*due, self._update(state_of(result), asked)]

    def _holding(self, text: str) -> list[TaskJson]:
        """The update after which the artifact holds this text alone."""
        self._fresh = True
        return [self._piece(text)]

    def _piece(self, text: str) -> TaskJson:
        append, self._fresh, self._has_artifact = not self._fresh, False, True
        return {
            "kind": "artifact-update",
            "taskId": self._id,
            "contextId": self._turn.session_id,
            "artifact": self._artifact(text),
            "append": append,
            "lastChunk": False,
        }

    def _artifact(self, text: str) -> TaskJson:
        return {
            "artifactId": f"{ANSWER}-{digest(self._id)[:12]}",
            "name": ANSWER,
            "parts": [{"kind": "text", "text": text}],
        }

    def _update(self, state: TaskState, asked: Sequence[Question] = (), why: str = "") -> TaskJson:
        return {
            "kind": "status-update",
            "taskId": self._id,
            "contextId": self._turn.session_id,
            "status": self._status(state, asked, why),
            "final": True,
        }

    def _status(self, state: TaskState, asked: Sequence[Question], why: str) -> TaskJson:
        at = datetime.fromtimestamp(self._at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        status: TaskJson = {"state": state, "timestamp": at}
        parts: list[Json] = []
        if asked:
            parts.append({"kind": "text", "text": question_text(asked)})
            listed: list[Json] = [{"interruptId": each.id, "name": each.name, "reason": each.reason} for each in asked]
            parts.append({"kind": "data", "data": {INTERRUPTS_KEY: listed}})
        elif why:
            parts.append({"kind": "text", "text": why})
        if parts:
            status["message"] = self._message_by("agent", f"{digest(self._id)[:16]}-{state}", parts)
        return status

    def _message(self, message: Message, index: int) -> Json:
        role = "user" if message["role"] == "user" else "agent"
        return self._message_by(role, f"{digest(self._id)[:16]}-{index}", [{"kind": "text", "text": spoken(message)}])

    def _message_by(self, role: str, message_id: str, parts: list[Json]) -> TaskJson:
        return {
            "kind": "message",
            "role": role,
            "messageId": message_id,
            "taskId": self._id,
            "contextId": self._turn.session_id,
            "parts": parts,
        }


def state_of(result: AgentResult) -> TaskState:
    """The state of the task whose turn has this result."""
    if result.stop_reason == "interrupt":
        return "input-required"
    return "canceled" if result.stop_reason == "cancelled" else "completed"


def task_of_result(updates: TaskUpdates, result: AgentResult, history: Sequence[Message] = ()) -> TaskJson:
    """The task at its end."""
    return updates.task(state_of(result), history, answer=answer_text(result), asked=asked_questions(result))


def in_words(history: Sequence[Message], length: int | None) -> list[Message]:
    """The messages of a history that have text. `length`: how many at most, the newest; None for all."""
    texts = [message for message in history if spoken(message)]
    return texts if length is None else texts[max(len(texts) - length, 0) :]


def card(
    name: str,
    description: str,
    url: str,
    version: str,
    tools: Sequence[Mapping[str, object]],
    schemes: Mapping[str, Json] | None = None,
) -> TaskJson:
    """The agent's card. `tools`: their specs, each a skill. `schemes`: the security schemes by which callers log in."""
    skills: list[Json] = [
        {"id": str(spec["name"]), "name": str(spec["name"]), "description": str(spec["description"]), "tags": ["tool"]}
        for spec in tools
    ]
    made: TaskJson = {
        "protocolVersion": PROTOCOL,
        "name": name,
        "description": description,
        "url": url,
        "preferredTransport": "JSONRPC",
        "version": version,
        "capabilities": {"streaming": True, "pushNotifications": False, "stateTransitionHistory": False},
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["text/plain"],
        "skills": skills,
    }
    if schemes:
        made["securitySchemes"] = dict(schemes)
        made["security"] = [{scheme: []} for scheme in schemes]
    return made
