"""The part of the contract of session stores that is about commits which take a session, give it up, or forget agents:
`SessionStoreContract` has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from repertory.backends.ports import Batch, Position, give_up, load_range
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row
from repertory.core.pending_work import DueTime
from repertory.errors import LeaseLost, SessionBusy
from repertory.testing.session_pages_contract import SessionPagesContract, taken_back


def grow(count: int, agent_id: str = "default", *, at: float = 1.0, after: Sequence[Row] = ()) -> list[Row]:
    """Rows of a conversation that continues after `after` (all earlier rows of the agent)."""
    fold = restore(after).fold
    appender = Appender(agent_id, fold, after[-1].link if after else None, lambda size: b"s" * size)
    return [say(appender, at) for _ in range(count)]


def say(appender: Appender, at: float) -> Row:
    """The next message of the conversation: a prompt, or an answer."""
    fold = appender.fold
    prompt = fold.last_message is None or fold.last_message["role"] == "assistant"
    text = f"{appender.agent_id} says {fold.message_count}"
    return appender.append(
        MessageAdded(
            at=at + fold.message_count,
            message={"role": "user" if prompt else "assistant", "content": [{"text": text}]},
            turn=fold.turns + prompt,
            index=fold.message_count,
        )
    )


class SessionHandoverContract(SessionPagesContract):
    """Sessions that commits take and give up, in stores whose `acquires_again` is `commit`; agents that they forget.

    Examples:
        >>> from repertory.testing.session_contract import SessionStoreContract
        >>> issubclass(SessionStoreContract, SessionHandoverContract)
        True
    """

    async def test_a_commit_may_give_the_session_up_and_the_next_one_take_it_again(self, tmp_path: Path) -> None:
        """A requirement on stores that can do that; others ignore the wish, and say that they have not released it."""
        rows = grow(60)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            lease, _ = await one.acquire("session")
            (given_up,) = await one.append([Batch(lease=lease, rows=rows[:2], release=True)])
            assert isinstance(given_up, Position)
            (next_one,) = await one.append([Batch(lease=lease, rows=rows[2:3])])
            if not given_up.released:
                assert isinstance(next_one, Position)
                return
            assert isinstance(next_one, LeaseLost)
            assert isinstance((await one.append([Batch(lease=lease, rows=rows[3:4], take=True)]))[0], LeaseLost)
            await give_up(two, (await two.acquire("other")).lease)
            for start in range(2, 50, 3):
                (held,) = await one.append([Batch(lease=lease, rows=rows[start : start + 1], take=True)])
                assert held == Position(agent_id="default", seq=start + 1)
                with pytest.raises(SessionBusy):
                    await two.acquire("session")
                await one.append([Batch(lease=lease, rows=rows[start + 1 : start + 2], take=start % 2 == 0)])
                (given_up,) = await one.append([Batch(lease=lease, rows=rows[start + 2 : start + 3], release=True)])
                assert given_up == Position(agent_id="default", seq=start + 3, released=True)
                assert list(await two.load("session", "default", whole=True)) == rows[: start + 3]
                assert (
                    list(await load_range(two, "session", "default", start, start + 1)) == rows[start - 1 : start + 1]
                )
            assert [info.owner for info in await two.sessions("session")] == [None]
            (proved,) = await one.append([Batch(lease=lease, rows=(), take=True)])
            assert isinstance(proved, Position)
            with pytest.raises(SessionBusy):
                await two.acquire("session")
            (given_up,) = await one.append([Batch(lease=lease, rows=(), release=True)])
            assert isinstance(given_up, Position)
            assert given_up.released
            (at_once,) = await one.append([Batch(lease=lease, rows=rows[50:51], take=True, release=True)])
            assert at_once == Position(agent_id="default", seq=51, released=True)
            assert await taken_back(one, lease)
            await give_up(one, lease)
            erasing = Batch(lease=lease, rows=rows[51:52], erase=[("default", 50)], take=True)
            assert isinstance((await one.append([erasing]))[0], Position)
            await give_up(one, lease)
            new, loaded = await two.acquire("session", load="default")
            assert loaded == [row.without_content() if row.seq == 50 else row for row in rows[:52]]
            for batch in (Batch(lease=lease, rows=rows[52:53], take=True), Batch(lease=lease, rows=(), take=True)):
                assert isinstance((await one.append([batch]))[0], LeaseLost)
            (last,) = await two.append([Batch(lease=new, rows=rows[52:53], release=True)])
            assert last == Position(agent_id="default", seq=53, released=True)
            await two.delete("session")
            assert isinstance((await two.append([Batch(lease=new, rows=rows[53:54], take=True)]))[0], LeaseLost)
            assert not await one.sessions("session")

    async def test_a_session_that_a_commit_has_taken_may_be_taken_over(self, tmp_path: Path) -> None:
        rows = grow(4)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            lease, _ = await one.acquire("session")
            (given_up,) = await one.append([Batch(lease=lease, rows=rows[:1], release=True)])
            if not (isinstance(given_up, Position) and given_up.released):
                return
            await one.append([Batch(lease=lease, rows=rows[1:2], take=True)])
            new, loaded = await two.acquire("session", takeover=True, load="default")
            assert loaded == rows[:2]
            for take, release in ((False, False), (True, False), (True, True)):
                late = Batch(lease=lease, rows=rows[2:3], take=take, release=release)
                assert isinstance((await one.append([late]))[0], LeaseLost)
            assert isinstance((await two.append([Batch(lease=new, rows=rows[2:3])]))[0], Position)
            assert list(await one.load("session", "default", whole=True)) == rows[:3]

    async def test_a_forgotten_agent_leaves_nothing_and_may_begin_anew(self, tmp_path: Path) -> None:
        """A requirement on stores that can do that; others ignore the wish."""
        lasting, gone, other = grow(6), grow(5, "gone"), grow(3, "other")
        async with self.stores(tmp_path, "one") as (store,):
            lease, _ = await store.acquire("session")
            await store.append([Batch(lease=lease, rows=[*gone[:2], *lasting[:1]])])
            await store.append([Batch(lease=lease, rows=[*lasting[1:3], *other, *gone[2:]])])
            if store.capabilities.waking is not None:
                await store.append([Batch(lease=lease, rows=(), due=DueTime(agent_id="gone", at=1.0))])
            (outcome,) = await store.append([Batch(lease=lease, rows=(), forget=("gone", "nobody"))])
            assert isinstance(outcome, Position)
            await store.append([Batch(lease=lease, rows=lasting[3:4])])
            (info,) = await store.sessions("session")
            if "gone" in info.agents:
                return
            assert dict(info.agents) == {"default": 4, "other": 3}
            if store.capabilities.waking is not None:
                assert not await store.capabilities.waking.pending_work("session")
            assert list(await store.load("session", "gone", whole=True)) == []
            assert list(await store.load("session", "other", whole=True)) == other
            anew = grow(2, "gone", at=900.0)
            late = Batch(lease=lease, rows=gone[4:])  # It is not there any more, so nothing follows it.
            outcomes = await store.append([late, Batch(lease=lease, rows=[*anew, *lasting[4:5]])])
            assert [type(each) for each in outcomes] == [LeaseLost, Position]
            await give_up(store, lease)
        async with self.stores(tmp_path, "two") as (store,):
            (info,) = await store.sessions("session")
            assert dict(info.agents) == {"default": 5, "other": 3, "gone": 2}
            lease, rows = await store.acquire("session", load="gone")
            assert list(cast("Sequence[Row]", rows)) == anew[anew[-1].low - 1 :]
            await store.append([Batch(lease=lease, rows=[*lasting[5:], *grow(1, "gone", after=anew)])])
            assert list(await store.load("session", "default", whole=True)) == lasting
            assert list(await store.load("session", "gone", whole=True)) == [*anew, *grow(1, "gone", after=anew)]
            if (repair := store.capabilities.repair) is not None:
                assert not await repair.examine("session")
                salvaged = await repair.salvage("session")
                counts = Counter(row.agent_id for row in set(salvaged.rows))
                assert counts == {"default": 6, "other": 3, "gone": 3}
                assert not salvaged.damages
            await store.append([Batch(lease=lease, rows=(), forget=("gone",))])
            await store.append([Batch(lease=lease, rows=anew)])
            assert list(await store.load("session", "gone", whole=True)) == anew

    async def test_nothing_is_forgotten_under_a_stale_lease(self, tmp_path: Path) -> None:
        rows = grow(2)
        async with self.stores(tmp_path, "one", "two") as (one, two):
            old, _ = await one.acquire("session")
            await one.append([Batch(lease=old, rows=rows)])
            await two.acquire("session", takeover=True)
            await one.append([Batch(lease=old, rows=(), forget=("default",))])
            assert list(await two.load("session", "default", whole=True)) == rows
