"""Exports with a correct chain whose records say anything at all: what an attacker can hand to whoever imports.

A sound session is written as an export, some of its records are made into something else, and everything that proves
the file is computed anew. Then it is imported, and whatever is taken in must open and take a turn. As a program:

    python -m tests.simulation.hostile_exports --seeds 2000 [--first 0]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from repertory import AgentSpec, JournalSessions, Runtime, ScriptedModel, Sessions
from repertory.core.journal.codec import dump
from repertory.core.journal.export_lines import End, first_line, last_line, row_line
from repertory.core.journal.rows import Row, first_link, link_of
from repertory.core.messages import check_messages
from repertory.errors import RepertoryError
from tests.core.journal.journal_driver import COMMANDS, Driver
from tests.core.journal.test_journal_golden import GOLDEN, read
from tests.operations.operated_places import Memory

_TURN_S = 20.0
_MUTATIONS_MAX = 2
_KINDS = 15
"""Numbers of kinds that are tried: all there are, and two that nobody knows."""

VALUES: Sequence[Callable[[random.Random], Any]] = (
    lambda rng: None,
    lambda rng: rng.choice([True, False]),
    lambda rng: rng.choice([0, 1, -1, 5, 2**31, 2**63 - 1, 2**63, -(2**70), 10**400]),
    lambda rng: rng.choice([0.5, -1.5, 1e308, 1e-300]),
    lambda rng: rng.choice(["", "text", "\ud800", "\x00", "a" * 5000, "user", "completed", "default"]),
    lambda rng: rng.choice(
        [[], [None], [[]], [1, 2], ["a"], [{}], [[1, {"role": "user", "content": []}]], [[0, 2**62]]]
    ),
    lambda rng: rng.choice([{}, {"a": 1}, {"text": 5}, {"role": "user"}, {"role": "user", "content": [5]}, {"": None}]),
    lambda rng: rng.choice([{"toolUse": {"toolUseId": "u", "name": "n"}}, {"toolResult": {}}, {"$bytes": "AA=="}]),
    lambda rng: _deep(rng.choice([50, 120, 300, 900]), rng.choice([list, dict])),
)


def _deep(levels: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind is list else {"k": value}
    return value


@dataclass
class Counts:
    """What became of the exports."""

    seeds: int = 0
    refused: int = 0
    taken: int = 0
    turns: int = 0
    why: Counter[str] = field(default_factory=Counter[str])

    def __str__(self) -> str:
        return f"seeds {self.seeds}, refused {self.refused}, taken in {self.taken}, of these turns taken {self.turns}"


def hostile(rng: random.Random) -> list[str]:
    """The lines of an export."""
    journals = [_journal(rng, agent_id) for agent_id in rng.sample(["default", "a", "b"], rng.choice([1, 1, 2]))]
    journals = [_chained(rng, _mutated(rng, rows)) for rows in journals]
    rows = [row for journal in journals for row in journal]
    if rng.random() < 0.1:
        rng.shuffle(rows)
    opening = first_line("s", rng.choice([5.0, 0.0, 1e300]))
    ends = {journal[-1].agent_id: End(journal[-1].seq, journal[-1].link) for journal in journals if journal}
    return [opening, *map(row_line, rows), last_line(opening, ends)]


def _journal(rng: random.Random, agent_id: str) -> list[Row]:
    if rng.random() < 0.15:
        return [row._replace(agent_id=agent_id) for row in read(rng.choice(GOLDEN))]
    driver = Driver()
    driver.run([("prompt", 1), *((rng.choice(COMMANDS), rng.randrange(1000)) for _ in range(rng.randint(0, 25)))])
    return [row._replace(agent_id=agent_id) for row in driver.rows]


def _mutated(rng: random.Random, rows: list[Row]) -> list[Row]:
    rows = list(rows)
    for _ in range(rng.randint(1, _MUTATIONS_MAX)):
        at = rng.randrange(len(rows))
        row = rows[at]
        match rng.randrange(24):
            case 0:
                rows[at] = row._replace(kind=rng.randrange(_KINDS))
            case 1:
                rows[at] = row._replace(version=rng.choice([0, 1, 2, 255]))
            case 2:
                rows[at] = row._replace(low=rng.randint(1, row.seq))
            case 3:
                del rows[at:]
            case 4:
                rows.insert(at, rng.choice(rows))
            case 5:
                other = rng.randrange(len(rows))
                rows[at], rows[other] = rows[other], rows[at]
            case 6:
                rows[at] = row.without_content()
            case 7:
                rows[at] = row._replace(
                    body=rng.choice([b"", b"null", b"[]", b"5", b"\xff", b'{"at":1e999}', b"{" * 2000])
                )
            case _ if row.salt:
                rows[at] = row._replace(body=_other_body(rng, row.body))
            case _:
                pass
        if not rows:
            return rows
    return rows


def _other_body(rng: random.Random, body: bytes) -> bytes:
    try:
        said = json.loads(body)
    except ValueError:
        return body
    said = changed(rng, said)
    text = json.dumps(said, separators=(",", ":")).encode()
    return text.replace(b"0.5", b"1e999") if rng.random() < 0.05 else text


def changed(rng: random.Random, value: Any) -> Any:
    """The value with something else at a random place in it."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        match rng.randrange(12):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return {**value, rng.choice(["extra", "view", "idempotency_token", "repaired", ""]): _value(rng)}
            case 2:
                return {rng.choice([name, "other"]): item for name, item in value.items()}
            case _:
                return {**value, key: changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], changed(rng, value[at]), *value[at + rng.randint(0, 1) :]]
    if rng.random() < 0.6:  # Something of the same type is what a look at types alone lets through.
        if type(value) is int:
            return rng.choice([0, 1, 2, 5, 2**31, 2**62, value + 1, max(value - 1, 0)])
        if type(value) is str:
            return rng.choice(["", "other", value + "x", "completed", "\ud800"])
        if value == []:
            return rng.choice([["a"], [1], [[1, 2]], [[1, {"role": "user", "content": [{"text": "a"}]}]]])
        if value == {}:
            return rng.choice([{"a": 1}, {"1": {}}, {"store-0": 2**40}])
    return _value(rng)


