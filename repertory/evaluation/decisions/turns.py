"""The turns of a stored conversation that can be answered anew, and what their tools answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from repertory.core.history.fork import copies_end
from repertory.core.journal.codec import dump
from repertory.core.journal.whole_journal import labelled
from repertory.core.messages import is_filler, is_stopped, text_of, tool_results, tool_uses
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.records import MessageAdded
    from repertory.core.journal.whole_journal import WholeJournal
    from repertory.core.messages import ContentBlock, Json, Message, ToolResult, ToolUse


class RecordedTurn(Struct, frozen=True, kw_only=True):
    """A turn of a journal: a prompt, and what followed it."""

    position: int
    """The sequence number of its prompt. The conversation before it is that of the position right before."""
    turn: int
    prompt: Sequence[ContentBlock]
    messages: Sequence[Message]
    """The messages after the prompt; empty when the turn has no answer."""
    lasted_s: float | None
    """Seconds from the prompt's record to that of the last message; None without an answer."""

    @property
    def text(self) -> str:
        """The text of the prompt."""
        return text_of({"role": "user", "content": list(self.prompt)})


def recorded_turns(journal: WholeJournal) -> list[RecordedTurn]:
    """Every turn of today's conversation that begins with a prompt in this journal, in order. A fork's source has the
    earlier ones.
    """
    begins = copies_end(journal)
    groups: list[list[tuple[int, MessageAdded]]] = []
    for seq, record in journal.conversation(journal.last_seq).items():
        if seq <= begins:
            continue
        # A turn that was cut off goes on under the next number, without a prompt. What a caller says to a turn that
        # runs has the turn's own number, and is no prompt of its own.
        if _is_prompt(record.message) and (not groups or groups[-1][-1][1].turn != record.turn):
            groups.append([])
        if groups:
            groups[-1].append((seq, record))
    return [_turn(group) for group in groups]


def _is_prompt(message: Message) -> bool:
    return message["role"] == "user" and not any(tool_results(message))


def _turn(group: Sequence[tuple[int, MessageAdded]]) -> RecordedTurn:
    (position, first), rest = group[0], group[1:]
    return RecordedTurn(
        position=position,
        turn=first.turn,
        prompt=first.message["content"],
        messages=[record.message for _, record in rest],
        lasted_s=max(0.0, rest[-1][1].at - first.at) if rest else None,
    )


def chosen_turns(journal: WholeJournal, at: Sequence[int | str], last: int | None) -> list[RecordedTurn]:
    """The turns to answer anew: all; those that begin next after the positions `at` (numbers, or labels); the `last`
    ones. Errors: `NotFound` for an unknown label; `Invalid` for a position that no turn of the conversation follows.
    """
    turns = recorded_turns(journal)
    if at:
        chosen = {_next_turn(journal, turns, each).position for each in at}
        turns = [turn for turn in turns if turn.position in chosen]
    if last is not None and last < 1:
        raise Invalid("the last turns are at least one", got=last)
    return turns if last is None else turns[-last:]


def _next_turn(journal: WholeJournal, turns: Sequence[RecordedTurn], at: int | str) -> RecordedTurn:
    where = {"session": journal.session_id, "agent": journal.agent_id}
    if isinstance(at, str):
        position = labelled(journal.snapshots(), at, session_id=journal.session_id, agent_id=journal.agent_id)
    else:
        position = journal.position(at) - 1
    # A number may be that of the prompt itself, as `history` and `show` give it.
    found = [turn for turn in turns if turn.position > position]
    if not found:
        raise Invalid("no turn of the conversation begins after this position", at=at, last=journal.last_seq, **where)
    return found[0]


# What tools answered in a turn.


