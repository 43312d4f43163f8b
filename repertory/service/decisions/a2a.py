"""The Agent2Agent protocol, version 0.3, over JSON-RPC: messages as prompts, and a turn as a task and its updates.

Two servers stand on it, `service/http/a2a.py` and the SDK's `compat/a2a_server.py`. In the first a context is a
session, and a task a turn of it. A task's id says which turn it is, so the journal knows the task after a restart. The
id of a message names its turn: a message that is sent again is not heard again.

The artifact with the answer is replaced, not only added to: it has the text of the step that runs. If words that were
sent do not count, because the model broke off and is asked again, it has the text of the step before at once.

Source: the specification at https://a2a-protocol.org, release 0.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct

from repertory.service.decisions.a2a_parts import TaskJson, answers_by_data, asking_parts, object_in, part_of_text
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
from repertory.service.decisions.questions import Question, asked_questions
from repertory.service.decisions.turn_ids import TurnId, digest, read_turn_id

if TYPE_CHECKING:
    from repertory.core.messages import Json, Message
    from repertory.core.result import AgentResult
    from repertory.service.decisions.sent_again import AnswersWith

PROTOCOL = "0.3.0"
TASK = "task_"
"""The prefix of a task's id."""
ANSWER = "answer"
"""The name of the artifact that holds the agent's answer."""
ID_CHARS_MAX = 256
"""Characters of the id of a request that are repeated."""

TaskState = Literal["submitted", "working", "input-required", "completed", "canceled", "failed"]

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
NO_TASK, NOT_CANCELABLE, NO_PUSH, NO_EXTENDED_CARD = -32001, -32002, -32003, -32007
_NO_PUSH_TEXT = "push notifications are not supported: stream, or ask for the task"


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
    fields, request_id = object_in(body), id_of(body)
    method, params = fields.get("method"), fields.get("params")
    known = fields.get("id") is request_id and isinstance(params, dict | None)
    if fields.get("jsonrpc") != "2.0" or not isinstance(method, str) or not known:
        raise Refused(INVALID_REQUEST, "a request has jsonrpc 2.0, a method, a short id and params")
    return RpcRequest(request_id, method, object_in(cast("object", params)))


def id_of(body: object) -> str | int | None:
    """The id of a request, also of one that is refused; None for what is no id, and for a long one."""
    found = object_in(body).get("id")
    fits = isinstance(found, str | int) and not isinstance(found, bool) and len(str(found)) <= ID_CHARS_MAX
    return cast("str | int", found) if fits else None


def no_method(method: str) -> Refused:
    """The error for a method that is not served."""
    if method.startswith("tasks/pushNotificationConfig/"):
        return Refused(NO_PUSH, _NO_PUSH_TEXT)
    if method == "agent/getAuthenticatedExtendedCard":
        return Refused(NO_EXTENDED_CARD, "there is no extended card")
    return Refused(NO_METHOD, f"no such method: {method[:100]}")


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
    message, settings = object_in(params.get("message")), object_in(params.get("configuration"))
    message_id, given = message.get("messageId"), message.get("parts")
    parts = [object_in(part) for part in cast("list[object]", given)] if isinstance(given, list) else []
    if not isinstance(message_id, str) or not message_id or not parts:
        raise Refused(INVALID_PARAMS, "message: it has a messageId, a role and parts")
    if message.get("role") != "user":
        raise Refused(INVALID_PARAMS, "message.role: user")
    if settings.get("pushNotificationConfig") is not None:
        raise Refused(NO_PUSH, _NO_PUSH_TEXT)
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


def message_token(caller: str, message_id: str) -> str:
    """The token of the turn that a caller's message begins."""
    return f"a2a-{digest(caller, message_id)}"


def new_context(caller: str, message_id: str) -> str:
    """The context of a message that names none: the same when it is sent again."""
    return f"ctx-{digest(caller, message_id)[:32]}"


def answers_with(sent: Sent) -> AnswersWith:
    """The way in which a message may answer questions."""
    return "nothing" if sent.task is None else "ids" if any(map(answers_by_data, sent.parts)) else "text"


