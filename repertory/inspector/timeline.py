"""The records of a session as its page shows them: messages with their tools, and lines about everything else."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from markupsafe import Markup

from repertory.core.interrupts import held_up
from repertory.core.journal.records import (
    Branched,
    CursorMoved,
    DeferralsChanged,
    DeferredResult,
    DeliveriesChanged,
    Interrupted,
    MessageAdded,
    NodeChanged,
    OwnerChanged,
    Record,
    Redacted,
    Resumed,
    SnapshotTaken,
    StateChanged,
    StepFinished,
    StepStarted,
    TimersChanged,
    ToolFinished,
    ToolStarted,
    View,
    ViewChanged,
)
from repertory.core.journal.redact import texts_of
from repertory.core.journal.rows import RecordKind
from repertory.core.journal.steps import RecordedStep, step_words
from repertory.core.journal.whole_journal import position_named
from repertory.core.messages import is_stopped, text_of, tool_results, tool_uses
from repertory.core.orchestration.journals import ORCHESTRATORS
from repertory.core.orchestration.run import notice_of
from repertory.core.provider_content import kind_of
from repertory.errors import Corrupt
from repertory.inspector.waterfall import Span, SpansOfTurn
from repertory.inspector.wording import HIDDEN, cut_text, first_words, grouped, json_text, rich_text, visible
from repertory.operations.answering import may_answer
from repertory.service.decisions.answers import AnswerForm, answer_form

if TYPE_CHECKING:
    from repertory.core.deliveries import EventDelivery
    from repertory.core.history.pages import StoredRecord
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse
    from repertory.operations.ends import StoredEnd
    from repertory.operations.paging import StoredPage
    from repertory.operations.questions import OpenQuestion

ToolOutcome = Literal["done", "failed", "running", "asks", "not on this page"]
"""`running`: started, and no end is on record; after a crash its outcome is unknown."""
_NOTHING = Markup("")
_CLOSE_S = 0.1
"""Seconds before its first record in which a turn may have waited for its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCard:
    """One step of a tool, one of its compensations, or a call that it makes of another tool."""

    name: str
    input: str = ""
    """The input of such a call; empty where contents are hidden."""
    outcome: Literal["done", "failed", "running"]
    undoes: bool
    attempt: int
    began: float
    duration_s: float | None = None
    text: str = ""
    """The failure, or the result as JSON; empty where contents are hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCard:
    """One tool use."""

    name: str
    use_id: str
    input: str
    outcome: ToolOutcome
    began: float | None = None
    """Epoch seconds; None where no time is known."""
    duration_s: float | None = None
    attempt: int = 1
    result: str | None = None
    steps: tuple[StepCard, ...] = ()
    """The tool's steps, in the order in which they began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShown:
    """One content block of a message."""

    kind: Literal["text", "reasoning", "tool", "result", "provider", "other"]
    html: Markup = _NOTHING
    tool: ToolCard | None = None
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensShown:
    """The usage that a model reported for one answer."""

    input: int
    output: int
    cached: int = 0
    latency_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShown:
    """A message on the page."""

    seq: int
    at: float
    role: str
    blocks: Sequence[BlockShown]
    turn: int
    shown: bool | None
    """True if the model's window has it now; None where that is not known."""
    left_behind: bool
    tokens: TokensShown | None = None
    stopped: bool = False
    repaired: str = ""
    window: str = ""
    """The change of the model's window with this message, in words; empty without one."""
    what: Literal["message"] = "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteShown:
    """A line about something else that happened."""

    seq: int
    at: float
    sign: str
    """The name of the symbol in front of it."""
    title: str
    text: str = ""
    details: Markup | str = ""
    """The details, folded away."""
    position: int | None = None
    """The position that it is about."""
    session: tuple[str, str] | None = None
    """The session and agent that the position is in; None: this one."""
    left_behind: bool = False
    what: Literal["note"] = "note"


