"""Stored sessions as lines of text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, assert_never, cast

from repertory.core.interrupts import Interrupt
from repertory.core.journal.codec import dump
from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse, is_stopped, texts_in, tool_uses
from repertory.core.plural import counted
from repertory.core.provider_content import kind_of, text_for_others
from repertory.core.run_results import NodeResult
from repertory.service.process.terminal_text import harmless, harmless_json

if TYPE_CHECKING:
    from repertory.backends.ports import SessionInfo
    from repertory.core.history.compare import Cost, Difference, MessageDifference
    from repertory.core.history.timeline import TimelineEntry
    from repertory.core.pending_work import PendingWork
    from repertory.operations.deliveries import StoredDelivery
    from repertory.operations.doctor import DoctorReport
    from repertory.operations.questions import QuestionPage
    from repertory.operations.showing import SearchResult, StoredAgent, StoredHistory, StoredMessage


def report_json(value: object) -> str:
    """A report, or a list of them, as JSON."""
    return harmless_json(json.dumps(json.loads(dump(_plain(value))), indent=2, ensure_ascii=False))


def session_table(sessions: Sequence[SessionInfo]) -> Iterator[str]:
    """A header and one line per session, in columns."""
    if not sessions:
        yield "No sessions."
        return
    yield from table_lines([("SESSION", "AGENTS", "RECORDS", "UPDATED", "OWNER"), *map(_cells, sessions)])


def pending_work_table(pending_work: Sequence[PendingWork]) -> Iterator[str]:
    """A header and one line per agent with pending work, in columns."""
    if not pending_work:
        yield "No work is pending."
        return
    lines = [
        (
            harmless(each.session_id),
            harmless(each.agent_id),
            each.why,
            local_time(each.at),
            "parked" if each.parked else "",
        )
        for each in pending_work
    ]
    yield from table_lines([("SESSION", "AGENT", "HAS_WORK", "DUE", ""), *lines])


def question_table(page: QuestionPage) -> Iterator[str]:
    """A header and one line per open question, in columns, and how to see more."""
    rows = [
        (
            harmless(each.session_id),
            harmless(each.agent_id),
            local_time(each.asked_at),
            shortened(", ".join(each.interrupt.may_answer)) or "-",
            shortened(each.interrupt.text),
        )
        for each in page.questions
    ]
    if rows:
        yield from table_lines([("SESSION", "AGENT", "ASKED", "FOR", "QUESTION"), *rows])
    else:
        yield "No questions here." if page.next is not None else "No questions."
    for session_id, why in page.unreadable.items():
        yield f"Not read: {harmless(session_id)}, {shortened(why)}"
    if page.next is not None:
        yield f"More: --after {page.next}"


def delivery_table(deliveries: Sequence[StoredDelivery]) -> Iterator[str]:
    """A header and one line per delivery, in columns."""
    rows = [
        (
            harmless(each.session_id),
            harmless(each.agent_id),
            each.event,
            harmless(each.to),
            str(each.tries),
            "given up" if each.next_at is None else local_time(each.next_at),
            harmless(each.id),
            shortened(each.error),
        )
        for each in deliveries
    ]
    if rows:
        yield from table_lines([("SESSION", "AGENT", "EVENT", "TO", "TRIES", "NEXT TRY", "ID", "ERROR"), *rows])
    else:
        yield "Nothing is to be delivered."


def table_lines(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """One line per row, with the cells below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def history_lines(agent: StoredAgent) -> Iterator[str]:
    """Every message with its author and time; at the end, whether the last turn was cut short."""
    if agent.lost_source is not None:
        yield f"(Forked from {harmless(agent.lost_source)}, which is gone; its messages are missing here.)"
    for group in message_line_groups(agent.messages):
        yield from group
    if agent.run is not None:
        yield from _run_lines(agent.run)
    conversation = [each.message for each in agent.messages if not each.left_behind]
    if agent.waits_for:
        yield "(The last turn waits for a person to say whether a tool took effect.)"
    elif conversation and (conversation[-1]["role"] == "user" or any(tool_uses(conversation[-1]))):
        yield "(The last turn has no answer.)"


