"""What the page of a session shows of its records: messages with their tools, and lines about everything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from markupsafe import Markup

from repertory.app.inspector.wording import HIDDEN, cut_text, first_words, grouped, json_text, rich_text, visible
from repertory.core.journal.history.redact import texts_of
from repertory.core.journal.records import (
    Branched,
    CursorMoved,
    DeferralsChanged,
    DeferredResult,
    Interrupted,
    MessageAdded,
    NodeChanged,
    OwnerChanged,
    Record,
    Redacted,
    Resumed,
    SnapshotTaken,
    StateChanged,
    TimersChanged,
    ToolFinished,
    ToolStarted,
    View,
    ViewChanged,
)
from repertory.core.journal.rows import RecordKind
from repertory.core.journal.whole_journal import position_named
from repertory.core.messages import is_stopped, text_of, tool_results, tool_uses
from repertory.core.orchestration.run import notice_of
from repertory.core.pictures.runs import NodeProgress, PicturedEdge, PicturedNode, PicturedRun
from repertory.core.provider_content import kind_of
from repertory.errors import Corrupt

if TYPE_CHECKING:
    from repertory.app.operations.paging import StoredPage
    from repertory.core.journal.history.pages import StoredRecord
    from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse

ToolOutcome = Literal["done", "failed", "running", "asks", "not on this page"]
"""`running`: started, and no end is on record; after a crash its outcome is unknown."""
_NOTHING = Markup("")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCard:
    """One tool use."""

    name: str
    use_id: str
    input: str
    outcome: ToolOutcome
    duration_s: float | None = None
    attempt: int = 1
    result: str | None = None


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
    """Whether the model is shown it now; None where that is not known."""
    left_behind: bool
    tokens: TokensShown | None = None
    stopped: bool = False
    repaired: str = ""
    window: str = ""
    """What the model is no longer shown from this message on, if that changed with it."""
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
    """More, folded away."""
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
        told = [each.tokens for each in self.messages if each.tokens is not None]
        return (sum(each.input for each in told), sum(each.output for each in told)) if told else None

    @property
    def took_s(self) -> float:
        """From its first message to its last one."""
        said = self.messages
        return said[-1].at - said[0].at if said else 0.0


def turns_of(page: StoredPage, *, content: bool) -> list[TurnShown]:
    """The page by turns. `content`: whether texts, inputs and results are shown."""
    facts = _ToolFacts(page.records)
    found: list[TurnShown] = []
    for each in page.records:
        item = _item(each, facts, page, content=content)
        if item is None:
            continue
        turn = item.turn if isinstance(item, MessageShown) else None
        if not found or (turn is not None and found[-1].turn not in (turn, None)):
            found.append(TurnShown(turn=turn))
        elif turn is not None and found[-1].turn is None:
            found[-1].turn = turn
        found[-1].items.append(item)
    return found


class _ToolFacts:
    """What the records of a page say of each tool use."""

    def __init__(self, records: Sequence[StoredRecord]) -> None:
        self.started: dict[str, ToolStarted] = {}
        self.finished: dict[str, float] = {}
        self.results: dict[str, ToolResult] = {}
        self.asked: set[str] = set()
        self.asked_at: dict[str, float] = {}
        """When the model asked for a tool: of those whose message is on the page, so that the result is shown there."""
        for each in records:
            match each.record:
                case ToolStarted() as started:
                    self.started[started.tool_use_id] = started
                case ToolFinished() as ended:
                    self.finished[ended.tool_use_id] = ended.at
                    self.results[ended.tool_use_id] = ended.result
                case MessageAdded(message=message, at=at):
                    self.asked_at.update({use["toolUseId"]: at for use in tool_uses(message)})
                    for result in tool_results(message):
                        self.results[result["toolUseId"]] = result
                        self.finished.setdefault(result["toolUseId"], at)
                case Interrupted(parked=parked):
                    self.asked.update(parked)
                case _:
                    pass

    def card(self, use: ToolUse, *, content: bool) -> ToolCard:
        use_id = use["toolUseId"]
        started, result = self.started.get(use_id), self.results.get(use_id)
        ended = self.finished.get(use_id)
        # Tools without effects have no record of their start.
        began = started.at if started is not None else self.asked_at.get(use_id)
        outcome: ToolOutcome = "not on this page"
        if result is not None:
            outcome = "done" if result.get("status", "success") == "success" else "failed"
        elif use_id in self.asked:
            outcome = "asks"
        elif started is not None:
            outcome = "running"
        return ToolCard(
            name=first_words(use["name"], 80),
            use_id=use_id,
            input=json_text(use["input"]) if content else "",
            outcome=outcome,
            duration_s=ended - began if began is not None and ended is not None else None,
            attempt=started.attempt if started is not None else 1,
            result=None if result is None or not content else _result_text(result),
        )


def _result_text(result: ToolResult) -> str:
    parts = [
        cut_text(str(part["text"])) if "text" in part else json_text(part["json"]) if "json" in part else _of_kind(part)
        for part in result["content"]
    ]
    return "\n".join(parts)


def _of_kind(part: Mapping[str, object]) -> str:
    return f"({', '.join(part)})"


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
    blocks = [made for block in message["content"] for made in _block(block, facts, content=content)]
    if not blocks and message["content"]:  # Results of tools that are shown with their uses.
        title, left = _handed_back(message), each.left_behind
        return NoteShown(seq=each.seq, at=record.at, sign="resume", title=title, left_behind=left)
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


def shown_blocks(message: Message, *, content: bool) -> list[BlockShown]:
    """The blocks of a message that stands alone, such as one that the model was shown."""
    alone = _ToolFacts(())
    return [made for block in message["content"] for made in _block(block, alone, content=content)]


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


def _block(block: ContentBlock, facts: _ToolFacts, *, content: bool) -> Iterator[BlockShown]:
    if "text" in block:
        yield BlockShown(kind="text", html=rich_text(block["text"]) if content else HIDDEN)
    elif "toolUse" in block:
        yield BlockShown(kind="tool", tool=facts.card(block["toolUse"], content=content))
    elif "toolResult" in block:
        result = block["toolResult"]
        if result["toolUseId"] not in facts.asked_at:
            text = _result_text(result) if content else ""
            label = f"Result of an earlier tool use ({result.get('status', 'success')})"
            yield BlockShown(kind="result", label=label, html=Markup("<pre>{}</pre>").format(text) if text else HIDDEN)
    elif "reasoningContent" in block:
        told = cast("Mapping[str, Mapping[str, object]]", block["reasoningContent"]).get("reasoningText", {})
        text = str(told.get("text", "")) if content else ""
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
    """None for what is shown with a message, or says nothing to a reader."""
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
        case DeferralsChanged(deferrals=tools):
            waiting = ", ".join(f"{visible(tool.tool)} ({visible(tool.id)})" for tool in tools)
            made = _Line("waits", "Results that come later", waiting or "No tool waits for one any more.")
        case DeferredResult(name=name, id=deferred, expired=expired):
            title = "No result in time" if expired else "A result has come"
            made = _Line("resume", title, f"{visible(name)} ({visible(deferred)})")
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


@dataclass(frozen=True, slots=True)
class _Line:
    sign: str
    title: str
    text: str
    details: Markup | str = ""
    position: int | None = None


def _view_note(view: View, *, patch: bool, reason: str, content: bool) -> _Line:
    told: list[str] = []
    if view.first_shown:
        told.append(f"messages before #{view.first_shown} are no longer shown")
    if view.pinned:
        told.append(f"{_numbers(view.pinned)} stay pinned")
    if view.replaced:
        told.append(f"{_numbers(view.replaced)} shortened")
    if view.summary is not None:
        told.append("a summary stands for what was dropped")
    details: Markup | str = ""
    if view.summary is not None:
        details = rich_text(text_of(view.summary)) if content else HIDDEN
    title = "Summarised" if view.summary is not None and not patch else "Window moved"
    by = f" by {view.manager}" if view.manager else ""
    text = "; ".join(told) or "everything is shown"
    return _Line("view", title, f"{text[0].upper()}{text[1:]}{visible(by)}.{_because(reason)}", details)


def _because(reason: str) -> str:
    return f" ({visible(reason)})" if reason else ""


def _numbers(messages: Mapping[int, object]) -> str:
    numbers = [f"#{seq}" for seq in messages]
    return ", ".join(numbers[:6]) + (f" and {grouped(len(numbers) - 6)} more" if len(numbers) > 6 else "")


def _state_note(record: StateChanged, *, content: bool) -> _Line:
    values = dict(record.set if record.full is None else record.full)
    keys = ", ".join(first_words(key, 40) for key in (*values, *record.delete))
    return _Line("state", "State", keys or "empty", json_text(values) if values and content else "")


def _node_note(each: StoredRecord, record: NodeChanged, *, content: bool) -> NoteShown | None:
    try:
        told = notice_of(record)
    except Corrupt:
        told = None
    if told is None:
        return None
    title = f"Node {first_words(record.node, 60)}: {record.status}" if record.node else f"Run {record.run}"
    tokens = f"{grouped(told.tokens)} tokens. " if told.tokens else ""
    return NoteShown(
        seq=each.seq,
        at=record.at,
        sign="node",
        title=title,
        text=f"{tokens}{first_words(told.text) if content else ''}",
        left_behind=each.left_behind,
    )


def pictured_run(document: Mapping[str, object], *, content: bool) -> PicturedRun:
    """The run of a graph or swarm, of its stored document, to be drawn: nodes in the order in which they worked."""
    results = cast("Mapping[str, Mapping[str, Any]]", document.get("node_results", {}))
    order = cast("Sequence[str]", document.get("execution_order") or document.get("node_history") or list(results))
    following = cast("Sequence[str]", document.get("next_nodes_to_execute", ()))
    names = list(dict.fromkeys((*order, *results, *following)))
    tries = Counter(order)
    steps: dict[tuple[str, str], list[int]] = {}
    for number, step in enumerate(pairwise(order), 1):
        steps.setdefault(step, []).append(number)
    swarm = document["type"] == "swarm"
    task = document.get("current_task")
    usage = cast("Mapping[str, int]", document.get("accumulated_usage", {}))
    return PicturedRun(
        title=visible(str(document["id"])),
        kind="swarm" if swarm else "graph",
        nodes=[
            _pictured_node(name, results.get(name), tries[name], first=not place) for place, name in enumerate(names)
        ],
        edges=[
            PicturedEdge(
                source=one,
                target=two,
                orders=tuple(orders) if swarm else (),
                used=True,
            )
            for (one, two), orders in steps.items()
        ],
        status=cast("NodeProgress", document["status"]) if document["status"] in get_args(NodeProgress) else None,
        time_ms=float(cast("float", document.get("execution_time", 0))),
        tokens=usage.get("totalTokens"),
        note=first_words(task) if content and isinstance(task, str) else "",
    )


def _pictured_node(name: str, result: Mapping[str, Any] | None, tries: int, *, first: bool) -> PicturedNode:
    told = result or {}
    status = told.get("status")
    return PicturedNode(
        node_id=name,
        status=status if status in get_args(NodeProgress) else None,
        time_ms=told.get("execution_time"),
        tokens=told.get("accumulated_usage", {}).get("totalTokens"),
        tries=tries,
        entry=first,
    )
