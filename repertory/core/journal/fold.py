"""Folding records into the state that an agent needs to go on.

Applying a record takes constant time, but a view change costs what it drops or replaces, and the start or end of a tool
costs the tools of its step. The running agent and a restart use the same code, so the restored state equals the live
one.

Folding the records from `needed` on gives the same image as folding all of them: every record that later ones build on
is an anchor (`Anchors`), and `needed` never passes an anchor. `restatements` keeps anchors from falling far behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TypeVar, assert_never

from msgspec.structs import astuple, force_setattr, replace

from repertory.core.deferral import SETTLED_MAX, DeferredTool, is_deferred_id
from repertory.core.deliveries import EventDelivery
from repertory.core.interrupts import Interrupt, outcome_id, unmarked
from repertory.core.journal.image import Anchors, Image, UnansweredTurn, UnsettledTool
from repertory.core.journal.records import (
    WHOLE,
    AnswersStated,
    Branched,
    CursorMoved,
    DeferralsChanged,
    DeferredResult,
    DeliveriesChanged,
    FinishedTurn,
    Interrupted,
    MessageAdded,
    NodeChanged,
    OwnerChanged,
    Record,
    Redacted,
    Resumed,
    RunChanged,
    SnapshotTaken,
    StateChanged,
    StepFinished,
    StepStarted,
    SubagentSpending,
    TimersChanged,
    ToolFinished,
    ToolStarted,
    View,
    ViewChanged,
)
from repertory.core.journal.steps import RecordedStep, with_step
from repertory.core.journal.view import VisibleMessages, visible_at
from repertory.core.messages import (
    Json,
    Message,
    ToolResult,
    check_next,
    is_filler,
    is_one_text,
    is_paused,
    is_stopped,
    tool_results,
    tool_uses,
)
from repertory.core.timers import Timer, next_timer
from repertory.core.turn import is_whole
from repertory.errors import Invalid

V = TypeVar("V")


class Fold:
    """The state of one agent's journal. Start from an image (an agent at rest), or from nothing.

    `apply` takes a whole record, or raises and changes nothing. Only the fold's own methods change these fields, which
    mean what they mean in `Image`: `state`, `nodes` and `anchors` are edited in place; the other values are replaced
    and never edited, so that images and readers in other threads share them.
    """

    __slots__ = (
        "_partial",
        "_unchecked",
        "anchors",
        "came",
        "cursors",
        "deferred",
        "finished_tools",
        "frontier",
        "kept",
        "last_message",
        "last_message_seq",
        "last_seq",
        "message_count",
        "next_timer",
        "nodes",
        "open_tools",
        "outbox",
        "parked",
        "questions",
        "responses",
        "run",
        "run_steps",
        "settled",
        "shown",
        "state",
        "steps",
        "timers",
        "to_turn",
        "turn_to",
        "turn_tokens",
        "turns",
    )

    last_seq: int
    message_count: int
    turns: int
    last_message: Message | None
    last_message_seq: int
    state: dict[str, Json]
    open_tools: Mapping[str, ToolStarted]
    finished_tools: Mapping[str, ToolResult]
    steps: Mapping[str, Mapping[str, RecordedStep]]
    parked: Mapping[str, ToolStarted]
    questions: tuple[Interrupt, ...]
    responses: Mapping[str, Json]
    run: int
    nodes: dict[str, NodeChanged]
    frontier: tuple[str, ...]
    cursors: Mapping[str, int]
    kept: Mapping[str, Json]
    timers: Mapping[str, Timer]
    deferred: Mapping[str, DeferredTool]
    run_steps: Mapping[str, Mapping[str, RecordedStep]]
    came: Mapping[str, DeferredResult]
    settled: tuple[str, ...]
    outbox: Mapping[str, EventDelivery]
    turn_to: tuple[str, ...]
    to_turn: int
    anchors: Anchors

    def __init__(self, image: Image | None = None, *, partial: bool = False) -> None:
        """Begin at `image`. With `partial`, the records up to `image.last_seq` are unknown rather than absent: nothing
        is checked against them.
        """
        image = image or _EMPTY
        _copy_fields(image, self)
        self._partial = partial
        self._unchecked = False
        self.turn_tokens = TurnTokens(image, self.anchors)
        self.next_timer = next_timer(self.timers) if self.timers else None
        """The timer that is due first; it is asked for more often than timers change."""
        self.shown = VisibleMessages(image.view, image.recent)
        """The messages that the model is shown."""

    # The current state.

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """The interrupts without a response, in the order asked."""
        return tuple(one for one in self.questions if one.id not in self.responses)

    @property
    def finished_turns(self) -> Mapping[str, FinishedTurn]:
        """Answered turns by idempotency token: at most `FINISHED_TURNS_MAX`, the latest ones."""
        return MappingProxyType(self.turn_tokens.finished)

    @property
    def open_token(self) -> str | None:
        """The token of the turn that the journal ends in the middle of, or in a stopped answer of; None without one."""
        return next(iter(self.open_tokens), None)

    @property
    def open_tokens(self) -> Collection[str]:
        """All tokens of that turn."""
        last = self.last_message
        return () if last is None or (is_answer(last) and not is_stopped(last)) else self.turn_tokens.current.keys()

    @property
    def needed(self) -> int:
        """The first record that folding needs to get here; `last_seq` when none matters."""
        first, last = self.last_seq, self.last_message
        # 0 stands for "depends on nothing".
        for seq in (self.shown.first_seq, *astuple(self.anchors)):
            if 0 < seq < first:
                first = seq
        if not (self.turn_tokens.current or self.turn_tokens.unanswered):
            return first
        running = self.anchors.turn > 0 or (last is not None and is_answer(last) and not is_whole(last))
        return self.turn_tokens.needed(self.last_seq, first, running=running)

    def steps_of(self, use_id: str) -> Mapping[str, RecordedStep]:
        """The steps of a tool use, or of a background run, by their keys."""
        return (self.run_steps if is_deferred_id(use_id) else self.steps).get(use_id, {})

    def image(self) -> Image:
        """The agent at rest. Costs what is shown."""
        needed, named = self.needed, self.turn_tokens
        image = Image(
            view=self.shown.view,
            recent=tuple(self.shown.recent),
            finished_turns=dict(named.finished),
            unanswered={token: turn for token, turn in named.unanswered.items() if turn.seq >= needed},
            tokens={token: seq for token, seq in named.current.items() if seq >= needed},
        )
        _copy_fields(self, image)
        return image

    # Applying records.

    def apply(self, seq: int, record: Record) -> None:
        """Apply the next record.

        Errors: `Invalid` when it may not follow (`UnpairedTools` when its tools do not pair up).
        """
        if seq != self.last_seq + 1:
            raise Invalid("a record follows the last one", seq=seq, last=self.last_seq)
        match record:
            case MessageAdded():
                self._on_message(seq, record)
            case StateChanged():
                self._on_state(seq, record)
            case ViewChanged():
                self._on_view(seq, record)
            case ToolStarted():
                self._on_tool_started(seq, record)
            case ToolFinished():
                self._on_tool_finished(seq, record)
            case StepStarted() | StepFinished():
                self._on_step(seq, record)
            case Redacted():
                self._on_redacted(record)
            case Interrupted() | Resumed():
                self._on_waiting(seq, record)
            case NodeChanged():
                self._on_node(seq, record)
            case CursorMoved():
                self._on_cursor(seq, record)
            case TimersChanged():
                self._on_timers(seq, record)
            case DeferralsChanged():
                self._on_deferrals(seq, record)
            case DeferredResult():
                self._on_deferred_result(seq, record)
            case DeliveriesChanged():
                self._on_deliveries(seq, record)
            case AnswersStated():
                self.turn_tokens.state(seq, record)
            case SnapshotTaken() | OwnerChanged() | SubagentSpending():
                pass
            case Branched():
                raise Invalid("a branch takes the history that it goes back to: use `rewind`", seq=seq)
            case _:
                assert_never(record)
        self.last_seq = seq

    def show_with_last(self, view: View) -> None:
        """Apply a view patch as part of the last record, which is a message.

        Errors: `Invalid` when the patch is not allowed; nothing has changed then.
        """
        _check_light(view)
        if not (self._partial or self._unchecked):
            self.shown.check(view, patch=True)
        self._change_view(self.last_seq, view, patch=True)

    def skip(self, seq: int, *, branch: bool = False) -> None:
        """Pass an erased row that is no message: a later row restates what it said.

        After an erased branch nothing is checked until the branch that restates everything.
        """
        self.last_seq = seq
        # A branch may lead anywhere, so nothing behind an erased one can be checked against what was before it.
        self._unchecked = self._unchecked or branch

    def rewind(self, seq: int, record: Branched, history: Mapping[int, Message], *, partial: bool = False) -> None:
        """Go on from an earlier position.

        `history` holds, in order, at least the messages that the record's view shows and its last message; with
        `partial`, those that are still needed at the end of the rows being folded. Errors: `Invalid` when the last
        message is missing.
        """
        if seq != self.last_seq + 1 or not (0 <= record.position < seq and 0 <= record.last < seq):
            fields = {"seq": seq, "position": record.position, "last": record.last}
            raise Invalid("a branch goes back to an earlier record", **fields)
        known = record.last in history or not record.last
        if not known and not partial:
            raise Invalid("the history for a branch lacks its last message", last=record.last)
        self._partial, self._unchecked = not known, False
        self.last_seq = seq
        self.last_message = history.get(record.last)
        self.last_message_seq = record.last
        self.message_count = record.message_count
        self.turns = record.turns
        self.run = record.run
        self.state = dict(record.state)
        # What was said behind the position stays in the journal, for going back to it, and is hidden.
        gap = () if record.position == seq - 1 else ((record.position + 1, seq),)
        view = record.view
        self.shown = visible_at(view_hiding(view, gap), history, record.position)
        unanswered = self.last_message is not None and not is_answer(self.last_message)
        turn_at = record.last if unanswered else 0
        # A branch to before the first message or run is itself the anchor: it holds the numbers to go on from.
        self.anchors = Anchors(
            message=record.last or seq,
            turn=turn_at,
            view=seq,
            state=seq,
            cursors=self.anchors.cursors,
            run=seq if record.run else 0,
            timers=self.anchors.timers,
            deliveries=self.anchors.deliveries,
        )
        self._forget_turn()
        # They belong to tool uses that are gone. What stays in spite of the branch is stated behind it
        # (`standing_records`, `waiting_records`).
        self.deferred, self.run_steps, self.came, self.settled = {}, {}, {}, ()
        self.nodes, self.frontier = {}, ()
        # Also those from before the position: who opens here reads no row before the branch, and must know the same
        # tokens.
        self.turn_tokens = TurnTokens(_EMPTY, self.anchors)

    def _on_message(self, seq: int, record: MessageAdded) -> None:
        message, view, at = record.message, record.view, self.anchors
        # The first message that is read of a journal begins what is known of its turn.
        begins = self._partial or record.turn != self.turns
        if view is not None:
            _check_light(view)
        if not (self._partial or self._unchecked):
            check_next(self.last_message, message)
            self._check_numbers(record, begins=begins)
            if view is not None:
                self.shown.check(view, patch=True)
        if begins:
            self.turn_tokens.begin(seq, record, self.last_message, self.open_tools, self.steps)
            self.turns, at.turn = record.turn, seq
        elif is_filler(message):
            self.turn_tokens.leave(seq, self.last_message, {}, {})
        # By the numbers: of what stands before the first message that is read, nothing is known. A process that goes on
        # with a turn counts it as a further one.
        if self.turn_to and record.turn > self.to_turn:
            if message["role"] == "user" and not any(tool_results(message)):
                self.turn_to, self.to_turn = (), 0
                at.deliveries = at.deliveries if self.outbox else 0
            else:
                self.to_turn = record.turn
        for token in record.joined:
            self.turn_tokens.join(token, seq)
        # From the first message on nothing is unknown that later records could contradict.
        self._partial = False
        self.message_count = record.index + 1
        self.last_message = message
        self.last_message_seq = at.message = seq
        self.shown.add(seq, message)
        if view is not None:
            self._change_view(seq, view, patch=True)
        if at.tools or at.waiting:
            self._forget_turn()
        if is_answer(message):
            # An answered turn needs no row of its own: opening may begin behind it.
            at.turn = 0
            self.turn_tokens.answer(seq, message)
        # Behind an answer that was no end after all, as when the structured output is asked for.
        elif not at.turn:
            at.turn = seq

    def _check_numbers(self, record: MessageAdded, *, begins: bool) -> None:
        if record.index != self.message_count:
            raise Invalid(
                "a message's index is the number of messages before it", index=record.index, count=self.message_count
            )
        if record.turn < max(1, self.turns):
            raise Invalid("a message's turn never falls", turn=record.turn, turns=self.turns)
        if record.idempotency_token is not None and not begins:
            raise Invalid("an idempotency token stands on the first message of its turn", turn=record.turn)

    def _forget_turn(self) -> None:
        """A new message settles all that the turn waited for."""
        self.open_tools, self.finished_tools, self.parked, self.steps = {}, {}, {}, {}
        self._forget_waiting()
        self.anchors.tools = 0

    def _forget_waiting(self) -> None:
        self.questions, self.responses = (), {}
        self.anchors.waiting = 0

    def _on_state(self, seq: int, record: StateChanged) -> None:
        if record.full is not None:
            if record.set or record.delete:
                raise Invalid("a record with a full state has no patch")
            # A copy: patches are applied in place, and the record may stand in a row that somebody else reads.
            self.state = dict(record.full)
            # An empty state depends on nothing.
            self.anchors.state = seq if record.full else 0
            return
        self.state.update(record.set)
        for key in record.delete:
            self.state.pop(key, None)
        # Without a full state, reading begins at the first patch.
        self.anchors.state = self.anchors.state or seq

    def _on_view(self, seq: int, record: ViewChanged) -> None:
        if not (self._partial or self._unchecked):
            self.shown.check(record.view, patch=record.patch)
        self._change_view(seq, record.view, patch=record.patch)

    def _change_view(self, seq: int, view: View, *, patch: bool) -> None:
        self.shown.change(view, patch=patch)
        # A patch of a view that holds nothing else says as much as a full one.
        if not patch or not self.anchors.view or self.shown.light:
            self.anchors.view = seq

    def _on_tool_started(self, seq: int, record: ToolStarted) -> None:
        use_id = record.tool_use_id
        # It runs again, so its earlier result counts no more.
        if self.finished_tools:
            self.finished_tools = _without(self.finished_tools, use_id)
        self._settle(use_id)
        # A new mapping for each change: readers in other threads hold the old one. It has as many entries as a step has
        # tools.
        self.open_tools = {**self.open_tools, use_id: record}
        self.anchors.tools = self.anchors.tools or seq

    def _on_tool_finished(self, seq: int, record: ToolFinished) -> None:
        use_id = record.tool_use_id
        self._settle(use_id)
        self.open_tools = _without(self.open_tools, use_id)
        self.finished_tools = {**self.finished_tools, use_id: record.result}
        self.anchors.tools = self.anchors.tools or seq

    def _on_step(self, seq: int, record: StepStarted | StepFinished) -> None:
        if is_deferred_id(record.tool_use_id):  # Of a background run: no message settles it.
            run_steps = with_step(self.run_steps, record)
            if run_steps is not self.run_steps:
                self.run_steps = run_steps
                self.anchors.runs = self.anchors.runs or seq
            return
        steps = with_step(self.steps, record)
        if steps is not self.steps:
            self.steps = steps
            self.anchors.tools = self.anchors.tools or seq

    def _settle(self, use_id: str) -> None:
        """Forget that an earlier start stopped to ask, and the question about its outcome with its response."""
        if self.parked:
            self.parked = _without(self.parked, use_id)
        if self.questions or self.responses:
            asked = outcome_id(use_id)
            self.questions = tuple(one for one in self.questions if unmarked(one.id) != asked)
            self.responses = _without(self.responses, *(key for key in self.responses if unmarked(key) == asked))

    def _on_redacted(self, record: Redacted) -> None:
        self.shown.redact(record.target, record.message)
        if record.target == self.last_message_seq:
            self.last_message = record.message
        self.turn_tokens.redact(record.target, record.message)

    def _on_waiting(self, seq: int, record: Interrupted | Resumed) -> None:
        self.anchors.waiting = self.anchors.waiting or seq
        if isinstance(record, Resumed):
            self.responses = {**self.responses, **record.responses}
            for token in record.joined:  # From that message on: reading that begins here finds no turn to join.
                self.turn_tokens.join(token, self.last_message_seq)
            return
        # By id, so that a question that is asked again keeps its place.
        asked = {one.id: one for one in (*self.questions, *record.interrupts)}
        self.questions = tuple(asked.values())
        # A tool that asks once more under the same id must not find the old response.
        self.responses = _without(self.responses, *(one.id for one in record.interrupts))
        parked = {use_id: self.open_tools[use_id] for use_id in record.parked if use_id in self.open_tools}
        self.parked = {**self.parked, **parked}
        self.open_tools = _without(self.open_tools, *parked)

    def _on_node(self, seq: int, record: NodeChanged) -> None:
        if record.run < max(1, self.run):
            raise Invalid("an orchestrator's run never falls", run=record.run, was=self.run)
        # A new run depends on nothing of the one before.
        if record.run > self.run:
            self.run, self.anchors.run = record.run, seq
            self.nodes.clear()
            self._forget_waiting()
        elif record.data.get(WHOLE) is True:
            self.anchors.run = seq
            self.nodes.clear()
        self.nodes[record.node] = record
        self.frontier = record.frontier

    def _on_cursor(self, seq: int, record: CursorMoved) -> None:
        self.cursors, self.kept = dict(record.positions), dict(record.kept)
        self.anchors.cursors = seq if record.positions or record.kept else 0

    def _on_timers(self, seq: int, record: TimersChanged) -> None:
        self.timers = {timer.id: timer for timer in record.timers}
        self.next_timer = next_timer(self.timers)
        self.anchors.timers = seq if record.timers else 0

    def _on_deferrals(self, seq: int, record: DeferralsChanged) -> None:
        if record.whole:
            self.deferred, self.run_steps, self.settled = {}, {}, ()
            self.anchors.deferrals = self.anchors.runs = 0
        # Also what was told: the row of its result may have been erased since.
        deferred = {**_without(self.deferred, *record.ended, *record.told), **{one.id: one for one in record.deferrals}}
        for each in record.runs:
            deferred.update(_further(deferred.get(each.id), each))
        self.deferred = deferred
        if record.settled:
            self.settled = (*self.settled, *record.settled)[-SETTLED_MAX:]
        self.anchors.deferrals = (self.anchors.deferrals or seq) if deferred or self.settled else 0
        if record.told:
            self.came = _without(self.came, *record.told)
            self.anchors.came = self.anchors.came if self.came else 0
        for step in record.steps:
            self.run_steps, self.anchors.runs = with_step(self.run_steps, step), self.anchors.runs or seq
        if self.run_steps:
            self._forget_runs()

    def _on_deferred_result(self, seq: int, record: DeferredResult) -> None:
        self.deferred = _without(self.deferred, record.id)
        self.came = {**self.came, record.id: record}
        self.anchors.came = self.anchors.came or seq
        if self.run_steps:
            self._forget_runs(record.id)

    def _forget_runs(self, ended: str = "") -> None:
        """Forget the steps of the runs that are over. `ended`: the one that has just ended."""
        # Folding may have begun among the steps, before a record that states all runs: so only what says that a run is
        # over drops its steps.
        over = {ended} if ended else self.run_steps.keys() - self.deferred.keys()
        self.run_steps = _without(self.run_steps, *over)
        if not self.run_steps:
            self.anchors.runs = 0

    def _on_deliveries(self, seq: int, record: DeliveriesChanged) -> None:
        before = _without(self.outbox, *record.ended) if record.ended else self.outbox
        stated = {one.id: one for one in record.deliveries}
        self.outbox = stated if record.whole else {**before, **stated}
        if record.whole:
            self.turn_to, self.to_turn = record.to, record.turn
        elif record.to:
            before_to = self.turn_to if record.turn == self.to_turn else ()
            self.turn_to, self.to_turn = tuple(dict.fromkeys((*before_to, *record.to))), record.turn
        first = seq if record.whole else self.anchors.deliveries or seq
        self.anchors.deliveries = first if self.outbox or self.turn_to else 0


_FIELDS = tuple(Fold.__annotations__)
_EMPTY = Image()


def _copy_fields(source: Fold | Image, target: Fold | Image) -> None:
    """Give a new fold or image the fields of the other."""
    for name in _FIELDS:
        _assign(target, name, getattr(source, name))
    _assign(target, "state", dict(source.state))
    _assign(target, "nodes", dict(source.nodes))
    _assign(target, "anchors", replace(source.anchors))


def _assign(target: Fold | Image, name: str, value: object) -> None:
    if isinstance(target, Image):
        force_setattr(target, name, value)  # It is new, and frozen from now on.
    else:
        setattr(target, name, value)


def _without(values: Mapping[str, V], *keys: str) -> Mapping[str, V]:
    return {key: one for key, one in values.items() if key not in keys}


def _check_light(view: View) -> None:
    if view.pinned or view.replaced or view.summary is not None or view.hidden:
        raise Invalid("the view in a message's record holds no messages; state it in a record of its own")


def view_hiding(view: View, stretches: tuple[tuple[int, int], ...]) -> View:
    """The view with more ranges hidden."""
    return replace(view, hidden=(*view.hidden, *stretches)) if stretches else view


# Turns with idempotency tokens: the current one, the answered ones, and the unanswered ones that another turn followed.

FINISHED_TURNS_MAX = 64
"""The largest number of answered tokens that are kept; and of unanswered ones."""
UNANSWERED_ROWS = 256
"""An unanswered turn that another one followed is kept for at least this many records."""


def _further(tool: DeferredTool | None, changed: RunChanged) -> Mapping[str, DeferredTool]:
    """The tool as its run has got further, by id; empty if the row that named it is erased."""
    if tool is None or tool.run is None:
        return {}
    run = dataclasses.replace(tool.run, attempt=changed.attempt, asks=changed.asks)
    return {tool.id: dataclasses.replace(tool, run=run)}


class TurnTokens:
    """The idempotency tokens of a journal. Only the fold changes them."""

    __slots__ = ("_anchors", "current", "finished", "unanswered")

    def __init__(self, image: Image, anchors: Anchors) -> None:
        """`anchors`: the fold's own, of which this changes `answers`."""
        self._anchors = anchors
        self.current = dict(image.tokens)
        """The tokens of the current or last turn, and the sequence numbers of the messages that carried them."""
        self.finished = dict(image.finished_turns)
        self.unanswered = dict(image.unanswered)

    def left_behind(self, token: str, last: Message | None) -> UnansweredTurn | None:
        """The turn with this token, if it has no whole answer and does not go on by itself at the end; else None.
        `last`: the last message of the conversation.
        """
        if token in self.current and last is not None and is_answer(last):
            return None if is_whole(last) else UnansweredTurn(token=token, seq=self.current[token])
        return self.unanswered.get(token)

    def first_of(self, token: str) -> int | None:
        """The message that carried this token; None for a turn that is not known, or not any more."""
        if token in self.current:
            return self.current[token]
        turn = self.finished.get(token) or self.unanswered.get(token)
        return None if turn is None else turn.seq

    def named_with(self, token: str) -> Collection[str]:
        """All tokens of the turn with this one, if it is the last one or has no answer."""
        turn = self.unanswered.get(token)
        if token in self.current or turn is None:
            return self.current.keys() if token in self.current else ()
        return [other.token for other in self.unanswered.values() if other.left == turn.left]

    def needed(self, last_seq: int, first: int, *, running: bool) -> int:
        """The first record that folding needs; `first`: the one needed by all but tokens. An unanswered turn keeps its
        token to be resumed; a running turn may hold an answer already and still be asked for structured output.
        """
        for token, seq in self.current.items():
            answered = self.finished.get(token)
            if seq < first and (running or answered is None or answered.seq != seq):
                first = seq
        for turn in self.unanswered.values():
            if last_seq - UNANSWERED_ROWS <= turn.seq < first:
                first = turn.seq
        return first

    def begin(
        self,
        seq: int,
        record: MessageAdded,
        last: Message | None,
        open_tools: Mapping[str, ToolStarted],
        steps: Mapping[str, Mapping[str, RecordedStep]],
    ) -> None:
        """A turn begins after `last`. The current turn, if unanswered, goes on in the new one or is left behind."""
        token = record.idempotency_token
        # Nearly every turn of a program that names none.
        if token is None and not self.current:
            return
        goes_on = _goes_on(last, record.message)
        answered = last is not None and is_answer(last) and is_whole(last)
        # A call without a token goes on with the last turn, so it keeps that turn's tokens.
        if answered or (token not in self.current if token is not None else not goes_on):
            self.leave(seq, last, {} if goes_on else open_tools, steps)
            self.current = {}
        if token is not None:
            self.join(token, seq)

    def join(self, token: str, seq: int) -> None:
        """The current turn has this token."""
        self.current[token] = seq
        self.unanswered.pop(token, None)

    def leave(
        self,
        at: int,
        last: Message | None,
        open_tools: Mapping[str, ToolStarted],
        steps: Mapping[str, Mapping[str, RecordedStep]],
    ) -> None:
        """Keep the current turn as unanswered, unless `last` is its answer. `at`: the record after it. `open_tools`:
        started, without an outcome; `steps`: theirs.
        """
        if not self.current or last is None or (is_answer(last) and is_whole(last)):
            return
        tokens, self.current = self.current, {}
        uses = {use["toolUseId"]: use for use in tool_uses(last)}
        started = [(uses[use_id], start) for use_id, start in open_tools.items() if use_id in uses]
        unknown = tuple(UnsettledTool(use, start, steps.get(use["toolUseId"], {})) for use, start in started)
        for token, seq in tokens.items():
            # It had an answer and went on: from now on it is one without.
            if self.finished.pop(token, None) is not None:
                self._not_stated(seq)
            self._remember(UnansweredTurn(token=token, seq=seq, left=at, unknown=unknown))

    def answer(self, seq: int, message: Message) -> None:
        """The current turn has this answer. Fillers and answers that were cut off or refused do not count."""
        if not (self.current and is_whole(message)):
            return
        for token, token_seq in self.current.items():
            self.finished.pop(token, None)
            self.finished[token] = FinishedTurn(token=token, seq=token_seq, answer_seq=seq)
            self._not_stated(token_seq)
            if len(self.finished) > FINISHED_TURNS_MAX:
                del self.finished[next(iter(self.finished))]

    def state(self, seq: int, record: AnswersStated) -> None:
        self.finished = {turn.token: turn for turn in record.answers}
        self._anchors.answers = seq if record.answers else 0

    def _not_stated(self, seq: int) -> None:
        """The end of the turn of the token at `seq` is read from its messages until it is stated."""
        self._anchors.answers = min(self._anchors.answers or seq, seq)

    def redact(self, target: int, message: Message) -> None:
        """The message at `target` was replaced. A turn whose answer is now a filler counts as unanswered."""
        for token, turn in list(self.finished.items()):
            if turn.answer_seq != target or is_whole(message):
                continue
            del self.finished[token]
            # The current one is known by `current` already.
            if token not in self.current:
                self._remember(UnansweredTurn(token=token, seq=turn.seq, left=target))

    def _remember(self, turn: UnansweredTurn) -> None:
        self.unanswered.pop(turn.token, None)
        self.unanswered[turn.token] = turn
        if len(self.unanswered) > FINISHED_TURNS_MAX:
            del self.unanswered[next(iter(self.unanswered))]


def is_answer(message: Message) -> bool:
    """True if a message ends a turn: an assistant message without tool uses, whose provider has not just paused."""
    if message["role"] != "assistant" or is_paused(message):
        return False
    content = message["content"]
    return is_one_text(content) or not any("toolUse" in block for block in content)


def _goes_on(last: Message | None, message: Message) -> bool:
    """True if a turn's first message continues the turn before: it is an answer, or holds only tool results."""
    if last is None or is_answer(last) or is_filler(message):
        return False
    return message["role"] == "assistant" or _has_results_alone(message)


def _has_results_alone(message: Message) -> bool:
    return all("toolResult" in block for block in message["content"])
