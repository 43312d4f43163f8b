"""Call boxes of several owners against a plain model: whatever is done in whatever order, both say the same."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from repertory.backends.peer_ports import QueuedCall
from repertory.backends.ports import SessionStore
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.peers import POISON_OWNERS
from repertory.errors import NotFound
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from repertory.testing.peer_contract import box_of, boxed
from tests.backends.sessions.postgres_places import postgres_store

pytestmark = pytest.mark.real_time

SESSIONS, AGENTS, TOKENS, OWNERS = "st", "ab", "xy", 3
LATER_S = 3600.0


@dataclass
class Kept:
    """What the model knows of a call."""

    key: tuple[str, str, str]
    owner: str | None = None
    tries: int = 0
    ended: int = 0
    later: bool = False
    error: str = ""
    parked: bool = False


class BoxMachine(RuleBasedStateMachine):
    """Three owners at a time; one that dies is followed by another. No call is ready again before the end."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Kept] = []
        self.taken: dict[str, list[QueuedCall]] = {}
        self.stores: list[tuple[str, SessionStore]] = []
        self.count = 0

    def open_store(self, place: Path, owner: str) -> SessionStore:
        raise NotImplementedError

    @initialize(backend=st.sampled_from(["asyncio", "trio"]))
    def begin(self, backend: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.portal_block = anyio.from_thread.start_blocking_portal(backend)
        self.portal = self.portal_block.__enter__()
        for _ in range(OWNERS):
            self._open()

    def teardown(self) -> None:
        if not self.stores:
            return

        async def close() -> None:
            async with AsyncExitStack() as stack:
                for _, store in self.stores:
                    stack.push_async_callback(store.aclose)

        self.portal.call(close)
        self.portal_block.__exit__(None, None, None)
        self.folder.cleanup()

    @rule(
        session=st.sampled_from(SESSIONS), agent=st.sampled_from(AGENTS), token=st.sampled_from(TOKENS), who=st.data()
    )
    def put(self, session: str, agent: str, token: str, who: st.DataObject) -> None:
        found = next((each for each in self.kept if each.key == (session, agent, token)), None)
        new = found is None or found.parked
        if new:
            self.kept = [each for each in self.kept if each is not found] + [Kept((session, agent, token))]
        _, store = self._one(who)
        assert self.portal.call(box_of(store).put, boxed(session, token, agent)) is new

    @rule(limit=st.integers(0, 3), agents=st.sampled_from([set("a"), set("ab"), set("b"), set[str]()]), who=st.data())
    def take(self, limit: int, agents: set[str], who: st.DataObject) -> None:
        owner, store = self._one(who)
        expected: list[tuple[tuple[str, str, str], int]] = []
        if limit and agents:
            expected = self._taken(owner, limit, agents)
        found = self.portal.call(box_of(store).take, limit, agents)
        assert [((call.session_id, call.agent_id, call.token), call.tries) for call in found] == expected
        self.taken.setdefault(owner, []).extend(found)

    @rule(who=st.data())
    def done(self, who: st.DataObject) -> None:
        owner, store = self._one(who)
        call = self._any_call(who)
        if call is not None:
            self.kept = [each for each in self.kept if (each.key, each.owner) != (_key(call), owner)]
            self.portal.call(box_of(store).done, [call])

    @rule(later=st.booleans(), park=st.booleans(), who=st.data())
    def again(self, later: bool, park: bool, who: st.DataObject) -> None:
        owner, store = self._one(who)
        call = self._any_call(who)
        if call is not None:
            for each in self.kept:
                if (each.key, each.owner) == (_key(call), owner):
                    each.owner, each.later, each.error, each.parked = None, later, "again", park
                    each.tries += 1
            after_s = LATER_S if later else 0.0
            self.portal.call(lambda: box_of(store).again(call, after_s, "again", park=park))

    @rule(who=st.data())
    def end_an_owner(self, who: st.DataObject) -> None:
        """In order, so that everybody knows at once; the calls that it has are the same as after a kill."""
        owner, store = self._one(who)
        self.stores.remove((owner, store))
        self.portal.call(store.aclose)
        self._open()

    @rule(session=st.sampled_from(SESSIONS), who=st.data())
    def delete(self, session: str, who: st.DataObject) -> None:
        _, store = self._one(who)
        there = any(each.key[0] == session for each in self.kept)
        self.kept = [each for each in self.kept if each.key[0] != session]
        if there:
            self.portal.call(store.delete, session)
        else:
            with pytest.raises(NotFound):
                self.portal.call(store.delete, session)

    @invariant()
    def both_say_the_same(self) -> None:
        if not self.stores:
            return
        living = {owner for owner, _ in self.stores}
        found = self.portal.call(box_of(self.stores[0][1]).calls)
        assert [_key(call) for call in found] == [each.key for each in self.kept]
        for call, each in zip(found, self.kept, strict=True):
            if each.owner in living or each.owner is None:
                assert (call.tries, call.parked) == (each.tries, each.parked)
                assert bool(call.error) == bool(each.error)

    def _open(self) -> None:
        self.count += 1
        owner = f"owner-{self.count}"

        async def opened() -> SessionStore:
            return self.open_store(Path(self.folder.name), owner)

        self.stores.append((owner, self.portal.call(opened)))

    def _one(self, who: st.DataObject) -> tuple[str, SessionStore]:
        return who.draw(st.sampled_from(self.stores))

    def _any_call(self, who: st.DataObject) -> QueuedCall | None:
        """One that somebody has taken at some time."""
        calls = [call for taken in self.taken.values() for call in taken]
        return who.draw(st.sampled_from(calls)) if calls else None

    def _taken(self, owner: str, limit: int, agents: set[str]) -> list[tuple[tuple[str, str, str], int]]:
        self._free()
        return self._first(owner, limit, agents)

    def _free(self) -> None:
        """Free the calls of owners that have ended."""
        living = {name for name, _ in self.stores}
        for each in self.kept:
            if each.owner is not None and each.owner not in living:
                each.owner = None
                each.tries += 1
                each.ended += 1
                if each.ended >= POISON_OWNERS:
                    each.parked, each.error = True, "ended"

    def _first(self, owner: str, limit: int, agents: set[str]) -> list[tuple[tuple[str, str, str], int]]:
        """The first free call of each session, which the owner takes."""
        found: list[Kept] = []
        for session in dict.fromkeys(each.key[0] for each in self.kept):
            mine = [each for each in self.kept if each.key[0] == session and not each.parked]
            served = [each for each in mine if each.key[1] in agents]
            if served and not any(each.owner for each in mine) and not served[0].later:
                found.append(served[0])
        found = sorted(found, key=self.kept.index)[:limit]
        for each in found:
            each.owner = owner
        return [(each.key, each.tries) for each in found]


def _key(call: QueuedCall) -> tuple[str, str, str]:
    return call.session_id, call.agent_id, call.token


class MemoryMachine(BoxMachine):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        if self.count == 1:
            self.shelf = SessionShelf()
        return MemorySessionStore(self.shelf, owner=owner)


class SQLiteMachine(BoxMachine):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        return SQLiteSessionStore(place / "sessions.db", owner=owner)


class PostgresMachine(BoxMachine):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        return postgres_store(place, owner)

    def _taken(self, owner: str, limit: int, agents: set[str]) -> list[tuple[tuple[str, str, str], int]]:
        """A statement does not see what it frees itself: those calls come after the others."""
        found = self._first(owner, limit, agents)
        self._free()
        return found + self._first(owner, limit - len(found), agents)


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("postgres")
@pytest.mark.parametrize(
    ("machine", "examples", "steps"),
    [(MemoryMachine, 60, 60), (SQLiteMachine, 15, 60), (PostgresMachine, 6, 60)],
    ids=["memory", "sqlite", "postgres"],
)
def test_a_call_queue_does_what_the_model_does(machine: type[Any], examples: int, steps: int) -> None:
    chosen = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(machine, settings=chosen)