def message_line_groups(messages: Iterable[StoredMessage]) -> Iterator[Sequence[str]]:
    """Each message with its number, author and time."""
    for each in messages:
        mark = " (stopped)" if is_stopped(each.message) else ""
        mark += " (left behind)" if each.left_behind else ""
        head = f"{_number(each)} {each.message['role']}, {local_time(each.at)}{mark}"
        yield [head, *(f"    {line}" for line in message_lines(each.message))]


def _run_lines(run: Mapping[str, Any]) -> Iterator[str]:
    """The state of a graph's or swarm's run, and each node's result."""
    yield f"{run['type']}, {run['status']}: {_one_line(run['current_task'])}"
    for node, result in run["node_results"].items():
        node_result = NodeResult.from_record(result)
        yield f"    {harmless(node)}, {node_result.status.value}: {shortened(str(node_result))}"
    if run["next_nodes_to_execute"]:
        yield f"(Next nodes: {harmless(', '.join(run['next_nodes_to_execute']))}.)"


def happening_lines(history: StoredHistory) -> Iterator[str]:
    """One line per position: its number, time and event, and whether a rewind left it behind."""
    if history.lost_source is not None:
        yield f"(Forked from {harmless(history.lost_source)}, which is gone.)"
    for each in history.happenings:
        mark = "" if each.on_path else " (left behind)"
        yield f"{_number(each)} {local_time(each.at)} {harmless(_happened(each))}{mark}"
    if not history.happenings:
        yield "The session has no positions yet."


def _happened(each: TimelineEntry) -> str:
    match each.what:
        case "turn":
            about = [] if each.answered else ["no answer"]
            about += [] if each.tokens is None else [f"{each.tokens} tokens"]
            return f"turn {each.turn}: {each.text}" + (f" ({', '.join(about)})" if about else "")
        case "mark":
            more = f" {_one_line(each.metadata)}" if each.metadata else ""
            return f"mark {each.text} at #{each.position}{more}"
        case "rewind":
            return f"rewind to #{each.position}{f': {each.text}' if each.text else ''}"
        case "fork":
            return f"forked from {each.text} at #{each.position}"
        case "redaction":
            return f"#{each.position} redacted"
        case "view":
            return f"the messages that the model sees changed{f': {each.text}' if each.text else ''}"
        case "run":
            return f"run {each.run}{'' if each.status == 'started' else ' ended early'}: {each.text}"
        case "node":
            ended = "waits for an answer" if each.status == "interrupted" else each.status
            return f"{each.node} {ended}: {each.text}" + (f" ({each.tokens} tokens)" if each.tokens else "")
        case "timer":
            return f"timer {each.text}"
        case "tool":
            return f"tool {each.text}"
        case _:
            assert_never(each.what)


def _number(each: StoredMessage | TimelineEntry | MessageDifference) -> str:
    """The position's number, with the name of its journal if that is another one."""
    return f"#{each.seq}" if each.source is None else f"{harmless(each.source)} #{each.seq}"


def _one_line(value: object) -> str:
    return shortened(json.dumps(value, ensure_ascii=False, default=str))


def hit_lines(result: SearchResult) -> Iterator[str]:
    """One line per message that was found, then the sessions that could not be searched."""
    for hit in result.hits:
        where = f"{harmless(hit.session_id)} {harmless(hit.agent_id)} #{hit.seq}"
        yield f"{where} {hit.role}, {local_time(hit.at)}: {harmless(hit.excerpt)}"
    if not result.hits:
        yield "No message has all of these words."
    if result.more:
        yield "(There may be more: raise --max to see them.)"
    for session_id, why in result.unreadable.items():
        yield f"({harmless(session_id)} could not be searched: {harmless(why)})"


