"""Three processes fight for one session: stopped, continued, killed, and taking it over from each other.

    python -m bench.fights --seeds 20

Each process asks for payments under idempotency tokens until each is acknowledged, and writes down what it was told.
Who is stopped or killed, and when, is the seed's to say. What must hold afterwards, of every acknowledged call:

- its prompt stands in the history once, and its answer is there;
- its token, asked again by somebody else, gives the same answer, and is not answered with a filler;
- it was not paid twice: the ledger, a file that tools append to, has no token twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from repertory import (
    Agent,
    FileSessions,
    FileStorage,
    JournalSessions,
    NullConversationManager,
    ScriptedModel,
    SQLiteSessions,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession, SessionLocation
from repertory.core.messages import LOST_TEXT, NO_ANSWER_TEXT, Message, text_of, tool_results, tool_uses
from repertory.core.retry import StorePatience
from repertory.core.turns.turn_start import NOT_RUN_TEXT
from repertory.errors import AgentBusy, InterruptNotFound, LeaseLost, RepertoryError, Retryable

KINDS = ("sqlite", "journals", "documents")
FIGHTERS = 3
EXPECTED = (LeaseLost, Retryable, AgentBusy, InterruptNotFound)


def place_of(kind: str, folder: Path) -> SessionLocation:
    """Where the session lies."""
    if kind == "sqlite":
        return SQLiteSessions(folder / "sessions.db")
    return JournalSessions(FileStorage(folder)) if kind == "journals" else FileSessions(folder)


def agent_for(token: str, kind: str, folder: Path, *, takeover: bool) -> Agent:
    """An agent that pays for this token, once, as far as its history says."""

    @tool
    def pay(token: str) -> str:
        """Pay."""
        with (folder / "ledger").open("ab", buffering=0) as ledger:
            ledger.write(f"{token}\n".encode())
        time.sleep(0.01)
        return f"paid {token}"

    def reply(messages: Sequence[Message], *_: Any) -> Any:
        return f"done {token}" if _has_paid(messages, token) else {"toolUse": _payment(token)}

    model = ScriptedModel([reply], loop=True, delay_s=0.002)
    placed = PlacedSession("s", place_of(kind, folder), takeover)
    patience = StorePatience(busy_s=1.0, wait_s=5.0)
    return Agent(
        model,
        tools=[pay],
        session_manager=placed,
        conversation_manager=NullConversationManager(),  # Tokens are known as long as their messages are shown.
        callback_handler=None,
        patience=patience,
    )


def _payment(token: str) -> dict[str, Any]:
    return {"toolUseId": f"pay-{token}-{os.urandom(4).hex()}", "name": "pay", "input": {"token": token}}


def _has_paid(messages: Sequence[Message], token: str) -> bool:
    """Whether a payment was made, or may have been: only one that did not run is made again."""
    asked = {use["toolUseId"] for message in messages for use in tool_uses(message) if use["input"] == {"token": token}}
    results = [result for message in messages for result in tool_results(message) if result["toolUseId"] in asked]
    return any(result["content"] != [{"text": NOT_RUN_TEXT}] for result in results)


# One fighter.


async def fight_for(tokens: Sequence[str], kind: str, folder: Path, seed: int) -> None:
    """Ask under each token until it is acknowledged, and say so in a line on stdout."""
    rng = random.Random(seed)
    waiting = list(tokens)
    while waiting:
        token = rng.choice(waiting)
        agent = agent_for(token, kind, folder, takeover=rng.random() < 0.7)
        try:
            result = await agent.invoke_async(f"pay {token}", idempotency_token=token)
            if result.stop_reason == "interrupt":  # Nobody knows whether it was paid: it is not done again.
                answers = [
                    {"interruptResponse": {"interruptId": one.id, "response": "fail"}} for one in result.interrupts
                ]
                result = await agent.invoke_async(answers, idempotency_token=token)
        except EXPECTED:
            await anyio.sleep(rng.random() * 0.02)
            continue
        if result.message is not None:
            waiting.remove(token)
            print(json.dumps({"token": token, "answer": str(result).strip()}), flush=True)


# The referee.


@dataclass
class Fighter:
    """A process, and what it has left to do."""

    number: int
    tokens: list[str]
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = False
    lives: int = 0
    unread: bytes = b""

    def start(self, kind: str, folder: Path, seed: int) -> None:
        self.lives += 1
        self.stopped = False
        life = str(seed * 1000 + self.number * 100 + self.lives)
        command = [sys.executable, "-m", "bench.fights", "--fight", kind, str(folder), life, *self.tokens]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def hear(self) -> list[tuple[str, str]]:
        """What was acknowledged since the last time. A line that was cut off by a kill was not."""
        assert self.process is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self.process.stdout.fileno(), 65536):
                self.unread += more
        *lines, self.unread = self.unread.split(b"\n")
        said = [json.loads(line) for line in lines]
        for one in said:
            self.tokens.remove(one["token"])
        return [(one["token"], one["answer"]) for one in said]


@dataclass
class Outcome:
    """What a fight led to."""

    kind: str
    seed: int
    acknowledged: int = 0
    found: int = 0
    events: Counter[str] = field(default_factory=Counter[str])
    violations: list[str] = field(default_factory=list[str])


def fight(kind: str, seed: int, *, each: int = 4, events: int = 30) -> Outcome:
    """One fight: `each` payments for each of the processes, and so many stops and kills at most."""
    rng, outcome = random.Random(seed), Outcome(kind, seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fighters = [Fighter(n, [f"{n}-{k}" for k in range(each)]) for n in range(FIGHTERS)]
        acknowledged: dict[str, str] = {}
        try:
            for fighter in fighters:
                fighter.start(kind, folder, seed)
            _referee(fighters, kind, folder, seed, rng, outcome, acknowledged, events)
        finally:
            for fighter in fighters:
                if fighter.process is not None:
                    fighter.send(signal.SIGKILL)
                    fighter.process.wait()
                    assert fighter.process.stdout is not None
                    fighter.process.stdout.close()
        anyio.run(_check, kind, folder, acknowledged, outcome)
    return outcome


def _referee(
    fighters: list[Fighter],
    kind: str,
    folder: Path,
    seed: int,
    rng: random.Random,
    outcome: Outcome,
    acknowledged: dict[str, str],
    events: int,
) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        living = [fighter for fighter in fighters if fighter.tokens or not _over(fighter)]
        if not living:
            return
        outputs = [fighter.process.stdout for fighter in living if fighter.process is not None]
        select.select(outputs, [], [], rng.random() * 0.08)
        for fighter in living:
            over = _over(fighter)
            acknowledged.update(fighter.hear())
            if over and fighter.tokens:
                if fighter.process is not None and fighter.process.returncode != -signal.SIGKILL:
                    outcome.violations.append(f"a process ended by itself: {fighter.process.returncode}")
                    return
                assert fighter.process is not None
                assert fighter.process.stdout is not None
                fighter.process.stdout.close()
                fighter.unread = b""
                fighter.start(kind, folder, seed)
        if sum(outcome.events.values()) >= events:
            for fighter in fighters:
                fighter.send(signal.SIGCONT)
            continue
        _disturb(rng.choice(living), rng, outcome)
    outcome.violations.append("it did not end in 120 s")


def _over(fighter: Fighter) -> bool:
    return fighter.process is None or fighter.process.poll() is not None


def _disturb(fighter: Fighter, rng: random.Random, outcome: Outcome) -> None:
    """Stop a process or let it go on, or kill it now and then."""
    if fighter.stopped:
        fighter.send(signal.SIGCONT)
        fighter.stopped = False
    elif rng.random() < 0.15:
        outcome.events["kills"] += 1
        fighter.send(signal.SIGKILL)
    else:
        outcome.events["stops"] += 1
        fighter.send(signal.SIGSTOP)
        fighter.stopped = True


async def _check(kind: str, folder: Path, acknowledged: dict[str, str], outcome: Outcome) -> None:
    wrong = outcome.violations.append
    outcome.acknowledged = len(acknowledged)
    ledger = folder / "ledger"
    paid = Counter(ledger.read_text().split() if ledger.exists() else [])
    said = [text_of(message).strip() for message in await agent_for("", kind, folder, takeover=True).history()]
    for token, times in paid.items():
        if times > 1:
            wrong(f"paid {times} times: {token}")
    for token, answer in acknowledged.items():
        before = len(outcome.violations)
        if answer in (NO_ANSWER_TEXT, LOST_TEXT) or answer != f"done {token}":
            wrong(f"answered with {answer!r}: {token}")
        if said.count(f"pay {token}") != 1:
            wrong(f"said {said.count(f'pay {token}')} times: {token}")
        if answer not in said:
            wrong(f"its answer is not there: {token}")
        try:
            again = await agent_for(token, kind, folder, takeover=True).invoke_async(
                f"pay {token}", idempotency_token=token
            )
        except RepertoryError as error:
            wrong(f"asked again, {error!r}: {token}")
        else:
            if not again.replayed or str(again).strip() != answer:
                wrong(f"asked again, {again.stop_reason} {str(again)!r}: {token}")
        outcome.found += len(outcome.violations) == before


def main() -> int:
    """Run all seeds on every store; 1 when anything was violated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--fight", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.getLogger("repertory").setLevel(logging.CRITICAL)
    if arguments.fight:
        kind, folder, seed, *tokens = arguments.fight
        anyio.run(fight_for, tokens, kind, Path(folder), int(seed))
        return 0
    failed = 0
    for kind in KINDS:
        totals: Counter[str] = Counter()
        began = time.perf_counter()
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            outcome = fight(kind, seed)
            totals.update(acknowledged=outcome.acknowledged, found=outcome.found, **outcome.events)
            for violation in outcome.violations:
                failed += 1
                print(f"{kind} seed {seed}: {violation}", flush=True)
        took = time.perf_counter() - began
        print(
            f"{kind}: {arguments.seeds} seeds, acknowledged {totals['acknowledged']}, found {totals['found']},"
            f" {totals['stops']} stops, {totals['kills']} kills, {took:.1f} s",
            flush=True,
        )
    print(f"violations: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
