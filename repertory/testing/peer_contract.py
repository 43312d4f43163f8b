"""The requirements on a session store that runtimes share, as tests of its directory and its call queue. Subclass it
next to your store's own tests, as `SessionStoreContract`:

    class TestMyStoreShared(SharedStoreContract):  # `directory` and `call_queue` of MyStore do not return None
        def open_store(self, place: Path, owner: str) -> SessionStore:
            return MyStore(place / "sessions", owner=owner)

A store dies here by the end of its `maintain` and by `abandon`. Each test runs on the event loops that the project's
`anyio_backend` fixture offers. Needs pytest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import anyio
import pytest

from repertory.backends.peer_ports import CallQueue, Directory, Peer, QueuedCall
from repertory.backends.ports import Batch, SessionStore, call_queue_of, give_up
from repertory.core.messages import Json
from repertory.core.peers import POISON_OWNERS
from repertory.errors import Invalid, NotFound, SessionBusy
from repertory.testing.session_contract import WAIT_S, grow

ALL = {"default"}
"""The agents of a taker."""


def boxed(
    session_id: str, token: str = "token", agent_id: str = "default", call: Mapping[str, Json] | None = None
) -> QueuedCall:
    """A call for the box."""
    return QueuedCall(session_id=session_id, agent_id=agent_id, token=token, call=call or {})


def box_of(store: SessionStore) -> CallQueue:
    """The store's call box, which there is."""
    box = call_queue_of(store)
    assert box is not None
    return box


def directory_of(store: SessionStore) -> Directory:
    """The store's directory, which there is."""
    sharing = store.capabilities.sharing
    assert sharing is not None
    assert sharing.directory is not None
    return sharing.directory()


def keys(calls: Sequence[QueuedCall]) -> list[tuple[str, str]]:
    """Session and token of each."""
    return [(call.session_id, call.token) for call in calls]


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    """Return when it is so: the end of a process may become known a little later."""
    while True:
        if await true():
            return
        await anyio.sleep(0.02)


async def taken_soon(box: CallQueue, limit: int = 10) -> Sequence[QueuedCall]:
    """Take calls until there are any."""
    found: list[QueuedCall] = []

    async def taken() -> bool:
        found.extend(await box.take(limit, ALL))
        return bool(found)

    await until(taken)
    return found