def difference_lines(found: Difference) -> Iterator[str]:
    """The differences of two conversations, with minus for the first alone and plus for the second alone: messages,
    shown messages, the state, and the cost of the answers.
    """
    if found.empty:
        yield f"No difference: {found.same} messages, what the model sees, and the state are the same."
    for each in found.messages:
        sign = _sign(each)
        yield f"{sign} {_number(each)} {each.message['role']}"
        yield from (f"{sign}     {line}" for line in message_lines(each.message))
    in_messages = {(each.side, each.source, each.seq) for each in found.messages}
    for each in found.view:
        if (each.side, None, each.seq) not in in_messages:
            where = f"#{each.seq}" if each.seq else "summary"
            words = shortened(" ".join(message_lines(each.message)))
            yield f"{_sign(each)} shown: {where} {each.message['role']}: {words}"
    for each in found.state:
        if each.in_first:
            yield f"- {harmless(each.key)} = {_one_line(each.first)}"
        if each.in_second:
            yield f"+ {harmless(each.key)} = {_one_line(each.second)}"
    if found.first_cost != found.second_cost:
        yield f"- {_cost(found.first_cost)}"
        yield f"+ {_cost(found.second_cost)}"


def _sign(each: MessageDifference) -> str:
    return "-" if each.side == "first" else "+"


def _cost(cost: Cost) -> str:
    answers = counted(cost.answers, "answer")
    return f"{answers} used {cost.input_tokens} input tokens and {cost.output_tokens} output tokens"


def health_lines(report: DoctorReport) -> Iterator[str]:
    """The problems, the repairs, and the number of sound sessions."""
    for damage in report.damages:
        yield f"{harmless(damage.where)}: {harmless(damage.what)}"
    if report.rebuilt_from is not None:
        yield f"    rebuilt; the damaged data is kept in {harmless(report.rebuilt_from)}"
    for session in report.sessions:
        yield from (f"{harmless(session.session_id)}: {harmless(problem)}" for problem in session.problems)
        if session.repair is not None:
            intact = ", ".join(f"{agent} up to #{seq}" for agent, seq in session.repair.kept.items())
            yield f"    moved to {harmless(session.repair.moved_to)}; records kept: {harmless(intact) or 'nothing'}"
        elif session.not_repaired is not None:
            yield f"    not repaired: {harmless(session.not_repaired)}"
        if session.locked is not None:
            yield f"{harmless(session.session_id)}: only its chain was examined: {harmless(session.locked)}"
    yield from (f"{harmless(stray)}: belongs to no session" for stray in report.strays)
    sound = sum(not session.problems for session in report.sessions)
    yield f"{sound} of {len(report.sessions)} sessions are sound."


def local_time(epoch_s: float) -> str:
    """ISO 8601 in the local time zone, to the second; of a number that is no time of the calendar, `unknown`."""
    try:
        return datetime.fromtimestamp(epoch_s).astimezone().isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def _cells(info: SessionInfo) -> tuple[str, ...]:
    agents = ", ".join(sorted(info.agents))
    return (
        harmless(info.session_id),
        harmless(agents) or "-",
        "damaged" if info.damaged else "erased" if info.erased else str(sum(info.agents.values())),
        local_time(info.updated_at),
        harmless(info.owner or "-"),
    )


def _plain(value: object) -> object:
    """Dataclasses as dictionaries, all the way down."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    return value


# Messages as text for a terminal. The text of a model or a tool cannot move the cursor, change colours, or look like
# other text: invisible characters, and those that reverse the direction of text, are spelled out.

SHORT = 100
"""The characters of a tool's input or result that are shown, at most."""


def shortened(text: str, characters_max: int = SHORT) -> str:
    """The text on one line, cut with three dots when it is longer."""
    line = harmless(" ".join(text.split()))
    return line if len(line) <= characters_max else f"{line[: characters_max - 3]}..."


def tool_use_line(use: ToolUse) -> str:
    """`name(argument="value")`, shortened."""
    given = use["input"]
    if isinstance(given, dict):
        arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())
    else:
        arguments = json.dumps(given, ensure_ascii=False)
    return f"{harmless(use['name'])}({shortened(arguments)})"


def tool_result_line(result: ToolResult) -> str:
    """The tool's result, shortened, and whether it failed."""
    text = shortened(" ".join(_part_text(part) for part in result["content"])) or "(nothing)"
    return text if result.get("status") != "error" else f"failed: {text}"


