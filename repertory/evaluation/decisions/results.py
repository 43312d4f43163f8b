"""Results of a replay: one JSON object per turn and variant, and their sums.

A file of results is read back line by line. A last line without its line break was cut off by a kill: it is dropped,
and its turn is scored again. Of two lines for one turn and variant, the later counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from repertory.errors import Corrupt
from repertory.evaluation.decisions.turns import TurnOutcome

Score = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedTurn:
    """One line of a file of results.

    Args:
        agent: The id of the agent.
        turn: The number of the turn in its conversation, from 1.
        prompt: The prompt of the turn.
        stop_reason: The reason why the replay ended; None when it failed.
    """

    session: str
    """The recorded session."""
    agent: str
    position: int
    """The sequence number of the prompt."""
    turn: int
    variant: str
    """The name of the variant."""
    settings: str
    """A digest of the variant's model, prompt and tools: it tells variants of one name apart."""
    prompt: str
    recorded: TurnOutcome | None
    """The recorded answer; None for a turn without one."""
    replayed: TurnOutcome | None
    """The new answer; None after an error."""
    replay_session: str
    """The session in the scratch place that holds the new answer."""
    stop_reason: str | None = None
    same: bool = False
    """True if both answers have the same text."""
    unmatched: Sequence[str] = ()
    """Tools that were called with an input that the recorded turn does not have."""
    scores: Mapping[str, Score] = field(default_factory=dict[str, Score])
    """The scores, by the name of the scorer."""
    score_errors: Mapping[str, str] = field(default_factory=dict[str, str])
    """The errors of scorers that failed, by the name of the scorer."""
    error: str | None = None
    """The reason why there is no new answer."""


def result_line(row: ReplayedTurn) -> bytes:
    """The line, with its line break."""
    return msgspec.json.encode(row) + b"\n"


def results_in_file(content: bytes, name: str) -> tuple[list[ReplayedTurn], int]:
    """The rows of a file, and how many of its bytes are whole lines. Errors: `Corrupt` naming file and line."""
    whole = content.rfind(b"\n") + 1
    found: list[ReplayedTurn] = []
    for number, line in enumerate(content[:whole].splitlines(), 1):
        if line.strip():
            try:
                found.append(msgspec.json.decode(line, type=ReplayedTurn))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise Corrupt("not a line of replay results", file=name, line=number, cause=str(error)) from error
    return found, whole


def row_key(row: ReplayedTurn) -> tuple[str, str, int, str]:
    """The key of a row: session, agent, position, variant."""
    return row.session, row.agent, row.position, row.variant


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSummary:
    """The sums over all turns of one variant. Recorded figures are those of the same turns.

    Args:
        variant: The name of the variant.
        turns: The number of replayed turns.
        answered: The number of turns with an answer.
        errors: The number of turns that failed.
        recorded_tokens: The tokens as recorded.
        tokens: The tokens of the replays.
        recorded_cost: The cost as recorded; None without a price.
        cost: The cost of the replays; None without a price.
        lasted_s: The mean seconds of the replays whose duration is known; None for none.
        score_errors: The number of times that a scorer failed.
    """

    variant: str
    turns: int
    answered: int
    errors: int
    same: int
    """The number of answers that have the recorded text."""
    recorded_tokens: int
    tokens: int
    recorded_cost: float | None
    cost: float | None
    recorded_s: float | None
    """The mean over the turns whose duration is known."""
    lasted_s: float | None
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """The mean of each scorer's numbers; True counts as 1. Texts have no mean."""
    score_errors: int = 0


def summaries(rows: Sequence[ReplayedTurn]) -> list[VariantSummary]:
    """One summary per variant, in the order of their first rows."""
    by_variant: dict[str, list[ReplayedTurn]] = {}
    for row in rows:
        by_variant.setdefault(row.variant, []).append(row)
    return [_summary(name, members) for name, members in by_variant.items()]


def _summary(name: str, rows: Sequence[ReplayedTurn]) -> VariantSummary:
    recorded = [row.recorded for row in rows if row.recorded is not None]
    replayed = [row.replayed for row in rows if row.replayed is not None]
    numbers: dict[str, list[float]] = {}
    for row in rows:
        for scorer, score in row.scores.items():
            if isinstance(score, bool | int | float):
                numbers.setdefault(scorer, []).append(float(score))
    return VariantSummary(
        variant=name,
        turns=len(rows),
        answered=len(replayed),
        errors=sum(row.error is not None for row in rows),
        same=sum(row.same for row in rows),
        recorded_tokens=sum(map(_tokens, recorded)),
        tokens=sum(map(_tokens, replayed)),
        recorded_cost=_total([each.cost for each in recorded]),
        cost=_total([each.cost for each in replayed]),
        recorded_s=_mean([each.lasted_s for each in recorded]),
        lasted_s=_mean([each.lasted_s for each in replayed]),
        scores={scorer: sum(values) / len(values) for scorer, values in numbers.items()},
        score_errors=sum(len(row.score_errors) for row in rows),
    )


def _tokens(outcome: TurnOutcome) -> int:
    return (outcome.input_tokens or 0) + (outcome.output_tokens or 0)


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def figure(value: float | None, digits: int = 2) -> str:
    """A number for people; a dash when it is unknown."""
    return "-" if value is None else f"{value:,.{digits}f}"


def summary_lines(rows: Sequence[ReplayedTurn]) -> list[str]:
    """A table for a terminal: one line per variant."""
    recorded = "RECORDED"
    heads = "VARIANT", "TURNS", "ERRORS", "SAME", "TOKENS", recorded, "COST", recorded, "SECONDS", recorded, "SCORES"
    lines: list[tuple[str, ...]] = [heads]
    for each in summaries(rows):
        scores = ", ".join(f"{json.dumps(name, ensure_ascii=True)} {mean:.3g}" for name, mean in each.scores.items())
        lines.append(
            (
                each.variant,
                str(each.turns),
                str(each.errors),
                str(each.same),
                f"{each.tokens:,}",
                f"{each.recorded_tokens:,}",
                figure(each.cost, 4),
                figure(each.recorded_cost, 4),
                figure(each.lasted_s),
                figure(each.recorded_s),
                scores,
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
