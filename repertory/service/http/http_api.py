"""Our own API over HTTP: the table of its operations, and the routes and the document that are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from repertory.service.answer_links import PATH
from repertory.service.http import bodies
from repertory.service.http.answer_pages import AnswerPages
from repertory.service.http.index_page import index_page
from repertory.service.http.openapi import Events, Operation, QueryOrHeader, document
from repertory.service.http.service import AnsweredRequest
from repertory.service.http.stored import CallersMemory, StoredSessions
from repertory.service.http.turns import WAIT_S_MAX, Runs, Turns

if TYPE_CHECKING:
    from repertory.service.answer_links import AnswerLinks
    from repertory.service.http.service import Caller, RequestHandler, Service

PREFIX = "/v1"
_SESSION = "/agents/{agent}/sessions/{session}"
_TEXT = {"type": "string"}
_RAW = QueryOrHeader(
    name="raw",
    schema={"type": "boolean", "default": False},
    about="Whether the events of the model's own stream are told as well.",
)
_LIMIT = QueryOrHeader(
    name="limit",
    schema={"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
    about="How many at most.",
)
_LAST = QueryOrHeader(
    name="last",
    schema={"type": "integer", "minimum": 1, "maximum": 1000},
    about="Only so many messages, the latest ones.",
)
_AFTER = QueryOrHeader(name="after", schema=_TEXT, about="The cursor that an earlier page gave.")
_LAST_EVENT_ID = QueryOrHeader(
    name="Last-Event-ID", schema=_TEXT, about="The id of the last event that the client has.", place="header"
)
_KEY = QueryOrHeader(name="Idempotency-Key", schema=_TEXT, about="The same as the token of the body.", place="header")
_PREFER = QueryOrHeader(
    name="Prefer",
    schema={"type": "string", "enum": ["respond-async"]},
    about="Answer at once: the turn is stored, and is done whatever ends meanwhile.",
    place="header",
)
_BEGINS = (_RAW, _KEY, _PREFER, _LAST_EVENT_ID)
_BEGUN: Mapping[int, type] = {200: bodies.TurnAnswer, 202: bodies.TurnBegun}


def routes(
    service: Service,
    *,
    memory: CallersMemory | None,
    version: str,
    index: bool = False,
    links: AnswerLinks | None = None,
) -> list[BaseRoute]:
    """The routes of the API, with its document, and the checks of health. `memory`: gives what a caller may search.
    `index`: True adds the page at `/`. `links`: adds the page of links that answer a question.
    """
    stored = StoredSessions(service, memory)
    made = operations(service, stored)
    api = document(made, PREFIX, version, secured=service.knows_callers)

    written: dict[str, bytes] = {}
    """The document, by the path that the application is mounted at: whoever asks without a token costs no encoding."""

    async def openapi(request: Request, caller: Caller) -> Response:
        at = request.scope.get("root_path", "") or "/"
        if at not in written:
            written.clear()  # A server may let clients say where it is mounted.
            written[at] = bytes(JSONResponse({**api, "servers": [{"url": at}]}).body)
        return Response(written[at], media_type="application/json")

    own = Operation(
        method="GET",
        path="/openapi.json",
        name="openapi",
        about="The OpenAPI document of this API.",
        handler=openapi,
        answers={},
        admit=False,
        top=True,
    )
    more: list[Operation] = [own]
    if index:
        about, handler = "A page for people, or links as JSON.", index_page()
        more.append(
            Operation(
                method="GET", path="/", name="index", about=about, handler=handler, answers={}, admit=False, top=True
            )
        )
    if links is not None:
        pages = AnswerPages(service, links, stored.opened)
        about = "A question to a person, by a link of its own."
        opens = Operation(
            method="GET",
            path=PATH,
            name="answerLink",
            about=about,
            handler=pages.show,
            answers={},
            admit=False,
            top=True,
        )
        more += [opens, msgspec.structs.replace(opens, method="POST", handler=pages.answer)]
    return _routes(service, [*made, *more])


def _routes(service: Service, operations: Sequence[Operation]) -> list[BaseRoute]:
    """One route a path, so that a method which it does not have is refused with those that it has."""
    by_path: dict[str, list[Operation]] = {}
    for one in operations:
        by_path.setdefault(one.path if one.top else f"{PREFIX}{one.path}", []).append(one)
    made: list[BaseRoute] = []
    for path, of_path in by_path.items():
        handlers = {one.method: one.handler for one in of_path}
        answered = AnsweredRequest(service, handlers, admit=any(one.admit for one in of_path))
        made.append(Route(path, answered, name=of_path[0].name))
    return made


def operations(service: Service, stored: StoredSessions) -> Sequence[Operation]:
    """Every operation of callers, without the document itself and the pages for people."""
    return (
        *_health(service),
        *_turns(Turns(service)),
        *_runs(Runs(service)),
        *_listing(stored),
        *_reading(stored),
        *_later(stored),
        *_changing(stored),
    )


def _health(service: Service) -> Sequence[Operation]:
    async def alive(request: Request, caller: Caller) -> Response:
        return _health_answer(200, "ok")

    async def ready(request: Request, caller: Caller) -> Response:
        if service.ready:
            return _health_answer(200, "ok")
        return _health_answer(503, "ending" if service.runtime.started else "starting")

    return (
        Operation(
            method="GET",
            path="/healthz",
            name="healthz",
            about="Whether the process answers.",
            handler=alive,
            answers={200: bodies.HealthShown},
            admit=False,
            top=True,
        ),
        Operation(
            method="GET",
            path="/readyz",
            name="readyz",
            about="Whether requests may be sent to this process; not any more once it is about to end.",
            handler=ready,
            answers={200: bodies.HealthShown, 503: bodies.HealthShown},
            admit=False,
            top=True,
        ),
    )


def _health_answer(status: int, state: str) -> Response:
    return JSONResponse({"status": state}, status, {"cache-control": "no-store"})


def _turns(turns: Turns) -> Sequence[Operation]:
    wait = QueryOrHeader(
        name="wait_s",
        schema={"type": "number", "minimum": 0, "maximum": WAIT_S_MAX, "default": 0},
        about="How long to wait for the result.",
    )
    return (
        Operation(
            method="POST",
            path=f"{_SESSION}/turns",
            name="beginTurn",
            about="Begin a turn, or go on with one. Answers with its result, its events, or at once.",
            handler=turns.begin,
            body=bodies.BeginTurn,
            answers=_BEGUN,
            parameters=_BEGINS,
            streams=True,
        ),
        Operation(
            method="GET",
            path=f"{_SESSION}/turns/{{token}}",
            name="turn",
            about="The result of a turn, if it is over; 409 for one that has failed, or was cut short.",
            handler=turns.result,
            answers=_BEGUN,
            parameters=(wait,),
        ),
        Operation(
            method="GET",
            path=f"{_SESSION}/turns/{{token}}/events",
            name="turnEvents",
            about="The events of a turn, from its beginning or after one that the client has.",
            handler=turns.events,
            answers={200: Events, 204: None},
            parameters=(
                _RAW,
                _LAST_EVENT_ID,
                QueryOrHeader(name="after", schema=_TEXT, about="The same as Last-Event-ID, which goes before it."),
            ),
            streams=True,
        ),
        Operation(
            method="POST",
            path=f"{_SESSION}/cancel",
            name="cancelTurn",
            about="Cut the running turn short, if one runs. The conversation stays valid.",
            handler=turns.cancel,
            answers={204: None},
        ),
        Operation(
            method="POST",
            path=f"{_SESSION}/interrupts",
            name="answerInterrupts",
            about="Give the answers of a person, and go on with the turn that asked.",
            handler=turns.answer,
            body=bodies.AnswerInterrupts,
            answers=_BEGUN,
            parameters=_BEGINS,
            streams=True,
        ),
    )


def _runs(runs: Runs) -> Sequence[Operation]:
    session = "/orchestrators/{orchestrator}/sessions/{session}"
    turns = (
        (f"{session}/runs", "beginRun", "Begin a run, or go on with one.", bodies.StartRun),
        (f"{session}/runs/{{token}}", "run", "The result of a run, if it is over; 409 for one cut short.", None),
        (f"{session}/runs/{{token}}/events", "runEvents", "The events of a run.", None),
        (f"{session}/cancel", "cancelRun", "End the running call early, if one works. The run can be resumed.", None),
        (f"{session}/interrupts", "answerRun", "Give the answers of a person, and go on.", bodies.AnswerRun),
    )
    made = [
        msgspec.structs.replace(one, path=path, name=name, about=about, body=body)
        for one, (path, name, about, body) in zip(_turns(runs), turns, strict=True)
    ]
    listed = Operation(
        method="GET",
        path="/orchestrators",
        name="orchestrators",
        about="The graphs and swarms that are served.",
        handler=runs.orchestrators,
        answers={200: bodies.OrchestratorsShown},
    )
    asked = Operation(
        method="GET",
        path=f"{session}/interrupts",
        name="runInterrupts",
        about="The questions to a person that have no answer.",
        handler=runs.interrupts,
        answers={200: bodies.InterruptsShown},
    )
    return (listed, *made, asked)


def _reads(path: str, name: str, about: str, handler: RequestHandler, kind: type, *more: QueryOrHeader) -> Operation:
    return Operation(
        method="GET", path=path, name=name, about=about, handler=handler, answers={200: kind}, parameters=more
    )


def _listing(stored: StoredSessions) -> Sequence[Operation]:
    of_agent = QueryOrHeader(name="agent", schema=_TEXT, about="Only those to this agent, graph or swarm.")
    newest_first = QueryOrHeader(
        name="newest_first",
        schema={"type": "boolean", "default": False},
        about="Whether the last changed sessions come first.",
    )
    return (
        _reads("/agents", "agents", "The agents that are served.", stored.agents, bodies.AgentsShown),
        _reads(
            "/agents/{agent}/sessions",
            "sessions",
            "The caller's sessions with an agent, by their ids.",
            stored.sessions,
            bodies.SessionPage,
            _LIMIT,
            _AFTER,
        ),
        _reads(
            "/interrupts",
            "questions",
            "The questions to a person in all of the caller's sessions; those that wait longest come first.",
            stored.questions,
            bodies.QuestionsListed,
            of_agent,
            newest_first,
            _LIMIT,
            _AFTER,
        ),
    )


def _reading(stored: StoredSessions) -> Sequence[Operation]:
    return (
        _reads(
            f"{_SESSION}/messages",
            "messages",
            "All messages of the conversation, oldest first.",
            stored.messages,
            bodies.MessagePage,
            _LIMIT,
            _AFTER,
            _LAST,
        ),
        _reads(f"{_SESSION}/state", "state", "The agent's state.", stored.state, bodies.StateShown),
        _reads(
            f"{_SESSION}/pending",
            "pending",
            "What the conversation has left unfinished, and why.",
            stored.pending,
            bodies.PendingShown,
        ),
        _reads(
            f"{_SESSION}/interrupts",
            "interrupts",
            "The questions to a person that have no answer.",
            stored.interrupts,
            bodies.InterruptsShown,
        ),
        _reads(
            f"{_SESSION}/timers",
            "timers",
            "The turns that the session will begin by itself.",
            stored.timers,
            bodies.TimersShown,
        ),
        _reads(
            f"{_SESSION}/snapshots",
            "snapshots",
            "The positions that have labels, in the order in which they got them.",
            stored.snapshots,
            bodies.SnapshotsShown,
            _LIMIT,
            _AFTER,
        ),
        _reads(
            f"{_SESSION}/snapshots/{{label}}",
            "snapshot",
            "What the model was shown at a label, with the agent's state there.",
            stored.snapshot,
            bodies.SnapshotShown,
        ),
    )


def _does(path: str, name: str, about: str, handler: RequestHandler, body: type, status: int, kind: type) -> Operation:
    return Operation(
        method="POST", path=path, name=name, about=about, handler=handler, body=body, answers={status: kind}
    )


def _later(stored: StoredSessions) -> Sequence[Operation]:
    """The operations that begin turns at a later time: timers, and results of tools that have deferred."""
    return (
        _does(
            f"{_SESSION}/timers",
            "setTimer",
            "Have the session begin a turn by itself.",
            stored.set_timer,
            bodies.SetTimer,
            201,
            bodies.TimerSet,
        ),
        Operation(
            method="DELETE",
            path=f"{_SESSION}/timers/{{timer}}",
            name="cancelTimer",
            about="Cancel a timer.",
            handler=stored.cancel_timer,
            answers={204: None},
        ),
        _does(
            f"{_SESSION}/tools/{{tool}}",
            "completeTool",
            "Give the result of a tool that has deferred. The same result again changes nothing.",
            stored.complete_tool,
            bodies.GiveResult,
            200,
            bodies.ToolCompleted,
        ),
    )


def _changing(stored: StoredSessions) -> Sequence[Operation]:
    return (
        _does(
            f"{_SESSION}/snapshots",
            "takeSnapshot",
            "Give a position a label.",
            stored.take_snapshot,
            bodies.TakeSnapshot,
            201,
            bodies.SnapshotLine,
        ),
        _does(
            f"{_SESSION}/forks",
            "fork",
            "Make a new session that goes on from a position of this one.",
            stored.fork,
            bodies.ForkSession,
            201,
            bodies.ForkMade,
        ),
        _does(
            f"{_SESSION}/rewind",
            "rewind",
            "Go back to a position. Nothing is destroyed.",
            stored.rewind,
            bodies.RewindSession,
            200,
            bodies.Rewound,
        ),
        Operation(
            method="DELETE",
            path=_SESSION,
            name="eraseSession",
            about="Erase a session for good, with what every agent has in it.",
            handler=stored.erase,
            answers={200: bodies.Erased},
        ),
        _does(
            "/memory/search",
            "searchMemory",
            "What is remembered across sessions.",
            stored.search,
            bodies.MemoryQuestion,
            200,
            bodies.MemoriesFound,
        ),
    )