def interrupt_line(interrupt: Interrupt) -> str:
    """The subject of an interrupt."""
    match interrupt.reason:
        case {"tool": str(name), "toolUseId": str(use_id), "input": given}:
            return tool_use_line({"toolUseId": use_id, "name": name, "input": given})
        case None:
            return harmless(interrupt.name)
        case reason:
            return f"{harmless(interrupt.name)}: {shortened(json.dumps(reason, ensure_ascii=False))}"


def question_lines(interrupt: Interrupt) -> Iterator[str]:
    """The subject of an interrupt with everything that a decision needs: each argument whole, up to a bound."""
    match interrupt.reason:
        case {"tool": str(name), "toolUseId": str(), "input": dict(given)}:
            yield harmless(name)
            for key, value in cast("dict[str, object]", given).items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                first, *more = harmless(text).splitlines() or [""]
                yield f"  {harmless(key)} = {_bounded(first)}"
                yield from (f"      {_bounded(line)}" for line in more[:_QUESTION_LINES])
                if len(more) > _QUESTION_LINES:
                    yield f"      ({len(more) - _QUESTION_LINES} more lines)"
        case None:
            yield harmless(interrupt.name)
        case str(reason):
            yield from map(_bounded, [harmless(interrupt.name), *harmless(reason).splitlines()[:_QUESTION_LINES]])
        case reason:
            yield harmless(interrupt.name)
            lines = harmless(json.dumps(reason, ensure_ascii=False, indent=2)).splitlines()
            yield from map(_bounded, lines[:_QUESTION_LINES])


_QUESTION_LINES = 40
_QUESTION_COLUMNS = 2_000


def _bounded(line: str) -> str:
    cut = len(line) - _QUESTION_COLUMNS
    return line if cut <= 0 else f"{line[:_QUESTION_COLUMNS]}... ({cut} more characters)"


def transcript_lines(title: str, messages: Sequence[Message]) -> Iterator[str]:
    """A conversation as a Markdown document. Tools and their results are quoted on one line each."""
    yield f"# {harmless(title)}"
    for message in messages:
        has_text = next(texts_in(message), None) is not None
        if has_text or message["role"] == "assistant":
            yield ""
            yield f"## {'You' if message['role'] == 'user' else 'Agent'}"
        for block in message["content"]:
            yield ""
            if "text" in block:
                yield from harmless(block["text"]).splitlines()
            elif "toolUse" in block:
                yield f"> -> `{tool_use_line(block['toolUse']).replace('`', chr(39))}`"
            elif "toolResult" in block:
                yield f"> <- `{tool_result_line(block['toolResult']).replace('`', chr(39))}`"
            elif "citationsContent" in block:
                yield from _cited_lines(block)
            else:
                yield f"> {_other_line(block).replace('`', chr(39))}"


def message_lines(message: Message) -> Iterator[str]:
    """A message line by line: its text whole, its tool uses and results shortened, other blocks by their kind."""
    for block in message["content"]:
        if "text" in block:
            yield from harmless(block["text"]).splitlines()
        elif "toolUse" in block:
            yield f"-> {tool_use_line(block['toolUse'])}"
        elif "toolResult" in block:
            yield f"<- {tool_result_line(block['toolResult'])}"
        elif "citationsContent" in block:
            yield from _cited_lines(block)
        else:
            yield _other_line(block)


def _cited_lines(block: ContentBlock) -> Iterator[str]:
    yield from harmless("".join(texts_in({"role": "assistant", "content": [block]}))).splitlines()


def _other_line(block: ContentBlock) -> str:
    """The kind of a block; of a part that only its provider can read, the words for others, or its name."""
    if "providerContent" not in block:
        return f"({', '.join(block)})"
    part = block["providerContent"]
    return shortened(text_for_others(part["content"]) or f"({part['provider']}: {kind_of(part['content'])})")


def _part_text(part: dict[str, object]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else json.dumps(part.get("json", list(part)), default=str, ensure_ascii=False)