@dataclass(slots=True, kw_only=True)
class TurnShown:
    """A turn, or what stands before the first one, as far as it is on the page."""

    turn: int | None
    items: list[MessageShown | NoteShown] = field(default_factory=list["MessageShown | NoteShown"])
    spans: list[Span] = field(default_factory=list["Span"])

    @property
    def messages(self) -> list[MessageShown]:
        return [each for each in self.items if isinstance(each, MessageShown)]

    @property
    def steps(self) -> int:
        """Answers of the model."""
        return sum(each.role == "assistant" for each in self.messages)

    @property
    def tokens(self) -> tuple[int, int] | None:
        """Input and output tokens, as reported."""
        usages = [each.tokens for each in self.messages if each.tokens is not None]
        return (sum(each.input for each in usages), sum(each.output for each in usages)) if usages else None

    @property
    def took_s(self) -> float:
        """Seconds from its first message to its last one."""
        messages = self.messages
        return messages[-1].at - messages[0].at if messages else 0.0


def turns_of(
    page: StoredPage,
    beside: Sequence[StoredRecord] = (),
    stored: Sequence[tuple[float, float]] = (),
    *,
    content: bool,
) -> list[TurnShown]:
    """The page by turns. `beside`: records before and after it, with the other halves of its tools; `stored`: when the
    last turn waited for its store; `content`: whether texts, inputs and results are shown.
    """
    facts = _ToolFacts(page.records, beside)
    found: list[TurnShown] = []
    times = SpansOfTurn(facts.span)
    for each in page.records:
        item = _item(each, facts, page, content=content)
        turn = each.record.turn if isinstance(each.record, MessageAdded) else None
        if (item is not None and not found) or (turn is not None and found and found[-1].turn not in (turn, None)):
            found.append(TurnShown(turn=turn))
            times = SpansOfTurn(facts.span, found[-1].spans)
        elif turn is not None and found and found[-1].turn is None:
            found[-1].turn = turn
        if not each.left_behind:
            times.add(each)
        if item is not None:
            found[-1].items.append(item)
    if found and found[-1].spans and page.last == page.end:
        begins = found[-1].spans[0].began
        found[-1].spans += [
            Span(kind="store", name="store", began=one, ended=other)
            for one, other in stored
            if one >= begins - _CLOSE_S
        ]
    return found


def lacks_halves(records: Sequence[StoredRecord]) -> tuple[bool, bool]:
    """True, first, if uses of tools stand before these records; second, if results stand behind them."""
    uses, results = set[str](), set[str]()
    for each in records:
        if isinstance(each.record, MessageAdded):
            uses.update(use["toolUseId"] for use in tool_uses(each.record.message))
            results.update(result["toolUseId"] for result in tool_results(each.record.message))
    return bool(results - uses), bool(uses - results)


_Use = tuple[int, str]
"""A use of a tool: the number of its message, and its id, which some services give again in later turns."""