class RecordedTools:
    """The tool results of a turn, by name and input."""

    def __init__(self, turn: RecordedTurn) -> None:
        self._answers: dict[bytes, list[ToolResult]] = {}
        results = {result["toolUseId"]: result for message in turn.messages for result in tool_results(message)}
        self.uses = [use for message in turn.messages for use in tool_uses(message)]
        for use in self.uses:
            if use["toolUseId"] in results:
                self._answers.setdefault(call_key(use["name"], use["input"]), []).append(results[use["toolUseId"]])

    def answer(self, use: ToolUse, times: int) -> ToolResult | None:
        """The recorded result of a call with this name and input; None when there was none. `times`: how often it was
        asked for before: the second call gets the second recorded result, and every later one the last.
        """
        answers = self._answers.get(call_key(use["name"], use["input"]))
        if not answers:
            return None
        found = answers[min(times, len(answers) - 1)]
        return {**found, "toolUseId": use["toolUseId"]}

    def unmatched(self, messages: Sequence[Message]) -> list[str]:
        """The names of tools that were called in these messages with an input that is not recorded."""
        uses = [use for message in messages for use in tool_uses(message)]
        return [use["name"] for use in uses if call_key(use["name"], use["input"]) not in self._answers]


def call_key(name: str, given: Json) -> bytes:
    """Equal for calls with the same name and input."""
    return dump([name, given])


def seen_tools(turns: Sequence[RecordedTurn]) -> dict[str, set[str]]:
    """Tool name to the names of arguments, of every tool that the conversation used."""
    found: dict[str, set[str]] = {}
    for turn in turns:
        for message in turn.messages:
            for use in tool_uses(message):
                given = use["input"]
                found.setdefault(use["name"], set()).update(given if isinstance(given, Mapping) else ())
    return found


# What a turn said and cost.


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """The answer of a turn, as it stands in a result.

    Args:
        output_tokens: The tokens of the answer; None when unknown.
    """

    text: str
    """The text of the last answer."""
    tools: Sequence[str] = ()
    """The tool calls in order, as `name {input}`."""
    input_tokens: int | None = None
    """The input tokens of all model calls of the turn, cached ones included; None when the model did not report it."""
    output_tokens: int | None = None
    lasted_s: float | None = None
    """Seconds from the prompt to the answer; None when unknown."""
    model_ms: float | None = None
    """The latency of its model calls as the provider reported it; None when it did not."""
    cost: float | None = None
    """The price by the table of prices; None without a table, and without reported tokens."""


def outcome_of(messages: Sequence[Message], lasted_s: float | None, price: TokenPrice | None) -> TurnOutcome | None:
    """The outcome of a turn with these messages after its prompt; None when it has no answer."""
    replies = [message for message in messages if message["role"] == "assistant"]
    answers = [message for message in replies if not (is_filler(message) or is_stopped(message))]
    if not answers:
        return None
    usages = [usage for message in answers if (usage := message.get("metadata", {}).get("usage")) is not None]
    latencies = list(_latencies(answers))
    return TurnOutcome(
        text=text_of(answers[-1]),
        tools=[f"{use['name']} {dump(use['input']).decode()}" for message in answers for use in tool_uses(message)],
        input_tokens=sum(usage["inputTokens"] for usage in usages) if usages else None,
        output_tokens=sum(usage["outputTokens"] for usage in usages) if usages else None,
        lasted_s=lasted_s,
        model_ms=sum(latencies) if latencies else None,
        cost=price.of(usages) if price is not None and usages else None,
    )


def _latencies(answers: Sequence[Message]) -> Iterator[float]:
    for message in answers:
        latency = message.get("metadata", {}).get("metrics", {}).get("latencyMs")
        if latency is not None:
            yield float(latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """The price of a million tokens, in whatever currency the table of prices is in.

    Args:
        input: The price of a million input tokens.
        output: The price of a million output tokens.
        cache_write: The price of a million input tokens that are written to the cache; None: as `input`.
    """

    input: float
    output: float
    cache_read: float | None = None
    """The price of a million input tokens from the cache; None: as `input`."""
    cache_write: float | None = None

    def of(self, usages: Sequence[Mapping[str, object]]) -> float:
        """The cost of these model calls. Cached tokens count beside the input tokens, as providers report them.

        Args:
            usages: The tokens of each call.
        """
        total = 0.0
        for usage in usages:
            total += self.input * _count(usage, "inputTokens") + self.output * _count(usage, "outputTokens")
            read = self.input if self.cache_read is None else self.cache_read
            written = self.input if self.cache_write is None else self.cache_write
            total += read * _count(usage, "cacheReadInputTokens") + written * _count(usage, "cacheWriteInputTokens")
        return total / 1_000_000


def _count(usage: Mapping[str, object], name: str) -> float:
    found = usage.get(name)
    return found if isinstance(found, int | float) else 0
