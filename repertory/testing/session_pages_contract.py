"""The part of the contract of session stores that is about pages: `SessionStoreContract` has it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

from repertory.backends.ports import IdPage, Lease, SessionInfo, SessionStore
from repertory.errors import LeaseLost


async def taken_back(store: SessionStore, lease: Lease) -> bool:
    """Acquire a session again under a lease that was released. False if it cannot be."""
    with suppress(LeaseLost):
        return (await store.acquire(lease.session_id, again=lease)).lease == lease
    return False


class SessionPagesContract(ABC):
    """Pages of sessions, by what their ids begin with.

    Examples:
        >>> from repertory.testing.session_contract import SessionStoreContract
        >>> issubclass(SessionStoreContract, SessionPagesContract)
        True
    """

    @abstractmethod
    def stores(self, place: Path, *owners: str) -> AbstractAsyncContextManager[list[SessionStore]]:
        """See `SessionStoreContract.stores`.

        Args:
            place: A folder of the test's own.
            owners: The names of the stores' owners.
        """

    @abstractmethod
    async def begun(self, store: SessionStore, names: Sequence[str]) -> None:
        """See `SessionStoreContract.begun`.

        Args:
            store: A store of `open_store`.
            names: The ids of the sessions.
        """

    async def work_done(self, store: SessionStore) -> int | None:
        """The rows, objects or steps that the store has read so far, if they are counted.

        Args:
            store: A store of `open_store`.
        """
        return None

    async def test_sessions_are_paged_by_what_their_ids_begin_with(self, tmp_path: Path) -> None:
        names = ["a", "a~", "a~1", "a~é", "ab", "%41~1", "journals"]
        async with self.stores(tmp_path, "one", "two") as (one, two):
            await self.begun(one, names)
            await one.acquire("a~empty")
            every = {info.session_id: info for info in await two.sessions()}
            for prefix, limit in (("", 3), ("a~", 1), ("a~", 100), ("%", 100), ("j", 100), ("nobody~", 1)):
                found: list[SessionInfo] = []
                while page := await two.sessions(
                    page=IdPage(prefix, after=found[-1].session_id if found else "", limit=limit)
                ):
                    assert len(page) <= limit
                    found += page
                assert found == [every[name] for name in sorted(names) if name.startswith(prefix)]

    async def test_a_page_costs_no_more_beside_many_sessions_of_others(self, tmp_path: Path) -> None:
        async def cost() -> int | None:
            before = await self.work_done(store)
            assert [info.session_id for info in await store.sessions(page=IdPage("m~"))] == ["m~1", "m~2", "m~3"]
            return None if before is None else (await self.work_done(store) or 0) - before

        async with self.stores(tmp_path, "one") as (store,):
            await self.begun(store, ["m~1", "m~2", "m~3"])
            if (alone := await cost()) is not None:
                await self.begun(store, [f"{tenant}~{number}" for tenant in ("a", "m2", "z") for number in range(20)])
                assert (await cost() or 0) <= alone * 1.25  # A tree of more rows may be one page deeper.