class _ToolFacts:
    """The facts of each tool use, as records have them."""

    def __init__(self, records: Sequence[StoredRecord], beside: Sequence[StoredRecord] = ()) -> None:
        self.uses: dict[_Use, ToolUse] = {}
        self.started: dict[_Use, ToolStarted] = {}
        self.finished: dict[_Use, float] = {}
        self.results: dict[_Use, ToolResult] = {}
        self.steps: dict[_Use, dict[str, RecordedStep]] = {}
        self.use_of: dict[_Use, _Use] = {}
        """The use of a result, by the number of the result's message and the id."""
        self.asked_at: dict[_Use, float] = {}
        """The time of each use whose message is shown, so that the result is shown there."""
        self.asked: set[_Use] = set()
        """The uses that wait for a person."""
        self._latest: dict[str, _Use] = {}
        self._answered: dict[_Use, float] = {}
        """The time of the answer to a question, by the use that it is about."""
        questions: dict[str, list[_Use]] = {}
        last: list[ToolUse] = []
        here = {each.seq for each in records}
        for each in sorted([*records, *(one for one in beside if one.seq not in here)], key=lambda each: each.seq):
            match each.record:
                case ToolStarted() as started:
                    self.started[self._use(started.tool_use_id)] = started
                case ToolFinished() as ended:
                    self._ended(self._use(ended.tool_use_id), ended.result, ended.at)
                case StepStarted() | StepFinished() as step:
                    self._step(step)
                case MessageAdded(message=message, at=at):
                    self.add(message, each.seq, at, shown=each.seq in here)
                    last = [*tool_uses(message)] or last
                case Interrupted(interrupts=interrupts):
                    for one in interrupts:
                        questions[one.id] = [self._use(use_id) for use_id in held_up(one, last)]
                case Resumed(responses=responses, at=at):
                    for interrupt_id in responses:
                        self._answered.update(dict.fromkeys(questions.pop(interrupt_id, ()), at))
                case _:
                    pass
        self.asked.update(use for uses in questions.values() for use in uses)

    def add(self, message: Message, seq: int, at: float, *, shown: bool) -> None:
        """Take in a message, which is shown or stands beside those that are."""
        for use in tool_uses(message):
            key = self._latest[use["toolUseId"]] = seq, use["toolUseId"]
            self.uses[key] = use
            if shown:
                self.asked_at[key] = at
        for result in tool_results(message):
            key = self.use_of[seq, result["toolUseId"]] = self._use(result["toolUseId"])
            self._ended(key, result, self.finished.get(key, at))

    def _use(self, use_id: str) -> _Use:
        return self._latest.get(use_id, (0, use_id))

    def _ended(self, use: _Use, result: ToolResult, at: float) -> None:
        self.results[use], self.finished[use] = result, at

    def _step(self, record: StepStarted | StepFinished) -> None:
        steps = self.steps.setdefault(self._use(record.tool_use_id), {})
        if isinstance(record, StepStarted):
            steps[record.step] = RecordedStep(record)
        elif record.step in steps:
            steps[record.step] = RecordedStep(steps[record.step].started, record)

    def card(self, key: _Use, *, content: bool) -> ToolCard:
        use, started, result, ended = (
            self.uses[key],
            self.started.get(key),
            self.results.get(key),
            self.finished.get(key),
        )
        # Tools without effects have no record of their start.
        began = started.at if started is not None else self._answered.get(key, self.asked_at.get(key)) or None
        outcome: ToolOutcome = "not on this page"
        if result is not None:
            outcome = "done" if result.get("status", "success") == "success" else "failed"
        elif key in self.asked:
            outcome = "asks"
        elif started is not None:
            outcome = "running"
        return ToolCard(
            name=first_words(use["name"], 80),
            use_id=use["toolUseId"],
            input=json_text(use["input"]) if content else "",
            outcome=outcome,
            began=began,
            duration_s=ended - began if began is not None and ended is not None else None,
            attempt=started.attempt if started is not None else 1,
            result=None if result is None or not content else _result_text(result),
            steps=tuple(_step_card(step, content=content) for step in self.steps.get(key, {}).values()),
        )

    def span(self, seq: int, use_id: str) -> Span | None:
        """The time of a tool use; None where it is not known, or has not begun."""
        card = self.card((seq, use_id), content=False)
        if card.began is None or (card.duration_s is None and card.outcome != "running"):
            return None
        ended = None if card.duration_s is None else card.began + card.duration_s
        return Span(kind="tool", name=card.name, began=card.began, ended=ended, failed=card.outcome == "failed")


def _step_card(step: RecordedStep, *, content: bool) -> StepCard:
    started, finished = step.started, step.finished
    failed = finished is not None and finished.error is not None
    text = ""
    if finished is not None and content:
        text = json_text(finished.result) if finished.error is None else cut_text(finished.error)
    if started.tool and finished is not None and isinstance(finished.result, dict):
        result = cast("ToolResult", finished.result)
        failed = result.get("status") == "error"
        text = _result_text(result) if content else ""
    if step.report is not None and content:
        text = cut_text(step.report)
    return StepCard(
        name=first_words(step_words(started.step), 80),
        input=json_text(started.input) if started.tool and content else "",
        outcome="failed" if failed else "running" if finished is None and step.report is None else "done",
        undoes=started.lane == "undo",
        attempt=started.attempt,
        began=started.at,
        duration_s=None if finished is None else finished.at - started.at,
        text=text,
    )


def _result_text(result: ToolResult) -> str:
    parts = [
        cut_text(str(part["text"]))
        if "text" in part
        else json_text(part["json"])
        if "json" in part
        else f"({', '.join(part)})"
        for part in result["content"]
    ]
    return "\n".join(parts)


def _item(each: StoredRecord, facts: _ToolFacts, page: StoredPage, *, content: bool) -> MessageShown | NoteShown | None:
    if isinstance(each.record, MessageAdded):
        return _message(each, each.record, facts, page, content=content)
    if each.record is None:
        return NoteShown(
            seq=each.seq,
            at=0.0,
            sign="redaction",
            title="Erased",
            text=f"The content of this record ({_kind(each.kind)}) was erased.",
            left_behind=each.left_behind,
        )
    return _note(each, each.record, content=content)


