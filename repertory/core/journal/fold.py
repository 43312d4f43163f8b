"""Folding records into the state that an agent needs to go on.

Applying a record takes constant time; only a view change costs what it drops or replaces. The running agent and a
restart use the same code, so the restored state equals the live one.

Folding the records from `needed` on gives the same image as folding all of them: every record that later ones build on
is an anchor (`Anchors`), and `needed` never passes an anchor. `restatements` keeps anchors from falling far behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import assert_never

from repertory.core.interrupts import Interrupt, outcome_id
from repertory.core.journal.image import Anchors, FinishedTurn, Image, UnansweredTurn, UnsettledTool
from repertory.core.journal.records import (
    WHOLE,
    Branched,
    CursorMoved,
    Interrupted,
    MessageAdded,
    NodeChanged,
    OwnerChanged,
    Record,
    Redacted,
    Resumed,
    SnapshotTaken,
    StateChanged,
    ToolFinished,
    ToolStarted,
    View,
    ViewChanged,
)
from repertory.core.journal.view import VisibleMessages, shown_at
from repertory.core.messages import Json, Message, ToolResult, check_next, is_filler, tool_uses
from repertory.core.turn import is_whole
from repertory.errors import Invalid


class Fold:
    """The state of one agent's journal. Start from an image (an agent at rest), or from nothing.

    `apply` takes a whole record, or raises and changes nothing. Properties return live, read-only values.
    """

    def __init__(self, image: Image | None = None, *, partial: bool = False) -> None:
        """With `partial`, the records up to `image.last_seq` are unknown rather than absent: nothing is checked against
        them.
        """
        image = image or Image()
        self._partial = partial
        self._unchecked = False
        self._last_seq = image.last_seq
        self._message_count = image.message_count
        self._turns: int = image.turns
        self._shown = VisibleMessages(image.view, iter(image.recent))
        self._last_message = image.last_message
        self._last_message_seq = image.last_message_seq
        self._state = dict(image.state)
        self._open_tools = dict(image.open_tools)
        self._finished_tools = dict(image.finished_tools)
        self._parked = dict(image.parked)
        self._questions = {question.id: question for question in image.questions}
        self._responses = dict(image.responses)
        self._run = image.run
        self._nodes = dict(image.nodes)
        self._frontier = image.frontier
        self._cursors = dict(image.cursors)
        self._kept = dict(image.kept)
        self._named = TurnTokens(image)
        self._take_anchors(image.anchors)

    def _take_anchors(self, anchors: Anchors) -> None:
        self._message_at = anchors.message
        self._turn_at = anchors.turn
        self._view_at = anchors.view
        self._state_at = anchors.state
        self._cursors_at = anchors.cursors
        self._tools_at = anchors.tools
        self._waiting_at = anchors.waiting
        self._run_at = anchors.run

    # The current state.

    @property
    def last_seq(self) -> int:
        """The sequence number of the last record applied; 0 before the first one."""
        return self._last_seq

    @property
    def message_count(self) -> int:
        """Messages ever added: the `index` of the next one."""
        return self._message_count

    @property
    def turns(self) -> int:
        """Turns ever begun: the `turn` of the last message."""
        return self._turns

    @property
    def shown(self) -> VisibleMessages:
        """What the model is shown."""
        return self._shown

    @property
    def last_message(self) -> Message | None:
        """The last message of the conversation, shown or not."""
        return self._last_message

    @property
    def last_message_seq(self) -> int:
        """The sequence number of the last message; 0 when there is none."""
        return self._last_message_seq

    @property
    def state(self) -> Mapping[str, Json]:
        return MappingProxyType(self._state)

    @property
    def open_tools(self) -> Mapping[str, ToolStarted]:
        """Tool use id to its start, for tools started since the last message that have not ended."""
        return MappingProxyType(self._open_tools)

    @property
    def finished_tools(self) -> Mapping[str, ToolResult]:
        """Tool use id to a result that no message holds yet."""
        return MappingProxyType(self._finished_tools)

    @property
    def parked(self) -> Mapping[str, ToolStarted]:
        """Tool use id to its last start, for tools that stopped to ask a person and have not run since."""
        return MappingProxyType(self._parked)

    @property
    def questions(self) -> tuple[Interrupt, ...]:
        """The interrupts of the running turn, answered or not, in order."""
        return tuple(self._questions.values())

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """The interrupts without a response, in the order asked."""
        return tuple(one for one in self._questions.values() if one.id not in self._responses)

    @property
    def responses(self) -> Mapping[str, Json]:
        """Interrupt id to response, for the running turn."""
        return MappingProxyType(self._responses)

    @property
    def run(self) -> int:
        """The orchestrator's current run; 0 before the first one."""
        return self._run

    @property
    def nodes(self) -> Mapping[str, NodeChanged]:
        """The latest record of each node of the orchestrator's current run, in order of first mention."""
        return MappingProxyType(self._nodes)

    @property
    def frontier(self) -> tuple[str, ...]:
        """The orchestrator's nodes that are to run next."""
        return self._frontier

    @property
    def cursors(self) -> Mapping[str, int]:
        """How far each memory store has got in this journal."""
        return MappingProxyType(self._cursors)

    @property
    def kept(self) -> Mapping[str, Json]:
        """The pending and rejected work of each memory store."""
        return MappingProxyType(self._kept)

    @property
    def finished_turns(self) -> Mapping[str, FinishedTurn]:
        """Answered turns by idempotency token: at most `FINISHED_TURNS_MAX`, the latest ones."""
        return MappingProxyType(self._named.finished)

    def unanswered_turn(self, token: str) -> UnansweredTurn | None:
        """The turn with this token, if it has no whole answer and does not go on by itself at the end; else None."""
        return self._named.left_behind(token, self._last_message)

    @property
    def anchors(self) -> Anchors:
        """The rows that opening the agent here depends on."""
        return Anchors(
            message=self._message_at,
            turn=self._turn_at,
            view=self._view_at,
            state=self._state_at,
            cursors=self._cursors_at,
            tools=self._tools_at,
            waiting=self._waiting_at,
            run=self._run_at,
        )

    @property
    def needed(self) -> int:
        """The first record that folding needs to get here; `last_seq` when none matters."""
        first = self._last_seq
        for seq in (
            self._shown.first_seq,
            self._message_at,
            self._turn_at,
            self._view_at,
            self._state_at,
            self._cursors_at,
            self._tools_at,
            self._waiting_at,
            self._run_at,
        ):
            if 0 < seq < first:
                first = seq
        return self._named.needed(self._last_seq, first, running=self._turn_at > 0)

    @property
    def low(self) -> int:
        """The first row to read: the one before `needed`, whose link proves the others."""
        return max(1, self.needed - 1)

    def image(self) -> Image:
        """The agent at rest. Costs what is shown."""
        needed = self.needed
        return Image(
            last_seq=self._last_seq,
            message_count=self._message_count,
            turns=self._turns,
            view=self._shown.view,
            recent=tuple(self._shown.recent),
            last_message=self._last_message,
            last_message_seq=self._last_message_seq,
            state=dict(self._state),
            open_tools=dict(self._open_tools),
            finished_tools=dict(self._finished_tools),
            parked=dict(self._parked),
            questions=self.questions,
            responses=dict(self._responses),
            nodes=dict(self._nodes),
            frontier=self._frontier,
            cursors=dict(self._cursors),
            kept=dict(self._kept),
            finished_turns={token: turn for token, turn in self._named.finished.items() if turn.seq >= needed},
            unanswered={token: turn for token, turn in self._named.unanswered.items() if turn.seq >= needed},
            token=self._named.current if self._named.current is not None and self._named.current[1] >= needed else None,
            run=self._run,
            anchors=self.anchors,
        )

    # Applying records.

    def apply(self, seq: int, record: Record) -> None:
        """Apply the next record.

        Errors: `Invalid` when it may not follow (`UnpairedTools` when its tools do not pair up).
        """
        if seq != self._last_seq + 1:
            raise Invalid("a record follows the last one", seq=seq, last=self._last_seq)
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
            case Redacted():
                self._on_redacted(record)
            case Interrupted() | Resumed():
                self._on_waiting(seq, record)
            case NodeChanged():
                self._on_node(seq, record)
            case CursorMoved():
                self._on_cursor(seq, record)
            case SnapshotTaken() | OwnerChanged():
                pass
            case Branched():
                raise Invalid("a branch takes the history that it goes back to: use `rewind`", seq=seq)
            case _:
                assert_never(record)
        self._last_seq = seq

    def show_with_last(self, view: View) -> None:
        """Apply a view patch as part of the last record, which is a message.

        Errors: `Invalid` when the patch is not allowed; nothing has changed then.
        """
        _check_light(view)
        if not (self._partial or self._unchecked):
            self._shown.check(view, patch=True)
        self._change_view(self._last_seq, view, patch=True)

    def skip(self, seq: int, *, branch: bool = False) -> None:
        """Pass an erased row that is no message: a later row restates what it said.

        After an erased branch nothing is checked until the branch that restates everything.
        """
        self._last_seq = seq
        self._unchecked = self._unchecked or branch

    def rewind(self, seq: int, record: Branched, history: Mapping[int, Message], *, partial: bool = False) -> None:
        """Go on from an earlier position.

        `history` holds, in order, at least the messages that the record's view shows and its last message; with
        `partial`, those that are still needed at the end of the rows being folded. Errors: `Invalid` when the last
        message is missing.
        """
        if seq != self._last_seq + 1 or not (0 <= record.position < seq and 0 <= record.last < seq):
            fields = {"seq": seq, "position": record.position, "last": record.last}
            raise Invalid("a branch goes back to an earlier record", **fields)
        known = record.last in history or not record.last
        if not known and not partial:
            raise Invalid("the history for a branch lacks its last message", last=record.last)
        self._partial, self._unchecked = not known, False
        self._last_seq = seq
        self._last_message = history.get(record.last)
        self._last_message_seq = record.last
        self._message_count = record.message_count
        self._turns = record.turns
        self._run = record.run
        self._state = dict(record.state)
        gap = () if record.position == seq - 1 else ((record.position + 1, seq),)
        view = record.view
        self._shown = shown_at(view_hiding(view, gap), history, record.position)
        unanswered = self._last_message is not None and not is_answer(self._last_message)
        turn_at = record.last if unanswered else 0
        # A branch to before the first message or run is itself the anchor: it holds the numbers to go on from.
        self._take_anchors(
            Anchors(
                message=record.last or seq,
                turn=turn_at,
                view=seq,
                state=seq,
                cursors=self._cursors_at,
                run=seq if record.run else 0,
            )
        )
        self._forget_turn()
        self._nodes, self._frontier = {}, ()
        self._named = TurnTokens(Image())

    def _on_message(self, seq: int, record: MessageAdded) -> None:
        message, view = record.message, record.view
        begins = self._partial or record.turn != self._turns
        if view is not None:
            _check_light(view)
        if not (self._partial or self._unchecked):
            check_next(self._last_message, message)
            self._check_numbers(record, begins=begins)
            if view is not None:
                self._shown.check(view, patch=True)
        if begins:
            self._named.begin(seq, record, self._last_message, self._open_tools)
            self._turns, self._turn_at = record.turn, seq
        elif is_filler(message):
            self._named.leave(self._last_message, {})
        self._partial = False
        self._message_count = record.index + 1
        self._last_message = message
        self._last_message_seq = self._message_at = seq
        self._shown.add(seq, message)
        if view is not None:
            self._change_view(seq, view, patch=True)
        if self._tools_at or self._waiting_at:
            self._forget_turn()
        if is_answer(message):
            self._turn_at = 0
            self._named.answer(seq, message, self._turns)
        elif not self._turn_at:
            self._turn_at = seq

    def _check_numbers(self, record: MessageAdded, *, begins: bool) -> None:
        if record.index != self._message_count:
            raise Invalid(
                "a message's index is the number of messages before it", index=record.index, count=self._message_count
            )
        if record.turn < max(1, self._turns):
            raise Invalid("a message's turn never falls", turn=record.turn, turns=self._turns)
        if record.idempotency_token is not None and not begins:
            raise Invalid("an idempotency token stands on the first message of its turn", turn=record.turn)

    def _forget_turn(self) -> None:
        """A new message settles all that the turn waited for."""
        self._open_tools.clear()
        self._finished_tools.clear()
        self._parked.clear()
        self._forget_waiting()
        self._tools_at = 0

    def _forget_waiting(self) -> None:
        self._questions.clear()
        self._responses.clear()
        self._waiting_at = 0

    def _on_state(self, seq: int, record: StateChanged) -> None:
        if record.full is not None:
            if record.set or record.delete:
                raise Invalid("a record with a full state has no patch")
            self._state = dict(record.full)
            self._state_at = seq if record.full else 0
            return
        self._state.update(record.set)
        for key in record.delete:
            self._state.pop(key, None)
        self._state_at = self._state_at or seq

    def _on_view(self, seq: int, record: ViewChanged) -> None:
        if not (self._partial or self._unchecked):
            self._shown.check(record.view, patch=record.patch)
        self._change_view(seq, record.view, patch=record.patch)

    def _change_view(self, seq: int, view: View, *, patch: bool) -> None:
        self._shown.change(view, patch=patch)
        # A patch of a view that holds nothing else says as much as a full one.
        if not patch or not self._view_at or self._shown.light:
            self._view_at = seq

    def _on_tool_started(self, seq: int, record: ToolStarted) -> None:
        self._finished_tools.pop(record.tool_use_id, None)
        self._parked.pop(record.tool_use_id, None)
        self._settle_outcome(record.tool_use_id)
        self._open_tools[record.tool_use_id] = record
        self._tools_at = self._tools_at or seq

    def _on_tool_finished(self, seq: int, record: ToolFinished) -> None:
        self._open_tools.pop(record.tool_use_id, None)
        self._parked.pop(record.tool_use_id, None)
        self._settle_outcome(record.tool_use_id)
        self._finished_tools[record.tool_use_id] = record.result
        self._tools_at = self._tools_at or seq

    def _settle_outcome(self, use_id: str) -> None:
        """Drop the question about an earlier start, and its answer: they do not apply to this start."""
        asked = outcome_id(use_id)
        self._questions.pop(asked, None)
        self._responses.pop(asked, None)

    def _on_redacted(self, record: Redacted) -> None:
        self._shown.redact(record.target, record.message)
        if record.target == self._last_message_seq:
            self._last_message = record.message
        self._named.redact(record.target, record.message)

    def _on_waiting(self, seq: int, record: Interrupted | Resumed) -> None:
        self._waiting_at = self._waiting_at or seq
        if isinstance(record, Interrupted):
            for interrupt in record.interrupts:
                self._questions[interrupt.id] = interrupt
                self._responses.pop(interrupt.id, None)
            for use_id in record.parked:
                started = self._open_tools.pop(use_id, None)
                if started is not None:
                    self._parked[use_id] = started
            return
        self._responses.update(record.responses)

    def _on_node(self, seq: int, record: NodeChanged) -> None:
        if record.run < max(1, self._run):
            raise Invalid("an orchestrator's run never falls", run=record.run, was=self._run)
        if record.run > self._run:
            self._run, self._run_at = record.run, seq
            self._nodes.clear()
            self._forget_waiting()
        elif record.data.get(WHOLE) is True:
            self._run_at = seq
            self._nodes.clear()
        self._nodes[record.node] = record
        self._frontier = record.frontier

    def _on_cursor(self, seq: int, record: CursorMoved) -> None:
        self._cursors, self._kept = dict(record.positions), dict(record.kept)
        self._cursors_at = seq if record.positions or record.kept else 0


