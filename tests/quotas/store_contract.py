"""What every store of quotas does, also under many processes at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory.quotas.decisions import Report, Want, WindowLimits
from repertory.quotas.stores import QuotaStore

LIMITS = WindowLimits(tokens=100, requests=100, concurrent=10)


def report(holder: str, wanted: float, **more: Any) -> Report:
    return Report(holder, want=Want(wanted, tokens_wished=wanted), **more)


class StoreContract:
    """Subclass it, and open the store. `window_s` is real time for stores in databases."""

    shared = True

    def open_store(self, place: Path) -> QuotaStore:
        raise NotImplementedError

    @asynccontextmanager
    async def stores(self, place: Path, count: int = 1) -> AsyncGenerator[list[QuotaStore]]:
        opened = [self.open_store(place)]
        opened += [self.open_store(place) if self.shared else opened[0] for _ in range(count - 1)]
        try:
            yield opened
        finally:
            for store in opened:
                await store.aclose()

    async def test_a_block_is_given_once(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, 2) as (one, two):
            block = await one.exchange("m", report("a", 60), LIMITS)
            assert block.tokens == 60
            assert (await two.exchange("m", report("b", 60), LIMITS)).tokens == 0
            await one.exchange("m", Report("a", number=block.number, tokens=60, requests=1), LIMITS)
            refused = await two.exchange("m", report("b", 60), LIMITS)
            assert refused.tokens == 0
            assert 50 < refused.wait_s < 65
            assert (await two.exchange("m", report("c", 10), LIMITS)).tokens == 0  # `b` came first.

    async def test_what_is_not_used_is_given_to_others(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, 2) as (one, two):
            block = await one.exchange("m", report("a", 100), LIMITS)
            await one.exchange("m", Report("a", number=block.number, tokens=30, requests=1), LIMITS)
            assert (await two.exchange("m", report("b", 71), LIMITS)).tokens == 0
            assert (await two.exchange("m", report("b", 70), LIMITS)).tokens == 70

    async def test_a_report_that_arrives_twice_counts_once(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, 2) as (one, two):
            block = await one.exchange("m", report("a", 50), LIMITS)
            again = Report("a", number=block.number, tokens=50, requests=1)
            for _ in range(2):
                await one.exchange("m", report("a", 1, number=block.number, tokens=50, requests=1), LIMITS)
            await one.exchange("m", again, LIMITS)
            assert (await two.exchange("m", report("b", 50), LIMITS)).tokens == 50

    async def test_accounts_do_not_know_each_other(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (one,):
            for key in ("m", "m acme", "m 'x'; --", "ü" * 200):
                assert (await one.exchange(key, report("a", 100), LIMITS)).tokens == 100

    async def test_a_pause_reaches_all(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, 2) as (one, two):
            await one.exchange("m", Report("a", pause_s=30.0), LIMITS)
            grant = await two.exchange("m", report("b", 1), LIMITS)
            assert grant.tokens == 0
            assert 25 < grant.pause_s <= 30

    async def test_places_are_given_once_and_come_back(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, 2) as (one, two):
            want = Want(0.0, permits_wished=10)
            assert (await one.exchange("m", Report("a", want=want), LIMITS)).permits == 10
            assert (await two.exchange("m", Report("b", want=want), LIMITS)).permits == 0
            await one.exchange("m", Report("a", running=4), LIMITS)
            assert (await two.exchange("m", Report("b", want=want), LIMITS)).permits == 6

    async def test_exchanges_at_the_same_time_give_no_token_twice(self, tmp_path: Path) -> None:
        given: list[float] = []

        async def take(store: QuotaStore, holder: str) -> None:
            number = used = 0.0
            for _ in range(8):
                grant = await store.exchange("m", report(holder, 7, number=int(number), tokens=used), LIMITS)
                number, used = grant.number, grant.tokens
                given.append(grant.tokens)

        async with self.stores(tmp_path, 3) as stores, anyio.create_task_group() as group:
            for index, store in enumerate(stores):
                for task in range(2):
                    group.start_soon(take, store, f"{index}/{task}")
        assert sum(given) == 98


@pytest.mark.real_time
class LastingStoreContract(StoreContract):
    async def test_what_was_used_is_still_known_when_the_store_is_opened_again(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (one,):
            await one.exchange("m", report("a", 100), LIMITS)
        async with self.stores(tmp_path) as (one,):
            assert (await one.exchange("m", report("b", 1), LIMITS)).tokens == 0

    async def test_a_store_that_was_closed_opens_again(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path) as (one,):
            await one.exchange("m", report("a", 100), LIMITS)
            await one.aclose()
            await one.aclose()
            assert (await one.exchange("m", report("b", 1), LIMITS)).tokens == 0