def _value(rng: random.Random) -> Any:
    return rng.choice(VALUES)(rng)


def _chained(rng: random.Random, rows: Iterable[Row]) -> list[Row]:
    """The rows in this order, numbered and linked as if they had been written so."""
    chained: list[Row] = []
    previous: bytes | None = None
    for seq, row in enumerate(rows, 1):
        previous = first_link(row.agent_id) if previous is None else previous
        numbered = row._replace(seq=seq, low=min(row.low, seq))
        previous = link_of(previous, numbered)
        chained.append(numbered._replace(link=previous))
    return chained


async def attack(seed: int, counts: Counts, folder: Path) -> None:
    """Import one, and take a turn in whatever was taken in. Raises what is neither a refusal nor a session."""
    rng = random.Random(seed)
    file = folder / "export.jsonl"
    file.write_text("\n".join(hostile(rng)) + "\n", encoding="utf-8", errors="surrogatepass")
    place = JournalSessions(Memory())
    sessions = Sessions(place)
    counts.seeds += 1
    try:
        report = await sessions.import_(file)
    except RepertoryError as error:
        counts.refused += 1
        counts.why[f"{type(error).__name__}: {str(error)[:60]}"] += 1
        assert await sessions.list() == [], "something was stored of what was refused"
        return
    counts.taken += 1
    for agent_id in report.agents:
        await _use(place, agent_id, counts)
    await _look(sessions, tuple(report.agents))


async def _use(place: JournalSessions, agent_id: str, counts: Counts) -> None:
    model = ScriptedModel(["answered"], loop=True)
    with anyio.fail_after(_TURN_S):
        async with Runtime(sessions=place) as runtime:
            session = runtime.agent(AgentSpec(name=agent_id, model=model)).session("s")
            result = await session.invoke("and now?", drop_interrupts=True)
            if result.stop_reason == "interrupt":  # Tools of unknown outcome: a person decides, as always.
                answers = [
                    {"interruptResponse": {"interruptId": one.id, "response": "fail"}} for one in result.interrupts
                ]
                result = await session.invoke(answers)
    assert result.stop_reason == "end_turn", result
    assert str(result).strip() == "answered"
    for call in model.calls:
        check_messages([message for message in call.messages if message["content"]])
    counts.turns += 1


async def _look(sessions: Sessions, agents: Sequence[str]) -> None:
    """What reads sessions reads this one, or says what is wrong by a type."""
    report = await sessions.doctor()
    assert report.ok, report
    for agent_id in agents:
        for look in (
            partial(sessions.show, "s", agent=agent_id),
            partial(sessions.history, "s", agent=agent_id),
            partial(sessions.search, "answered"),
            partial(sessions.fork, "s", f"fork-{agent_id}", agent=agent_id),
            partial(sessions.diff, "s", f"fork-{agent_id}", agent=agent_id),
        ):
            try:
                dump(repr(await look()))
            except RepertoryError:
                continue  # Some positions cannot be told, and a fork that was refused is not there.


async def campaign(seeds: Iterable[int], folder: Path) -> Counts:
    """One after the other. Errors name the seed."""
    counts = Counts()
    for seed in seeds:
        try:
            await attack(seed, counts, folder)
        except Exception as error:
            error.add_note(f"hostile export, seed {seed}")
            raise
    return counts


def main() -> None:
    """The long campaign."""
    parser = argparse.ArgumentParser(description="import hostile exports, and use whatever is taken in")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    with tempfile.TemporaryDirectory() as folder:
        for backend in ("asyncio", "trio"):
            counts = anyio.run(campaign, seeds, Path(folder), backend=backend)
            print(f"hostile exports on {backend}: seeds {seeds.start} to {seeds.stop - 1}: {counts}")


if __name__ == "__main__":
    main()