def _check_light(view: View) -> None:
    if view.pinned or view.replaced or view.summary is not None or view.hidden:
        raise Invalid("the view in a message's record holds no messages; state it in a record of its own")


def view_hiding(view: View, stretches: tuple[tuple[int, int], ...]) -> View:
    """The view with more ranges hidden."""
    return replace(view, hidden=(*view.hidden, *stretches)) if stretches else view


# Turns with idempotency tokens: the current one, the answered ones, and the unanswered ones that another turn followed.

FINISHED_TURNS_MAX = 64
"""How many answered tokens are kept, at most; and as many unanswered ones."""
UNANSWERED_ROWS = 256
"""An unanswered turn that another one followed is kept for at least this many records."""


class TurnTokens:
    """The idempotency tokens of a journal. Only the fold changes them."""

    def __init__(self, image: Image) -> None:
        self.current = image.token
        """The token of the current or last turn, and the sequence number of the message that carried it."""
        self.finished = dict(image.finished_turns)
        self.unanswered = dict(image.unanswered)

    def left_behind(self, token: str, last: Message | None) -> UnansweredTurn | None:
        """See `Fold.unanswered_turn`. `last`: the last message of the conversation."""
        if self.current is not None and self.current[0] == token and last is not None and is_answer(last):
            return None if is_whole(last) else UnansweredTurn(token=token, seq=self.current[1])
        return self.unanswered.get(token)

    def needed(self, last_seq: int, first: int, *, running: bool) -> int:
        """The first record that folding needs; `first`: the one needed by all but tokens. An unanswered turn keeps its
        token to be resumed; a running turn may hold an answer already and still be asked for structured output.
        """
        if self.current is not None and self.current[1] < first:
            token, seq = self.current
            answered = self.finished.get(token)
            if running or answered is None or answered.seq != seq:
                first = seq
        for turn in self.unanswered.values():
            if last_seq - UNANSWERED_ROWS <= turn.seq < first:
                first = turn.seq
        return first

    def begin(
        self, seq: int, record: MessageAdded, last: Message | None, open_tools: Mapping[str, ToolStarted]
    ) -> None:
        """A turn begins after `last`. The current turn, if unanswered, goes on in the new one or is left behind."""
        token, current = record.idempotency_token, None if self.current is None else self.current[0]
        goes_on = _goes_on(last, record.message)
        if token != current if token is not None else not goes_on:
            self.leave(last, {} if goes_on else open_tools)
            self.current = None
        if token is not None:
            self.current = token, seq
            self.unanswered.pop(token, None)

    def leave(self, last: Message | None, open_tools: Mapping[str, ToolStarted]) -> None:
        """Keep the current turn as unanswered, unless `last` is its answer. `open_tools`: started, without
        an outcome.
        """
        if self.current is None or last is None or (is_answer(last) and is_whole(last)):
            return
        (token, seq), self.current = self.current, None
        uses = {use["toolUseId"]: use for use in tool_uses(last)}
        started = [(uses[use_id], start) for use_id, start in open_tools.items() if use_id in uses]
        self.finished.pop(token, None)
        self._remember(UnansweredTurn(token=token, seq=seq, unknown=tuple(UnsettledTool(*each) for each in started)))

    def answer(self, seq: int, message: Message, turn: int) -> None:
        """The current turn has this answer. Fillers and answers that were cut off or refused do not count."""
        if self.current is None or not is_whole(message):
            return
        token, token_seq = self.current
        self.finished.pop(token, None)
        self.finished[token] = FinishedTurn(token=token, turn=turn, seq=token_seq, answer_seq=seq, answer=message)
        if len(self.finished) > FINISHED_TURNS_MAX:
            del self.finished[next(iter(self.finished))]

    def redact(self, target: int, message: Message) -> None:
        """The message at `target` was replaced. A turn whose answer is now a filler counts as unanswered."""
        for token, turn in list(self.finished.items()):
            if turn.answer_seq != target:
                continue
            if is_whole(message):
                self.finished[token] = replace(turn, answer=message)
                continue
            del self.finished[token]
            if self.current is None or self.current[0] != token:
                self._remember(UnansweredTurn(token=token, seq=turn.seq))

    def _remember(self, turn: UnansweredTurn) -> None:
        self.unanswered.pop(turn.token, None)
        self.unanswered[turn.token] = turn
        if len(self.unanswered) > FINISHED_TURNS_MAX:
            del self.unanswered[next(iter(self.unanswered))]


def is_answer(message: Message) -> bool:
    """True if a message ends a turn: an assistant message without tool uses."""
    return message["role"] == "assistant" and not any(tool_uses(message))


def _goes_on(last: Message | None, message: Message) -> bool:
    """True if a turn's first message continues the turn before: it is an answer, or holds only tool results."""
    if last is None or is_answer(last) or is_filler(message):
        return False
    return message["role"] == "assistant" or all("toolResult" in block for block in message["content"])
