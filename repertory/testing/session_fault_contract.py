"""The requirements on every `SessionStore` that loses the connection to its place, as tests. Subclass it next to your
store's own tests:

    class TestMyStore(LostConnectionContract):
        @asynccontextmanager
        async def behind(self, place: Path) -> AsyncGenerator[BehindWire]:
            async with cutting_relay(port_of_the_server) as relay:  # `repertory.testing.cutting_relay`
                store, observer = MyStore(place, port=relay.port), MyStore(place, port=port_of_the_server)
                yield BehindWire(store, observer, relay)
                relay.mend()
                await store.aclose()
                await observer.aclose()

Each method is asked with the connection lost at its first request, at its second and so on, before the request and
after it, until the method makes no more requests. It must answer, or raise something `Retryable`, and leave nothing
half done; and asking again must do the rest. Needs pytest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import anyio
import pytest

from repertory.backends.ports import (
    Batch,
    Lease,
    OwnedRows,
    SessionInfo,
    SessionStore,
    WorkQuery,
    begin,
    ends,
    give_up,
    load_range,
    pending_work_of,
)
from repertory.core.journal.records import MessageAdded, Redacted
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row
from repertory.core.pending_work import DueTime
from repertory.errors import Conflict, Corrupt, Invalid, NotFound, RepertoryError, Retryable
from repertory.testing.cuts import LostWhen
from repertory.testing.session_contract import grow
from repertory.testing.session_pages_contract import taken_back

WITHIN_S = 50.0
"""The time limit of every test, in seconds."""
MOST_REQUESTS = 400
_ROWS = grow(4)


def _redacting() -> list[Row]:
    """Two more rows: what takes the place of the first message, which is erased, and one more answer."""
    before = restore(_ROWS[:2])
    appender = Appender("default", before.fold, before.link, lambda size: b"s" * size)
    first = Redacted(at=3.0, target=1, message={"role": "user", "content": [{"text": "another"}]}, turn=1, index=0)
    answer = MessageAdded(at=4.0, message={"role": "assistant", "content": [{"text": "more"}]}, turn=1, index=2)
    return [appender.append(first), appender.append(answer)]


_NOW = 1e9
_HAS_WORK = DueTime(agent_id="default", at=2.0, why="expiry")


class Wire(Protocol):
    """The connection between a store and its place."""

    def plan(self, cut: LostWhen, number: int, *, stays: bool = False) -> None:
        """Lose the next request but so many, before it arrives or its answer.

        Args:
            cut: The loss of the request `before` it arrives, or `after` it was done.
            number: The number of the request that is lost, from 1 for the next one.
            stays: True also loses all requests that follow.
        """

    def mend(self) -> bool:
        """Let everything pass again. True if the cut was made."""
        ...


class BehindWire(NamedTuple):
    """A store, one that sees the same without the wire, and the wire.

    Attributes:
        store: The store behind the wire.
        observer: A store that sees the same, without the wire.
        wire: The wire.
    """

    store: SessionStore
    observer: SessionStore
    wire: Wire


T = TypeVar("T")
StoreMethod: TypeAlias = Callable[[SessionStore, Lease], Awaitable[object]]


async def _released_and_again(store: SessionStore, lease: Lease) -> None:
    await give_up(store, lease)
    await taken_back(store, lease)


def _part(part: T | None) -> T:
    if part is None:
        raise Invalid("the store has no such part")
    return part


METHODS: dict[str, StoreMethod] = {
    "acquire": lambda store, lease: store.acquire(lease.session_id),
    "take over": lambda store, lease: store.acquire(lease.session_id, takeover=True),
    "acquire again": _released_and_again,
    "acquire and load": lambda store, lease: store.acquire(lease.session_id, load="default"),
    "release": lambda store, lease: give_up(store, lease),
    "release of several": lambda store, lease: store.release([lease, lease]),
    "append": lambda store, lease: store.append([Batch(lease=lease, rows=_ROWS[2:])]),
    "append and erase": lambda store, lease: store.append(
        [Batch(lease=lease, rows=_redacting(), erase=[("default", 1)])]
    ),
    "append and owe": lambda store, lease: store.append([Batch(lease=lease, rows=_ROWS[2:], due=_HAS_WORK)]),
    "prove": lambda store, lease: store.append([Batch(lease=lease, rows=())]),
    "begin": lambda store, lease: begin(store, _beside(lease), _ROWS),
    "load": lambda store, lease: store.load(lease.session_id, "default"),
    "load whole": lambda store, lease: store.load(lease.session_id, "default", whole=True),
    "load_at": lambda store, lease: _part(store.capabilities.positions).load_at(lease.session_id, "default", 1),
    "load_range": lambda store, lease: load_range(store, lease.session_id, "default", 1, 2),
    "labels": lambda store, lease: _part(_part(store.capabilities.positions).labels)(lease.session_id, "default"),
    "sessions": lambda store, lease: store.sessions(),
    "one session": lambda store, lease: store.sessions(lease.session_id),
    "ends": lambda store, lease: ends(store, lease.session_id),
    "claim_due": lambda store, lease: _part(store.capabilities.waking).claim_due(WorkQuery(_NOW, 10, ["default"])),
    "pending_work": lambda store, lease: pending_work_of(store),
    "delete": lambda store, lease: store.delete(lease.session_id),
    "inspect": lambda store, lease: _part(_part(store.capabilities.repair).inspect)(),
    "examine": lambda store, lease: _part(store.capabilities.repair).examine(lease.session_id),
    "salvage": lambda store, lease: _part(store.capabilities.repair).salvage(lease.session_id),
    "set_aside": lambda store, lease: _part(store.capabilities.repair).set_aside(lease.session_id, _ROWS[:1]),
    "quarantined": lambda store, lease: _part(store.capabilities.repair).quarantined(lease.session_id),
    "asked_for": lambda store, lease: _part(store.capabilities.sharing).asked_for(),
}
"""Every method that speaks, each with arguments for a session with two rows that owes something."""


class LostConnectionContract(ABC):
    """The contract."""

    pytestmark = pytest.mark.anyio

    in_steps: ClassVar[frozenset[str]] = frozenset()
    """Methods that may stop half-way, as the store documents: what they leave may be damaged or gone, but neither wrong
    nor out of reach of the next call, which does the rest.
    """
    step: ClassVar[int] = 1
    """The step between lost requests: 1 loses each request of a method once; more skips some, where there are many."""

    @abstractmethod
    def behind(self, place: Path) -> AbstractAsyncContextManager[BehindWire]:
        """A new store, closed at the end. Sessions of two calls have different names.

        Args:
            place: A folder of each call's own below that of the test.
        """

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("cut", ["before", "after"])
    @pytest.mark.parametrize("stays", [False, True], ids=["once", "for a while"])
    async def test_a_connection_that_is_lost_leaves_nothing_half_done(
        self, tmp_path: Path, method: str, cut: LostWhen, stays: bool
    ) -> None:
        with anyio.fail_after(WITHIN_S):
            async with self.behind(tmp_path / "0") as (store, observer, _):
                lease = await _begun(store, "session-0")
                before = await _seen(observer, lease)
                try:
                    await METHODS[method](store, lease)
                except Invalid:  # The store cannot do this.
                    return
                after = await _seen(observer, lease)
            for number in range(1, MOST_REQUESTS, self.step):
                async with self.behind(tmp_path / str(number)) as (store, observer, wire):
                    lease = await _begun(store, f"session-{number}")
                    wire.plan(cut, number, stays=stays)
                    failed = await _failure_of(METHODS[method](store, lease))
                    made = wire.mend()
                    assert made or failed is None
                    found = await _seen(observer, lease)
                    assert found == after or (failed is not None and (found == before or method in self.in_steps))
                    await _ask_again(method, store, lease, done=failed is None)
                    found = await _seen(observer, lease)
                    assert found == after or (method == "set_aside" and _at_least(found, after))
                    if method in ("release", "release of several"):
                        await give_up(observer, (await observer.acquire(lease.session_id)).lease)
                    await give_up(store, (await store.acquire(f"after-{number}")).lease)
                    if not made:
                        return
            raise AssertionError("the method never came to its end")

    @pytest.mark.parametrize("cut", ["before", "after"])
    async def test_closing_while_the_connection_is_lost_ends_in_order(self, tmp_path: Path, cut: LostWhen) -> None:
        with anyio.fail_after(WITHIN_S):
            async with self.behind(tmp_path / "0") as (store, observer, wire):
                lease = await _begun(store, "session-0")
                wire.plan(cut, 1, stays=True)
                await store.aclose()
                await store.aclose()
                wire.mend()
                await give_up(observer, (await observer.acquire(lease.session_id, takeover=True)).lease)
                assert list(await observer.load(lease.session_id, "default", whole=True)) == _ROWS[:2]


class _Seen(NamedTuple):
    """The stored state of a session, and of the one that may begin beside it."""

    damaged: bool
    listed: Sequence[object]
    rows: Sequence[object]
    pending_work: Sequence[object]
    set_aside: int


async def _begun(store: SessionStore, session_id: str) -> Lease:
    lease, _ = await store.acquire(session_id)
    (outcome,) = await store.append(
        [Batch(lease=lease, rows=_ROWS[:2], due=DueTime(agent_id="default", at=1.0, why="expiry"))]
    )
    assert not isinstance(outcome, RepertoryError)
    return lease


async def _seen(observer: SessionStore, lease: Lease) -> _Seen:
    names = (lease.session_id, _beside(lease))
    pending_work = [
        (work.at, work.why, work.claims) for work in await pending_work_of(observer) if work.session_id == names[0]
    ]
    repair = observer.capabilities.repair
    set_aside = 0 if repair is None else len(await repair.quarantined(names[0]))
    infos: dict[str, Sequence[SessionInfo]] = dict.fromkeys(names, ())
    try:
        with suppress(Invalid):  # Not every store can list.
            infos = {name: await observer.sessions(name) for name in names}
        rows = [list(await observer.load(name, "default", whole=True)) for name in names]
    except Corrupt:
        return _Seen(True, [], [], pending_work, set_aside)
    return _Seen(False, [[dict(info.agents) for info in infos[name]] for name in names], rows, pending_work, set_aside)


def _beside(lease: Lease) -> str:
    return f"{lease.session_id}-new"


def _at_least(found: _Seen, wanted: _Seen) -> bool:
    """True if nothing differs, except that parts of the session were set aside more than once."""
    return found._replace(set_aside=wanted.set_aside) == wanted and found.set_aside >= wanted.set_aside


async def _failure_of(call: Awaitable[object]) -> RepertoryError | None:
    """The error that a call has raised or returned, if it is `Retryable`; others are raised, and fail the test."""
    try:
        result = await call
    except Retryable as error:
        return error
    rows: object = result.rows if isinstance(result, OwnedRows) else result
    outcomes = cast("Sequence[object]", rows) if isinstance(rows, Sequence) else [rows]
    failed = next((outcome for outcome in outcomes if isinstance(outcome, RepertoryError)), None)
    if failed is not None and not isinstance(failed, Retryable):
        raise failed
    return failed


async def _ask_again(method: str, store: SessionStore, lease: Lease, *, done: bool) -> None:
    """Call once more. What is done may be refused now."""
    if done and method == "set_aside":
        return
    with suppress(Conflict, NotFound):
        failed = await _failure_of(METHODS[method](store, lease))
        assert failed is None, failed
