"""The decision of a call of an orchestrator: go on with a run, begin a new one, or return a past run's result.

    no run, or one that is over     a task begins the next one; None is refused
    an unfinished run               None, or its own task again, goes on with it; another task is refused, unless
                                    the caller gives the run up (`resume=False`) or goes on with it whatever the
                                    task (`resume=True`)
    one that waits for people       answers go on with it, all at once or one by one; None returns its interrupts
                                    again; a task is refused
    one whose snapshot was not      refused, unless the caller gives it up: its nodes are partly elsewhere
    loaded to its end
    an idempotency token            the run with that token: it goes on, or returns its result again; an unfinished
                                    run with another token is never meant, unless the caller says so; a run that
                                    goes on with its task or with answers has the token from then on; without a task
                                    a token that no run has is refused

So no task is dropped in silence, and no run is continued by mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

from msgspec import Struct

from repertory.core.interrupts import asked_about, is_about_node, node_scope
from repertory.core.run_results import MultiAgentResult, Status
from repertory.core.turns.turn_start import InterruptResponses, UserMessages, is_call_token
from repertory.errors import InterruptExpired, InterruptNotFound, InterruptsWaiting, Invalid, NotFound, RunUnfinished

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Json
    from repertory.core.orchestration.run import Run, Task
    from repertory.core.run_results import NodeResult
    from repertory.core.turns.turn_status import TurnStatusName


class BeginRun(Struct, frozen=True):
    """Begin a new run."""

    task: Task


class GoOn(Struct, frozen=True, kw_only=True):
    """Go on with the current run."""

    answers: Mapping[str, Mapping[str, Json]] = {}
    """Node to its new responses, by interrupt id."""
    expired: frozenset[str] = frozenset()
    """Nodes whose interrupts have all expired."""
    token: str | None = None
    """A token that the run does not have yet."""


class Replay(Struct, frozen=True):
    """Return the result of a run that is over."""

    run: int


CallDecision: TypeAlias = BeginRun | GoOn | Replay


def decide_call(
    run: Run,
    prompt: UserMessages | InterruptResponses,
    *,
    now: float,
    token: str | None = None,
    resume: bool | None = None,
    begins: bool = True,
) -> CallDecision:
    """The plan of the call. `now`: epoch seconds. `begins`: False for one that reads the run of its token.

    Errors: `RunUnfinished` for another task while a run is unfinished, and for a half-loaded snapshot;
    `InterruptsWaiting` for a task while the run only waits for answers; `Invalid` for no task without a run, and for a
    second, different answer; `InterruptNotFound` and `InterruptExpired` for answers to unknown and expired interrupts;
    `NotFound` for no task with a token that no run has.
    """
    if run.loading and resume is not False:
        raise RunUnfinished(
            "a snapshot was not loaded to its end: load it again, or pass resume=False to begin another run",
            run=run.number,
            owing=list(run.frontier),
        )
    # `resume=False` says that the run is given up, whoever's token it has.
    named = token is not None and token in run.tokens and resume is not False
    if named and run.over:
        return Replay(run.number)
    if token in run.earlier and resume is not False and not named:
        return Replay(run.earlier[token])
    new = None if token is None or named else token
    if isinstance(prompt, InterruptResponses):
        return GoOn(answers=_answers(run, prompt, now), expired=_expired(run, now), token=new)
    task = _task(prompt)
    if named:
        return GoOn(expired=_expired(run, now))
    if task is None and new is not None and resume is None and not (begins and is_call_token(new)):
        raise NotFound("no run of this token is known: say its task again with the token", token=token)
    if resume is False or (resume is None and run.over):
        if task is None:
            raise Invalid("there is no run to go on with; pass a task", run=run.number)
        return BeginRun(task)
    if run.over:
        raise Invalid("there is no run to go on with", run=run.number)
    expired = _expired(run, now)
    if resume is None and task is not None and not expired:
        _refuse_while_waiting(run)
    named_otherwise = new is not None and bool(run.tokens)
    if resume is None and (named_otherwise or (task is not None and task != run.task)):
        raise RunUnfinished(
            "a run is unfinished: pass None to go on with it, resume=False to give it up",
            run=run.number,
            task=str(run.task)[:200],
            owing=list(run.frontier),
        )
    if task is not None and not expired:
        _refuse_while_waiting(run)
    return GoOn(expired=expired, token=new)


def waiting(run: Run) -> dict[str, tuple[Interrupt, ...]]:
    """The unanswered interrupts of each node, in frontier order."""
    open_ones = {
        node: tuple(one for one in asked if one.id not in run.responses) for node, asked in _questions(run).items()
    }
    return {node: asked for node, asked in open_ones.items() if asked}


class KnownRun(Struct, frozen=True, kw_only=True):
    """The outcome of a run so far. No `TurnStatus`: a run may have no token, and its nodes have the messages."""

    token: str | None
    state: TurnStatusName


def known_run(run: Run, token: str | None, *, works: bool) -> KnownRun | None:
    """The run of this token; None for an unknown one. Without a token: the current run, if there is any. `works`: a
    call works on it, or it is owed.
    """
    if token is not None and token not in run.tokens:
        return KnownRun(token=token, state="answered") if token in run.earlier else None
    if token is None and not run.number:
        return None
    known = token if token is not None else next(iter(run.tokens), None)
    if run.over:
        return KnownRun(token=known, state="answered")
    return KnownRun(token=known, state="runs" if works else "asks" if waiting(run) else "stopped")


def run_questions(run: Run, session_id: str | None) -> list[Interrupt]:
    """The unanswered interrupts of the run, with their session."""
    return [one for asked in waiting(run).values() for one in asked_about(asked, (), session_id)]


def _questions(run: Run) -> dict[str, tuple[Interrupt, ...]]:
    """The interrupts of interrupted nodes in the frontier, answered or not."""
    return {
        node: questions_of(node, run.notes[node].result)
        for node in run.frontier
        if node in run.notes and run.notes[node].status is Status.INTERRUPTED
    }


def _refuse_while_waiting(run: Run) -> None:
    asked = waiting(run)
    if asked and all(node in asked for node in run.ready):
        ids = {interrupt.id: interrupt.name for interrupts in asked.values() for interrupt in interrupts}
        raise InterruptsWaiting("the run waits for answers to its interrupts", run=run.number, waiting=ids)


def _expired(run: Run, now: float) -> frozenset[str]:
    return frozenset(node for node, asked in waiting(run).items() if all(each.is_over(now) for each in asked))


def _answers(run: Run, given: InterruptResponses, now: float) -> dict[str, dict[str, Json]]:
    asked = {interrupt.id: (node, interrupt) for node, asked in _questions(run).items() for interrupt in asked}
    found: dict[str, dict[str, Json]] = {}
    for given_id, response in given.responses.items():
        interrupt_id = _meant(given_id, {key: node for key, (node, _) in asked.items()})
        node, interrupt = asked[interrupt_id]
        if interrupt_id in run.responses:
            if run.responses[interrupt_id] != response:
                raise Invalid("this interrupt has another answer already", interrupt=given_id)
        elif interrupt.is_over(now):
            raise InterruptExpired("nobody may answer this any more", interrupt=given_id, at=interrupt.expires_at)
        else:
            found.setdefault(node, {})[interrupt_id] = response
    return found


def _meant(given_id: str, asked: Mapping[str, str]) -> str:
    """The full interrupt id: `given_id` itself, or the id that the node uses, if only one node does. `asked`: full id
    to node. Errors: `InterruptNotFound`, `Invalid`.
    """
    if given_id in asked:
        return given_id
    found = [key for key, node in asked.items() if own_id(node, key) == given_id]
    if not found:
        raise InterruptNotFound("no such interrupt is waiting", interrupt=given_id, waiting=sorted(asked))
    if len(found) > 1:
        raise Invalid("several nodes ask by this id: use those of the result", interrupt=given_id, waiting=found)
    return found[0]


def _task(given: UserMessages) -> Task | None:
    """The task: one user message; None for no message. Errors: `Invalid`."""
    messages = list(given.messages)
    if not messages:
        return None
    if len(messages) > 1 or messages[0]["role"] != "user":
        raise Invalid("a task is text or content blocks, not a conversation", messages=len(messages))
    content = messages[0]["content"]
    text = content[0].get("text") if len(content) == 1 else None
    return content if text is None else text


# Interrupt ids of a run. They name the node, since two nodes may use the same id.
#
# v1:before_node_call:NODE:NAME   a hook of the orchestrator asks before a node; NODE and NAME are digests
# v1:node:NODE:ID                 the node asks with the id ID; a nested orchestrator's ids have this form too


def questions_of(node: str, result: NodeResult) -> tuple[Interrupt, ...]:
    """The interrupts of a node with this result, or of a hook before it, answered or not."""
    return tuple(
        one if _hook_asks(one.id, result) else replace(one, id=f"{_prefix(node)}{one.id}") for one in result.interrupts
    )


def asked_by_hook(result: NodeResult) -> bool:
    """True if a hook asked before the node, which has not begun."""
    return any(_hook_asks(one.id, result) for one in result.interrupts)


def own_id(node: str, interrupt_id: str) -> str | None:
    """The node's own id for the interrupt; None when a hook asked."""
    prefix = _prefix(node)
    return interrupt_id.removeprefix(prefix) if interrupt_id.startswith(prefix) else None


def answers_about(node: str, run: Run) -> dict[str, Json]:
    """The responses to the node's latest interrupts, by the node's own ids."""
    note = run.notes.get(node)
    found: dict[str, Json] = {}
    for question in () if note is None else questions_of(node, note.result):
        own = own_id(node, question.id)
        if own is not None and question.id in run.responses:
            found[own] = run.responses[question.id]
    return found


def still_answered(node: str, run: Run, *, done: bool, asks: Collection[Interrupt]) -> dict[str, Json]:
    """The responses that still count after another execution of the node: without those about work that is `done`, and
    without those to interrupts that the node `asks` again.
    """
    mine = (_prefix(node), f"{node_scope(node)}:")
    again = {one.id for one in asks}
    return {
        key: response
        for key, response in run.responses.items()
        if key not in again and not (done and key.startswith(mine))
    }


def _prefix(node: str) -> str:
    return f"v1:node:{quote(node, safe='')}:"


def _hook_asks(interrupt_id: str, result: NodeResult) -> bool:
    """True if a hook of this orchestrator asked. In the result of a nested orchestrator it may be that one's hook."""
    return is_about_node(interrupt_id) and not isinstance(result.result, MultiAgentResult)
