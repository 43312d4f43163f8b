"""A tree of subagents whose processes are killed at each of their commits and effects, one after the other.

Arguments: kind of place, event loop, folder, a server's address or nothing, the seed of the tree, the number of its
branches, and the number of kills, at most. This process only forks: each life of the tree is a child, so that it begins
in no time. A life ends by SIGKILL in front of or behind a commit, or behind an effect; half of the time the second life
is killed as well; the last one goes on to the end, with nobody calling. Each kill has a session of its own.

Lines on standard output: `moments` with the number at which a life may be killed, and for each kill `told` with its
number, what the boss was told and the effects with their keys, as JSON.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from repertory import Runtime
from repertory.app.sessions.sessions import SessionLocation
from repertory.backends.ports import Batch, SessionStore
from repertory.errors import RepertoryError
from tests.campaigns.dying_work import place_in
from tests.campaigns.subagent_trees import Branch, answer, boss, branches, told

_END_S = 60.0
"""Seconds in which nothing may be owed any more."""


class Moments:
    """The moments of a life. At one of them it is killed."""

    def __init__(self, last: float) -> None:
        self.count = 0
        self._last = last

    def pass_one(self) -> None:
        """Count one, or die."""
        self.count += 1
        if self.count >= self._last:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingPlace:
    """A location of sessions, each commit of which is a moment before and a moment after."""

    def __init__(self, place: SessionLocation, moments: Moments) -> None:
        self._place, self._moments = place, moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def open_store(self) -> SessionStore:
        """The store of the location."""
        store = self._place.open_store()
        append = store.append

        async def dying(batches: Sequence[Batch]) -> object:
            self._moments.pass_one()
            outcomes = await append(batches)
            self._moments.pass_one()
            return outcomes

        vars(store)["append"] = dying
        return store


async def live(place: SessionLocation, moments: Moments, tree: Sequence[Branch], name: str, ledger: Path) -> str:
    """Have the boss do its work, and wait until nothing is owed. What came of it."""

    async def act(effect: str, key: str) -> str:
        await anyio.lowlevel.checkpoint()
        with ledger.open("a") as lines:
            lines.write(f"{effect} {key}\n")
        moments.pass_one()
        return effect

    def done() -> list[str]:
        return ledger.read_text().splitlines() if ledger.exists() else []

    dying: Any = DyingPlace(place, moments)
    async with Runtime(sessions=dying) as runtime:
        session = runtime.agent(boss(tree, act)).session(name)
        with suppress(RepertoryError):  # It may have been asked something.
            await session.invoke("go", idempotency_token="t")
        with anyio.fail_after(_END_S):
            while (pending := await session.pending()) is not None:
                if pending.interrupts:
                    names = [line.split()[0] for line in done()]
                    await session.invoke([answer(each, names) for each in pending.interrupts])
                else:
                    await anyio.sleep(0.01)
        messages = await session.messages()
    return json.dumps({"told": told(messages), "effects": done()})


def in_child(work: Callable[[], str]) -> str | None:
    """What this does in a forked process; None if it was killed. Errors: `ChildProcessError` if it has failed."""
    reads, writes = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reads)
            with os.fdopen(writes, "w") as into:
                into.write(work())
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writes)
    with os.fdopen(reads) as found:
        text = found.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise ChildProcessError(status)
    return None if status else text


def main() -> None:
    _, kind, loop, root, url, seed, count, kills = sys.argv
    rng, folder = random.Random(int(seed)), Path(root)
    tree = branches(rng, int(count))
    place = place_in(kind, folder, url)

    def life(number: int, last: float) -> str | None:
        moments = Moments(last)

        def work() -> str:
            name, ledger = f"s{number}", folder / f"ledger-{number}"
            text = anyio.run(live, place, moments, tree, name, ledger, backend=loop)
            return f"{moments.count} {text}"

        return in_child(work)

    whole = life(0, math.inf)
    assert whole is not None
    total, text = whole.split(" ", 1)
    print(f"moments {total}", flush=True)
    print(f"told 0 {text}", flush=True)
    numbers = list(range(1, int(total) + 1))
    if len(numbers) > int(kills):
        numbers = sorted(rng.sample(numbers, int(kills)))
    for number in numbers:
        ended = life(number, number)
        if ended is None and rng.random() < 0.5:
            ended = life(number, rng.randint(1, int(total)))
        ended = ended or life(number, math.inf)
        assert ended is not None
        print(f"told {number} {ended.split(' ', 1)[1]}", flush=True)


if __name__ == "__main__":
    main()