def _kind(kind: int) -> str:
    known = {int(one): one.name.lower().replace("_", " ") for one in RecordKind}
    return known.get(kind, f"kind {kind}")


def _message(
    each: StoredRecord, record: MessageAdded, facts: _ToolFacts, page: StoredPage, *, content: bool
) -> MessageShown | NoteShown:
    message = record.message
    blocks = [made for block in message["content"] for made in _block(block, each.seq, facts, content=content)]
    if not blocks and message["content"]:  # Results of tools that are shown with their uses.
        title, is_abandoned = _handed_back(message), each.left_behind
        return NoteShown(seq=each.seq, at=record.at, sign="resume", title=title, left_behind=is_abandoned)
    return MessageShown(
        seq=each.seq,
        at=record.at,
        role=message["role"],
        blocks=blocks,
        turn=record.turn,
        shown=None if page.shown is None else each.seq in page.shown,
        left_behind=each.left_behind,
        tokens=_tokens(message),
        stopped=is_stopped(message),
        repaired=record.repaired or "",
        window="" if record.view is None else _view_note(record.view, patch=True, reason="", content=content).text,
    )


def shown_blocks(messages: Sequence[Message], *, content: bool) -> list[list[BlockShown]]:
    """The blocks of messages that a model is shown: results stand with their tools, and not a second time."""
    facts = _ToolFacts(())
    for number, message in enumerate(messages):
        facts.add(message, number, 0.0, shown=True)
    return [
        [made for block in each["content"] for made in _block(block, number, facts, content=content)]
        for number, each in enumerate(messages)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionCard:
    """An open question to a person."""

    agent_id: str
    id: str
    name: str
    words: Markup
    tool: str
    input: str
    expires_at: float | None
    may_answer: str = ""
    """The names or roles of the people who may answer; empty where the question does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedQuestion:
    """An open question on the page of all of them."""

    card: QuestionCard
    session_id: str
    interrupt_id: str
    """The whole id, for the form."""
    asked_at: float
    form: AnswerForm
    over: bool
    """True if nobody may answer it any more."""
    posted: bool
    """True if an answer to it waits for its agent."""
    may_answer: bool
    """True if the people at these pages may answer."""


def listed_questions(
    found: Sequence[OpenQuestion], answers_as: Collection[str], *, now: float, content: bool
) -> list[ListedQuestion]:
    """The questions with their forms. `answers_as`: the names and roles of the people at these pages."""
    return [
        ListedQuestion(
            card=_card(one.agent_id, one.interrupt, content=content),
            session_id=one.session_id,
            interrupt_id=one.interrupt.id,
            asked_at=one.asked_at,
            form=answer_form(one.interrupt),
            over=one.interrupt.is_over(now),
            posted=one.answer_posted,
            may_answer=may_answer(one.interrupt, answers_as),
        )
        for one in found
    ]


def question_cards(ends: Mapping[str, StoredEnd], *, content: bool) -> list[QuestionCard]:
    """The open questions of a session. What the node of a graph asks stands in its own journal and in the run's."""
    found: dict[object, QuestionCard] = {}
    for agent_id, end in sorted(ends.items(), key=lambda each: not each[0].startswith(ORCHESTRATORS)):
        for one in end.questions:
            found[one.name, str(_words(one)), str(one.input)] = _card(agent_id, one, content=content)
    return list(found.values())


def _card(agent_id: str, one: Interrupt, *, content: bool) -> QuestionCard:
    words = _words(one)
    return QuestionCard(
        agent_id=agent_id,
        id=first_words(one.id, 300),
        name=first_words(one.name, 120),
        words=HIDDEN if not content else rich_text(words) if words else _NOTHING,
        tool=first_words(one.tool or "", 80),
        input=json_text(one.input) if content and one.input is not None else "",
        expires_at=one.expires_at,
        may_answer=", ".join(first_words(name, 60) for name in one.may_answer),
    )


def _words(one: Interrupt) -> str | None:
    return one.reason if isinstance(one.reason, str) else None if one.reason is None else json_text(one.reason)


def message_words(message: Message) -> str:
    """The texts of a message with its tools, on a few lines."""
    return first_words(" ".join(texts_of(message)), 600)


def _handed_back(message: Message) -> str:
    count = sum(1 for _ in tool_results(message))
    return f"{count} results went to the model" if count > 1 else "The result went to the model"


def _tokens(message: Message) -> TokensShown | None:
    metadata = message.get("metadata", {})
    usage = metadata.get("usage")
    if usage is None:
        return None
    latency = metadata.get("metrics", {}).get("latencyMs")
    return TokensShown(
        input=usage.get("inputTokens", 0),
        output=usage.get("outputTokens", 0),
        cached=usage.get("cacheReadInputTokens", 0),
        latency_ms=float(latency) if isinstance(latency, int | float) else None,
    )


def _block(block: ContentBlock, seq: int, facts: _ToolFacts, *, content: bool) -> Iterator[BlockShown]:
    if "text" in block:
        yield BlockShown(kind="text", html=rich_text(block["text"]) if content else HIDDEN)
    elif "toolUse" in block:
        yield BlockShown(kind="tool", tool=facts.card((seq, block["toolUse"]["toolUseId"]), content=content))
    elif "toolResult" in block:
        result = block["toolResult"]
        use = facts.use_of[seq, result["toolUseId"]]
        if use in facts.uses and use not in facts.asked_at:
            yield BlockShown(kind="tool", tool=facts.card(use, content=content), label="asked for before this page")
        elif use not in facts.uses:
            text = _result_text(result) if content else ""
            label = f"Result of an earlier tool use ({result.get('status', 'success')})"
            yield BlockShown(kind="result", label=label, html=Markup("<pre>{}</pre>").format(text) if text else HIDDEN)
    elif "reasoningContent" in block:
        reasoning = cast("Mapping[str, Mapping[str, object]]", block["reasoningContent"]).get("reasoningText", {})
        text = str(reasoning.get("text", "")) if content else ""
        yield BlockShown(kind="reasoning", label="Reasoning", html=rich_text(text) if text else HIDDEN)
    elif "citationsContent" in block:
        pieces = cast("Sequence[Mapping[str, object]]", block["citationsContent"].get("content", ()))
        text = "".join(str(each.get("text", "")) for each in pieces)
        yield BlockShown(kind="text", html=rich_text(text) if content else HIDDEN)
    elif "providerContent" in block:
        part = block["providerContent"]
        label = f"{part['provider']}: {kind_of(part['content'])}"
        text = json_text(part["content"]) if content else ""
        yield BlockShown(
            kind="provider",
            label=first_words(label, 80),
            html=Markup("<pre>{}</pre>").format(text) if text else HIDDEN,
        )
    else:
        yield BlockShown(kind="other", label=", ".join(map(str, block)))


# Everything but messages, as one line each.


def _note(each: StoredRecord, record: Record, *, content: bool) -> NoteShown | None:
    """The line of a record; None for one that is shown with a message, or says nothing to a reader."""
    match record:
        case ViewChanged(view=view, patch=patch):
            if record.reason == "restated":
                return None
            made = _view_note(view, patch=patch, reason=record.reason, content=content)
        case StateChanged():
            made = _state_note(record, content=content)
        case Redacted(target=target):
            made = _Line(
                "redaction", "Redacted", f"Message #{target} was replaced, and the original erased.", "", target
            )
        case Interrupted(interrupts=interrupts):
            asked = ", ".join(first_words(one.name, 60) for one in interrupts)
            reasons = {one.name: one.reason for one in interrupts}
            made = _Line("interrupt", "Waits for a person", asked, json_text(reasons) if content else "")
        case Resumed(responses=responses):
            made = _Line("resume", "Answered", "A person answered.", json_text(dict(responses)) if content else "")
        case NodeChanged():
            return _node_note(each, record, content=content)
        case SnapshotTaken(label=label):
            named = position_named(each.seq, record)
            more = json_text(dict(record.metadata)) if record.metadata and content else ""
            made = _Line("label", "Label", visible(label), more, named)
        case Branched(source=str(source)):
            session_id, _, agent_id = source.partition("/")
            return NoteShown(
                seq=each.seq,
                at=record.at,
                sign="fork",
                title="Forked",
                text=f"From {visible(source)}",
                position=record.source_position,
                session=(session_id, agent_id),
            )
        case Branched():
            if record.position == each.seq - 1:
                return None
            made = _Line("rewind", "Rewound", f"To #{record.position}. {visible(record.name)}", "", record.position)
        case CursorMoved(positions=positions):
            text = ", ".join(f"{visible(store)} has everything up to #{seq}" for store, seq in positions.items())
            made = _Line("memory", "Memory", text)
        case TimersChanged(timers=timers):
            text = ", ".join(visible(timer.id) for timer in timers) or "No timer is set any more."
            made = _Line("timer", "Timers", text)
        case DeferralsChanged() as changed:
            made = _Line("waits", "Results that come later", _waiting_line(changed))
        case DeferredResult(name=name, id=deferred, expired=expired):
            title = "No result in time" if expired else "A result has come"
            made = _Line("resume", title, f"{visible(name)} ({visible(deferred)})")
        case DeliveriesChanged(deliveries=deliveries, ended=ended):
            made = _delivery_line(deliveries, ended)
        case OwnerChanged(owner=owner, generation=generation):
            made = _Line("owner", "New owner", f"{visible(owner)}, generation {generation}")
        case _:
            return None
    return NoteShown(
        seq=each.seq,
        at=record.at,
        sign=made.sign,
        title=made.title,
        text=made.text,
        details=made.details,
        position=made.position,
        left_behind=each.left_behind,
    )


def _waiting_line(changed: DeferralsChanged) -> str:
    parts = [f"{visible(tool.tool)} ({visible(tool.id)}) waits" for tool in changed.deferrals]
    for run in changed.runs:
        parts.append(f"{visible(run.id)}: {'a person is asked' if run.asks else f'attempt {run.attempt}'}")
    parts += [f"{visible(each)} waits no longer" for each in changed.ended]
    parts += [f"{visible(each)} was told" for each in changed.told]
    return ", ".join(parts) or "No tool waits for one any more."


def _delivery_line(deliveries: Sequence[EventDelivery], ended: Sequence[str]) -> _Line:
    words = [
        f"{one.event} for {visible(one.to)} ({visible(one.id)}): "
        + ("given up" if one.dead else f"try {one.tries} failed" if one.tries else "to be delivered")
        + (f", {visible(one.error)}" if one.error else "")
        for one in deliveries
    ]
    words += [f"{visible(each)} is delivered" for each in ended]
    return _Line("waits", "Deliveries", ", ".join(words) or "Destinations are named.")


@dataclass(frozen=True, slots=True)
class _Line:
    sign: str
    title: str
    text: str
    details: Markup | str = ""
    position: int | None = None


def _view_note(view: View, *, patch: bool, reason: str, content: bool) -> _Line:
    lines: list[str] = []
    if view.first_shown:
        lines.append(f"messages before #{view.first_shown} are no longer shown")
    if view.pinned:
        lines.append(f"{_numbers(view.pinned)} stay pinned")
    if view.replaced:
        lines.append(f"{_numbers(view.replaced)} shortened")
    if view.summary is not None:
        lines.append("a summary stands for what was dropped")
    details: Markup | str = ""
    if view.summary is not None:
        details = rich_text(text_of(view.summary)) if content else HIDDEN
    title = "Summarised" if view.summary is not None and not patch else "Window moved"
    by = f" by {view.manager}" if view.manager else ""
    because = f" ({visible(reason)})" if reason else ""
    text = "; ".join(lines) or "everything is shown"
    return _Line("view", title, f"{text[0].upper()}{text[1:]}{visible(by)}.{because}", details)


def _numbers(messages: Mapping[int, object]) -> str:
    numbers = [f"#{seq}" for seq in messages]
    return ", ".join(numbers[:6]) + (f" and {grouped(len(numbers) - 6)} more" if len(numbers) > 6 else "")


def _state_note(record: StateChanged, *, content: bool) -> _Line:
    values = dict(record.set if record.full is None else record.full)
    keys = ", ".join(first_words(key, 40) for key in (*values, *record.delete))
    return _Line("state", "State", keys or "empty", json_text(values) if values and content else "")


def _node_note(each: StoredRecord, record: NodeChanged, *, content: bool) -> NoteShown | None:
    try:
        notice = notice_of(record)
    except Corrupt:
        notice = None
    if notice is None:
        return None
    title = f"Node {first_words(record.node, 60)}: {record.status}" if record.node else f"Run {record.run}"
    tokens = f"{grouped(notice.tokens)} tokens. " if notice.tokens else ""
    return NoteShown(
        seq=each.seq,
        at=record.at,
        sign="node",
        title=title,
        text=f"{tokens}{first_words(notice.text) if content else ''}",
        left_behind=each.left_behind,
    )