class SharedStoreContract(ABC):
    """The contract. Two stores opened on the same place share it, as two processes would."""

    pytestmark = pytest.mark.anyio

    @abstractmethod
    def open_store(self, place: Path, owner: str) -> SessionStore:
        """A new store over the sessions in `place`, with this owner name.

        Args:
            place: A folder of the test's own.
            owner: The name of the store's owner.
        """

    @asynccontextmanager
    async def stores(self, place: Path, *owners: str) -> AsyncGenerator[list[SessionStore]]:
        """Open one store per owner, maintained, and closed at the end, within the time limit.

        Args:
            place: A folder of the test's own.
            owners: The names of the stores' owners.
        """
        opened = [self.open_store(place, owner) for owner in owners]
        self._lives = {id(store): anyio.CancelScope() for store in opened}
        with anyio.fail_after(WAIT_S):
            async with AsyncExitStack() as stack:
                for store in opened:
                    stack.push_async_callback(store.aclose)
                async with anyio.create_task_group() as tasks:
                    for store in opened:
                        tasks.start_soon(self._live, store)
                    yield opened
                    tasks.cancel_scope.cancel()

    def die(self, store: SessionStore) -> None:
        """End a store as the end of its process does, as far as one can in the same process.

        Args:
            store: The store.
        """
        self._lives[id(store)].cancel()
        sharing = store.capabilities.sharing
        assert sharing is not None
        sharing.abandon()

    async def _live(self, store: SessionStore) -> None:
        with self._lives[id(store)]:
            await store.maintain()

    # The directory.

    async def test_nobody_is_there_and_nothing_is_kept_at_first(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            assert list(await directory_of(store).peers()) == []
            assert await directory_of(store).owner_of("session") is None
            await directory_of(store).leave()
            assert list(await box_of(store).take(10, ALL)) == list(await box_of(store).calls()) == []
            await box_of(store).done([boxed("session")])
            await box_of(store).again(boxed("session"), 0.0, "nothing is there")
            assert list(await box_of(store).calls("session")) == []

    async def test_a_peer_is_listed_from_when_it_joins_until_it_leaves(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            first = Peer(
                name="one",
                address="10.0.0.1:8001",
                room=20,
                busy=3,
                agents=frozenset({"default", "Ärger 'n'"}),
                version="1.2",
                zone="eu-1",
            )
            second = Peer(name="two", address="unix:/run/two.sock", room=0)
            await directory_of(two).join(second)
            assert list(await directory_of(one).peers()) == [second]
            await directory_of(one).join(first)
            assert list(await directory_of(one).peers()) == list(await directory_of(two).peers()) == [first, second]
            await directory_of(two).leave()
            await directory_of(two).leave()
            assert list(await directory_of(one).peers()) == list(await directory_of(two).peers()) == [first]
            await directory_of(two).join(second)
            assert list(await directory_of(one).peers()) == [first, second]

    async def test_a_peer_that_joins_again_is_listed_once_with_its_new_words(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            for busy in range(4):
                words = Peer(name="one", address=f"host:{busy}", room=4, busy=busy, agents=frozenset({f"agent-{busy}"}))
                await directory_of(one).join(words)
                assert list(await directory_of(two).peers()) == [words]

    async def test_nobody_joins_under_the_name_of_another(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            with pytest.raises(Invalid, match="owner"):
                await directory_of(one).join(Peer(name="two", address="host:1", room=1))
            assert list(await directory_of(two).peers()) == []

    async def test_a_peer_whose_store_was_closed_or_has_died_is_not_listed(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two", "three", "four") as (one, two, three, four):
            for store, name in ((one, "one"), (two, "two"), (three, "three")):
                await directory_of(store).join(Peer(name=name, address="host:1", room=1))
            await two.aclose()
            self.die(three)

            async def alone() -> bool:
                return [peer.name for peer in await directory_of(four).peers()] == ["one"]

            await until(alone)
            await directory_of(four).join(Peer(name="four", address="host:4", room=1))
            assert [peer.name for peer in await directory_of(one).peers()] == ["four", "one"]

    async def test_the_owner_of_a_session_is_named_while_it_lives(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two", "three") as (one, two, three):
            lease, _ = await one.acquire("session")
            await two.acquire("other")
            await three.acquire("third")
            for store in (one, two, three):
                found = [await directory_of(store).owner_of(name) for name in ("session", "other", "third", "nothing")]
                assert found == ["one", "two", "three", None]
            await give_up(one, lease)
            await two.aclose()
            self.die(three)

            async def free() -> bool:
                return await directory_of(one).owner_of("third") is None

            await until(free)
            assert [await directory_of(one).owner_of(name) for name in ("session", "other")] == [None, None]
            with pytest.raises(Invalid):
                await directory_of(one).owner_of("a/b")

    # The call box.

    async def test_a_call_is_kept_once(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            assert await box_of(one).put(boxed("session", call={"prompt": "first"}))
            assert not await box_of(one).put(boxed("session", call={"prompt": "second"}))
            assert not await box_of(two).put(boxed("session", call={"prompt": "third"}))
            assert await box_of(two).put(boxed("session", "other"))
            assert await box_of(two).put(boxed("session", "token", "agent"))
            assert await box_of(two).put(boxed("another"))
            found = await box_of(two).calls("session")
            assert [(call.agent_id, call.token, dict(call.call)) for call in found] == [
                ("default", "token", {"prompt": "first"}),
                ("default", "other", {}),
                ("agent", "token", {}),
            ]
            assert keys(await box_of(one).calls()) == [*keys(found), ("another", "token")]
            assert [call.created_at for call in found] == sorted(call.created_at for call in found)
            assert {(call.tries, call.error, call.parked) for call in found} == {(0, "", False)}
            (first, _) = await box_of(one).take(10, ALL)
            assert not await box_of(two).put(boxed("session", call={"prompt": "fourth"}))
            assert dict(first.call) == {"prompt": "first"}

    async def test_a_call_comes_back_as_it_was_put(self, tmp_path: Path) -> None:
        call: dict[str, Json] = {
            "prompt": [{"text": "Ärger 'mit' \"Zeichen\" \0 \ud83d \U0001f600"}, {"json": [1, 2.5, True, None, {}]}],
            "": {"nested": [[[]]]},
            "long": "x" * 100_000,
        }
        async with self.stores(tmp_path, "one") as (store,):
            session_id, agent_id, token = "Ä'%s", 'an "agent"', "x" * 255
            put = boxed(session_id, token, agent_id, call)
            assert await box_of(store).put(put)
            (taken,) = await box_of(store).take(1, {agent_id})
            assert (taken.session_id, taken.agent_id, taken.token, taken.call) == (session_id, agent_id, token, call)
            await box_of(store).again(taken, 0.0, "wrong \0 \ud83d '")
            (again,) = await box_of(store).take(1, {agent_id})
            assert (again.call, again.tries) == (call, 1)
            assert again.error.startswith("wrong")
            await box_of(store).done([again])
            assert list(await box_of(store).calls()) == []

    async def test_what_cannot_be_kept_is_refused(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            for bad in (boxed("a/b"), boxed("session", ""), boxed("session", "token", "line\n")):
                with pytest.raises(Invalid):
                    await box_of(store).put(bad)
            for value in (float("nan"), b"bytes", {1, 2}):
                with pytest.raises(Invalid):
                    await box_of(store).put(boxed("session", call={"value": cast("Json", value)}))
            assert list(await box_of(store).calls()) == []

    async def test_calls_of_a_session_are_taken_one_after_the_other_in_their_order(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            for number in range(4):
                for name in ("a", "b"):
                    await box_of(one).put(boxed(name, f"token-{number}"))
            for number in range(4):
                taken = await box_of(one if number % 2 else two).take(10, ALL)
                assert keys(taken) == [("a", f"token-{number}"), ("b", f"token-{number}")]
                assert list(await box_of(one).take(10, ALL)) == list(await box_of(two).take(10, ALL)) == []
                await box_of(one if number % 2 else two).done(taken)
            assert list(await box_of(one).calls()) == []

    async def test_a_taker_is_given_no_more_than_it_asks_for_and_calls_of_its_agents_alone(
        self, tmp_path: Path
    ) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            for name in ("a", "b", "c"):
                await box_of(one).put(boxed(name, agent_id="mine"))
            await box_of(one).put(boxed("d", agent_id="other"))
            assert list(await box_of(two).take(0, {"mine"})) == list(await box_of(two).take(-1, {"mine"})) == []
            assert list(await box_of(two).take(10, set())) == list(await box_of(two).take(10, {"nobody"})) == []
            assert keys(await box_of(two).take(2, {"mine"})) == [("a", "token"), ("b", "token")]
            assert keys(await box_of(one).take(10, {"mine", "nobody"})) == [("c", "token")]
            assert keys(await box_of(one).take(10, {"mine", "other"})) == [("d", "token")]

    async def test_calls_of_tenants_that_are_passed_over_stay_and_keep_no_others_waiting(self, tmp_path: Path) -> None:
        names = ["a~1", "a~2", "a", "~a~3", "b~1", "=41~1"]
        async with self.stores(tmp_path, "one") as (one,):
            for name in names:
                await box_of(one).put(boxed(name))
            box = box_of(one)
            assert [call.session_id for call in await box.take(1, ALL, ["a", ""])] == ["b~1"]
            assert [call.session_id for call in await box.take(10, ALL, ["a", "b", ""])] == ["=41~1"]
            assert [call.session_id for call in await box.take(10, ALL, ["a"])] == ["a", "~a~3"]
            assert [call.session_id for call in await box.take(10, ALL)] == ["a~1", "a~2"]

    async def test_one_agent_of_a_session_is_called_at_a_time(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            await box_of(one).put(boxed("session", "first", "a"))
            await box_of(one).put(boxed("session", "second", "b"))
            (call,) = await box_of(two).take(10, {"b"})  # Whoever serves `a` may never come.
            assert list(await box_of(one).take(10, {"a", "b"})) == []
            await box_of(two).done([call])
            assert keys(await box_of(one).take(10, {"a", "b"})) == [("session", "first")]

    async def test_no_call_is_taken_twice(self, tmp_path: Path) -> None:
        owners = [f"owner-{number}" for number in range(4)]
        async with self.stores(tmp_path, *owners) as opened:
            for number in range(60):
                await box_of(opened[0]).put(boxed(f"session-{number % 20}", f"token-{number}"))
            taken: list[tuple[str, str]] = []
            under_way: set[str] = set()

            async def work(box: CallQueue) -> None:
                while await box.calls():
                    calls = await box.take(3, ALL)
                    names = {call.session_id for call in calls}
                    assert len(names) == len(calls)
                    assert not names & under_way
                    under_way.update(names)
                    taken.extend(keys(calls))
                    await anyio.lowlevel.checkpoint()
                    under_way.difference_update(names)
                    await box.done(calls)

            async with anyio.create_task_group() as tasks:
                for store in opened:
                    tasks.start_soon(work, box_of(store))
            assert sorted(taken) == sorted((f"session-{n % 20}", f"token-{n}") for n in range(60))
            for name in {name for name, _ in taken}:
                order = [int(token.removeprefix("token-")) for session, token in taken if session == name]
                assert order == sorted(order)

    async def test_what_a_dead_owner_had_taken_goes_to_another(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two", "three") as (one, two, three):
            for name in ("a", "b"):
                await box_of(one).put(boxed(name, "first"))
                await box_of(one).put(boxed(name, "second"))
            assert len(await box_of(one).take(10, ALL)) == 2
            assert list(await box_of(two).take(10, ALL)) == []
            self.die(one)
            found = await taken_soon(box_of(two))
            assert [(call.session_id, call.token, call.tries) for call in found] == [
                ("a", "first", 1),
                ("b", "first", 1),
            ]
            assert list(await box_of(three).take(10, ALL)) == []
            await box_of(two).done(found)
            again = await box_of(three).take(10, ALL)
            assert [(call.token, call.tries) for call in again] == [("second", 0), ("second", 0)]

    async def test_a_call_that_has_ended_too_many_owners_is_parked(self, tmp_path: Path) -> None:
        owners = [f"owner-{number}" for number in range(POISON_OWNERS)]
        async with self.stores(tmp_path, "looking", *owners) as (looking, *opened):
            await box_of(looking).put(boxed("session", "poison"))
            await box_of(looking).put(boxed("session", "later"))
            for number, store in enumerate(opened):
                found = await taken_soon(box_of(store))
                assert [(call.token, call.tries) for call in found] == [("poison", number)]
                self.die(store)
            later = await taken_soon(box_of(looking))
            assert keys(later) == [("session", "later")]
            poison, _ = await box_of(looking).calls()
            assert (poison.token, poison.tries, poison.parked) == ("poison", POISON_OWNERS, True)
            assert poison.error
            await box_of(looking).done(later)
            assert list(await box_of(looking).take(10, ALL)) == []
            assert await box_of(looking).put(boxed("session", "poison", call={"prompt": "new"}))
            (anew,) = await box_of(looking).take(10, ALL)
            assert (dict(anew.call), anew.tries, anew.error, anew.parked) == ({"prompt": "new"}, 0, "", False)

    async def test_a_call_that_is_given_back_waits_and_keeps_its_place(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            await box_of(one).put(boxed("session", "first"))
            await box_of(one).put(boxed("session", "second"))
            (call,) = await box_of(one).take(10, ALL)
            await box_of(one).again(call, 3600.0, "not now")
            assert list(await box_of(one).take(10, ALL)) == list(await box_of(two).take(10, ALL)) == []
            waiting, _ = await box_of(two).calls()
            assert (waiting.token, waiting.tries, waiting.error, waiting.parked) == ("first", 1, "not now", False)
            assert not await box_of(two).put(boxed("session", "first"))

            await box_of(one).put(boxed("other"))
            (call,) = await box_of(one).take(10, ALL)
            await box_of(one).again(call, 0.3, "soon")
            found = await taken_soon(box_of(two))
            assert [(call.session_id, call.tries, call.error) for call in found] == [("other", 1, "soon")]

    async def test_giving_back_ends_nobody(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            await box_of(store).put(boxed("session"))
            for number in range(POISON_OWNERS + 2):
                (call,) = await box_of(store).take(10, ALL)
                assert (call.tries, call.parked) == (number, False)
                await box_of(store).again(call, 0.0, "again")
            (stored,) = await box_of(store).calls()
            assert not stored.parked

    async def test_a_parked_call_holds_nothing_up_and_may_be_put_anew(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            for token in ("first", "second"):
                await box_of(one).put(boxed("session", token, call={"prompt": "old"}))
            (call,) = await box_of(one).take(10, ALL)
            await box_of(one).again(call, 0.0, "hopeless", park=True)
            (second,) = await box_of(two).take(10, ALL)
            assert second.token == "second"
            parked, _ = await box_of(two).calls()
            assert (parked.token, parked.tries, parked.error, parked.parked) == ("first", 1, "hopeless", True)
            assert await box_of(two).put(boxed("session", "first", call={"prompt": "new"}))
            assert not await box_of(two).put(boxed("session", "first", call={"prompt": "newer"}))
            assert keys(await box_of(one).calls()) == [("session", "second"), ("session", "first")]
            await box_of(two).done([second])
            (anew,) = await box_of(one).take(10, ALL)
            assert (dict(anew.call), anew.tries, anew.error) == ({"prompt": "new"}, 0, "")

    async def test_a_call_is_done_or_given_back_by_its_owner_alone(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            await box_of(one).put(boxed("session"))
            await box_of(one).done([boxed("session")])  # Nobody has taken it.
            (call,) = await box_of(one).take(10, ALL)
            await box_of(two).done([call])
            await box_of(two).again(call, 0.0, "not mine", park=True)
            (stored,) = await box_of(two).calls()
            assert (stored.tries, stored.error, stored.parked) == (0, "", False)
            assert list(await box_of(two).take(10, ALL)) == []
            await box_of(one).again(call, 0.0, "mine")
            (other,) = await box_of(two).take(10, ALL)
            await box_of(one).done([call])
            assert keys(await box_of(one).calls()) == [("session", "token")]
            await box_of(two).done([other, other, boxed("nothing")])
            assert list(await box_of(one).calls()) == []
            assert await box_of(one).put(boxed("session"))

    async def test_a_deleted_session_has_no_calls(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            lease, _ = await one.acquire("session")
            await one.append([Batch(lease=lease, rows=grow(2))])
            for name, token in (("session", "parked"), ("session", "taken"), ("session", "waits"), ("kept", "token")):
                await box_of(one).put(boxed(name, token))
            call, _ = await box_of(two).take(10, ALL)
            await box_of(two).again(call, 0.0, "parked", park=True)
            (taken,) = await box_of(two).take(10, ALL)
            with pytest.raises(SessionBusy):
                await two.delete("session")
            assert len(await box_of(two).calls("session")) == 3
            await give_up(one, lease)
            await two.delete("session")
            assert keys(await box_of(one).calls()) == [("kept", "token")]
            await box_of(two).done([taken])
            assert await box_of(one).put(boxed("session", "taken"))

    async def test_a_session_that_has_only_calls_can_be_deleted(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one") as (store,):
            with pytest.raises(NotFound):
                await store.delete("session")
            await box_of(store).put(boxed("session"))
            await store.delete("session")
            assert list(await box_of(store).calls()) == []
            with pytest.raises(NotFound):
                await store.delete("session")

    async def test_what_a_cancelled_taker_was_not_given_is_taken_by_the_next(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            for number in range(12):
                await box_of(one).put(boxed(f"session-{number}"))
                given: list[QueuedCall] = []

                async def take(given: list[QueuedCall]) -> None:
                    given.extend(await box_of(one).take(10, ALL))

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(take, given)
                    for _ in range(number):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
                others = await box_of(two).take(10, ALL)
                assert keys([*given, *others]) == [(f"session-{number}", "token")]
                assert not others or others[0].tries == 0
                await box_of(one).done(given)
                await box_of(two).done(others)
            assert list(await box_of(one).calls()) == []

    async def test_a_closed_store_refuses(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, "one", "two") as (one, two):
            await box_of(two).put(boxed("session"))
            await one.aclose()
            calls = (
                directory_of(one).join(Peer(name="one", address="host:1", room=1)),
                box_of(one).put(boxed("session", "more")),
                box_of(one).take(10, ALL),
            )
            for call in calls:
                with pytest.raises(Invalid, match="closed"):
                    await call
            assert len(await box_of(two).take(10, ALL)) == 1