class TaskUpdates:
    """A fold of a narration into the updates of a task.

    `now`: tells the time, in epoch seconds. `name`: that of the artifact. `seed`: what the ids of the artifact and of
    messages are made of, None for the task's id. `pieces`: the way of pieces of text; in the artifact, which has the
    text of the `step` that runs or those of `all`, or as `states` of the task, and then the artifact comes at the end.
    """

    def __init__(
        self,
        task_id: str,
        context: str,
        now: Callable[[], float],
        *,
        name: str = ANSWER,
        seed: str | None = None,
        pieces: Literal["step", "all", "states"] = "step",
    ) -> None:
        self._id, self._context, self._now = task_id, context, now
        self._name, self._seed, self._pieces = name, digest(seed or task_id), pieces
        self._adds = pieces == "all"
        self._count = 0
        """The states that were sent."""
        self._fresh = True
        """True if the next piece replaces the artifact's content."""
        self._has_artifact = False
        self._whole = ""
        """The text that counts: of the last message that has ended, or of all of them."""

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
            "contextId": self._context,
            "status": self._status(state, asked, why),
        }
        if answer:
            made["artifacts"] = [self._artifact(answer)]
        if history:
            made["history"] = [self._message(message, number) for number, message in enumerate(history)]
        return made

    def fold(self, narrated: Iterable[Narrated]) -> list[TaskJson]:
        """The updates that these parts of the narration add."""
        return [update for part in narrated for update in self.tell(part)]

    def tell(self, part: Narrated) -> list[TaskJson]:
        """The updates that this part of the narration adds; the last one with `TurnDone`."""
        match part:
            case MessageBegun():
                self._fresh = self._fresh or not self._adds
                return []
            case TextPiece(_, text):
                is_state = self._pieces == "states"
                return [self._update("working", why=text, final=False) if is_state else self._piece(text)]
            case MessageClosed(_, text):
                self._whole = f"{self._whole}{text}" if self._adds else text or self._whole
                return []
            case MessageVoid():
                return [] if self._fresh else self._holding(self._whole)
            case TurnDone(result):
                return self._end(result)
            case _:
                return []

    def end(self, state: TaskState, why: str = "") -> TaskJson:
        """The last update of a turn that ends otherwise than with its result."""
        return self._update(state, why=why)

    def _end(self, result: AgentResult) -> list[TaskJson]:
        asked, answer = asked_questions(result), answer_text(result)
        due: list[TaskJson] = []
        if result.stop_reason != "interrupt" and (self._has_artifact or answer):
            holds_it = self._has_artifact and (self._adds or answer == self._whole)
            last = self._piece("") if holds_it else self._holding(answer)[0]
            due.append({**last, "append": holds_it, "lastChunk": True})
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
            "contextId": self._context,
            "artifact": self._artifact(text),
            "append": append,
            "lastChunk": False,
        }

    def _artifact(self, text: str) -> TaskJson:
        return {"artifactId": f"{ANSWER}-{self._seed[:12]}", "name": self._name, "parts": [part_of_text(text)]}

    def _update(
        self, state: TaskState, asked: Sequence[Question] = (), *, why: str = "", final: bool = True
    ) -> TaskJson:
        return {
            "kind": "status-update",
            "taskId": self._id,
            "contextId": self._context,
            "status": self._status(state, asked, why),
            "final": final,
        }

    def _status(self, state: TaskState, asked: Sequence[Question], why: str) -> TaskJson:
        at = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        status: TaskJson = {"state": state, "timestamp": at}
        parts: list[Json] = asking_parts(asked) if asked else [part_of_text(why)] if why else []
        if parts:  # A task may ask several times, and tell many pieces: each has an id of its own.
            self._count += 1
            name = digest(state, self._count, *(each.id for each in asked))[:12]
            status["message"] = self._message_by("agent", name, parts)
        return status

    def _message(self, message: Message, number: int) -> Json:
        role = "user" if message["role"] == "user" else "agent"
        return self._message_by(role, str(number), [part_of_text(spoken(message))])

    def _message_by(self, role: str, name: str, parts: list[Json]) -> TaskJson:
        return {
            "kind": "message",
            "role": role,
            "messageId": f"{self._seed[:16]}-{name}",
            "taskId": self._id,
            "contextId": self._context,
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


def skill(spec: Mapping[str, object], tags: Sequence[Json] = ("tool",)) -> TaskJson:
    """A tool as a skill of a card."""
    name = str(spec["name"])
    return {"id": name, "name": name, "description": str(spec["description"]), "tags": [*tags]}


def card(
    name: str,
    description: str,
    url: str,
    version: str,
    skills: Sequence[Json],
    *,
    asks_for_token: bool,
) -> TaskJson:
    """The agent's card."""
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
        "skills": [*skills],
    }
    if asks_for_token:
        made["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"bearer": []}]
    return made
