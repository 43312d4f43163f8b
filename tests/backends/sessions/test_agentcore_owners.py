"""Owners of sessions in AgentCore Memory, which knows no conditions on writes, and whose listings may lag behind."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

import anyio
import pytest

from repertory.backends.ports import Batch, Lease, Position
from repertory.backends.sessions.agentcore.events import Page
from repertory.backends.sessions.agentcore.ownership import AgentCoreSettings
from repertory.backends.sessions.agentcore.store import AgentCoreSessionStore
from repertory.core.journal.records import StepStarted, ToolStarted
from repertory.errors import CorruptJournal, LeaseLost, SessionBusy, Unavailable
from repertory.testing.session_contract import grow
from tests.backends.sessions.agentcore_memory import ACTOR, DirectEvents, FakeMemory
from tests.backends.sessions.agentcore_writer import QUICK, bytes_of, everything, kinds, opened, own

pytestmark = pytest.mark.anyio


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


class Hanging(DirectEvents):
    """Has no answer for sessions named `stuck`, until its patience is over."""

    async def page(self, session: str, token: str | None, *, payloads: bool) -> Page:
        if self.hangs and session.startswith("stuck"):
            await anyio.sleep(20)
            raise Unavailable("no answer")
        return await super().page(session, token, payloads=payloads)

    hangs = False


async def test_sessions_whose_requests_hang_cost_no_other_session_its_lease(memory: FakeMemory) -> None:
    events = Hanging(memory)
    clock, entropy = lambda: 1_700_000_000 + anyio.current_time(), lambda size: b"r" * size
    one = AgentCoreSessionStore(events, owner="one", wall=clock, entropy=entropy, settings=QUICK)
    with anyio.fail_after(1000):
        async with anyio.create_task_group() as tasks:
            for name in ("stuck-1", "stuck-2", "stuck-3", "idle"):
                await one.acquire(name)
            events.hangs = True
            tasks.start_soon(one.maintain)
            await anyio.sleep(120)
            async with opened(memory) as two:
                for _ in range(40):
                    with pytest.raises(SessionBusy):
                        await two.acquire("idle")
                    await anyio.sleep(1)
            events.hangs = False
            tasks.cancel_scope.cancel()
        await one.aclose()


# --------------------------------------------------------------------------------------------- listings that lag behind


async def test_a_listing_that_misses_the_newest_events_is_waited_for(memory: FakeMemory) -> None:
    """The last owner's farewell says what there must be, so nothing is lost, and nothing is written twice."""
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.say("second", "reply")
        await writer.release()
    (late,) = [event.number for event in memory.events("s") if any("second" in text for text in event.texts)]
    looks = itertools.count()
    memory.lag = lambda event: 10**6 if event.number == late and next(looks) < 4 else 0
    async with opened(memory) as store:
        writer = await own(store)
        assert writer.texts == ["question", "answer", "second", "reply"]
        assert isinstance(await writer.say("third", "yes"), Position)
        await writer.release()
    assert await everything(memory) == ["question", "answer", "second", "reply", "third", "yes"]


async def test_an_end_that_is_known_and_not_shown_opens_nothing_until_it_is(memory: FakeMemory) -> None:
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.say("second", "reply")
        await writer.release()
    (late,) = [event.number for event in memory.events("s") if any("second" in text for text in event.texts)]
    memory.lag = lambda event: 10**6 if event.number == late else 0
    for _ in range(2):
        async with opened(memory) as store:
            with pytest.raises(CorruptJournal, match="try again"):
                await own(store)
            with pytest.raises(CorruptJournal, match="row 4"):
                await store.load("s", "default", whole=True)
    memory.lag = lambda event: 0
    async with opened(memory) as store:
        assert (await own(store)).texts == ["question", "answer", "second", "reply"]


async def test_what_appears_after_all_waiting_is_taken_in(memory: FakeMemory) -> None:
    """Where nobody could know of it, since its owner was killed."""
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.say("second", "reply")
        memory.take_calls()
        farewell = len(memory.events("s"))
    for event in memory.events("s")[farewell:]:  # It was killed before.
        del memory.sessions[ACTOR, "s"][event.fields["eventId"]]
    (late,) = [event.number for event in memory.events("s") if any("second" in text for text in event.texts)]
    memory.lag = lambda event: 10**6 if event.number == late else 0
    async with opened(memory) as store:
        writer = await own(store, takeover=True)
        assert writer.texts == ["question", "answer"]
        assert isinstance(await writer.say("third", "yes"), Position)
        await writer.release()
    memory.lag = lambda event: 0
    for _ in range(2):
        async with opened(memory) as store:
            writer = await own(store)
            assert writer.texts == ["question", "answer", "third", "yes", "second", "reply"]
            await writer.release()


async def test_a_listing_that_never_shows_our_event_is_an_error_and_nobody_owns_the_session(memory: FakeMemory) -> None:
    memory.lag = lambda event: 10**6
    async with opened(memory) as store:
        with pytest.raises(Unavailable, match="does not show what was written"):
            await store.acquire("s")
    assert memory.events("s") == []


async def test_a_filter_is_never_used(memory: FakeMemory) -> None:
    """Listings with a filter lag behind, which has cost others their history."""
    memory.filter_lag = 10**6
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.release()
    async with opened(memory) as store:
        assert (await own(store)).texts == ["question", "answer"]


# --------------------------------------------------------------------------------------------------------------- owners


async def test_a_fenced_owner_that_writes_between_its_looks_has_added_a_message(memory: FakeMemory) -> None:
    async with opened(memory, AgentCoreSettings()) as one, opened(memory, AgentCoreSettings()) as two:
        old = await own(one)
        await old.say("question", "answer")
        new = await own(two, takeover=True)
        assert new.texts == ["question", "answer"]
        await new.say("of the new owner", "yes")
        assert isinstance(await old.say("of the old owner", "indeed"), LeaseLost)
        await anyio.sleep(AgentCoreSettings().prove_s + 1)
        assert isinstance(await old.say("too late"), LeaseLost)
        assert isinstance(await new.append(), LeaseLost)
        new = await own(two)
        wanted = ["question", "answer", "of the new owner", "yes", "of the old owner", "indeed"]
        assert new.texts == wanted
        await new.say("last", "yes")
        await new.release()
    assert await everything(memory) == [*wanted, "last", "yes"]


@pytest.mark.parametrize(
    "start",
    [
        ToolStarted(at=5.0, tool_use_id="u", name="pay", idempotency_key="k"),
        StepStarted(at=5.0, tool_use_id="u", step="pay"),
    ],
    ids=["a tool", "a step"],
)
async def test_a_fenced_owner_starts_nothing_that_takes_effect(
    memory: FakeMemory, start: ToolStarted | StepStarted
) -> None:
    async with opened(memory, AgentCoreSettings()) as one, opened(memory, AgentCoreSettings()) as two:
        old = await own(one)
        await old.say("question", "answer")
        await own(two, takeover=True)
        assert isinstance(await old.append(old.appender.append(start)), LeaseLost)


@pytest.mark.parametrize("latencies", list(itertools.permutations([0.01, 0.02, 0.05])))
async def test_of_owners_that_come_at_the_same_time_one_keeps_the_session(
    memory: FakeMemory, latencies: Sequence[float]
) -> None:
    """Others are refused, or find out before they write."""
    rows = grow(1)
    kept: list[Lease] = []

    async def come(latency_s: float) -> None:
        async with opened(memory, latency_s=lambda: latency_s) as store:
            with contextlib.suppress(SessionBusy):
                lease, _ = await store.acquire("s")
                await anyio.sleep(1)
                (outcome,) = await store.append([Batch(lease=lease, rows=rows)])
                if isinstance(outcome, Position):
                    kept.append(lease)
                else:
                    assert isinstance(outcome, LeaseLost)
                await anyio.sleep(1)

    async with anyio.create_task_group() as tasks:
        for latency_s in latencies:
            tasks.start_soon(come, latency_s)
    assert len(kept) == 1
    async with opened(memory) as store:
        assert list(await store.load("s", "default", whole=True)) == rows


async def test_an_owner_that_is_not_heard_of_any_more_has_lost_the_session(memory: FakeMemory) -> None:
    settings = AgentCoreSettings()
    async with opened(memory, settings) as one, opened(memory, settings) as two:
        old = await own(one)
        await old.say("question", "answer")
        await anyio.sleep(settings.lease_s - settings.relook_s - 1)
        with pytest.raises(SessionBusy):
            await two.acquire("s")
        await anyio.sleep(2)
        assert (await own(two)).texts == ["question", "answer"]
        assert isinstance(await old.say("too late"), LeaseLost)


async def test_an_idle_owner_that_is_tended_keeps_its_session(memory: FakeMemory) -> None:
    settings = AgentCoreSettings()
    async with opened(memory, settings) as one, opened(memory, settings) as two, anyio.create_task_group() as tasks:
        tasks.start_soon(one.maintain)
        writer = await own(one)
        await writer.say("question", "answer")
        await anyio.sleep(3 * settings.lease_s)
        with pytest.raises(SessionBusy):
            await two.acquire("s")
        assert isinstance(await writer.say("still here", "yes"), Position)
        assert kinds(memory).count("held") == 1
        tasks.cancel_scope.cancel()


async def test_an_idle_owner_learns_that_somebody_asks_for_its_session(memory: FakeMemory) -> None:
    settings = AgentCoreSettings()
    async with opened(memory, settings) as one, opened(memory, settings) as two, anyio.create_task_group() as tasks:
        tasks.start_soon(one.maintain)
        writer = await own(one)
        await writer.say("question", "answer")
        assert await one.asked_for() == []
        for _ in range(3):
            with pytest.raises(SessionBusy):
                await two.acquire("s")
        assert kinds(memory).count("asked") == 1
        await anyio.sleep(one.capabilities.sharing.yields_within_s)
        assert await one.asked_for() == ["s"]
        assert await one.asked_for() == []
        await writer.release()
        other = await own(two)
        assert other.texts == ["question", "answer"]
        await other.release()
        assert "asked" not in kinds(memory)
        tasks.cancel_scope.cancel()


async def test_asking_does_not_keep_a_dead_owner_alive(memory: FakeMemory) -> None:
    settings = AgentCoreSettings()
    async with opened(memory, settings) as one, opened(memory, settings) as two:
        await (await own(one)).say("question", "answer")
        for _ in range(3):
            with pytest.raises(SessionBusy):
                await two.acquire("s")
            await anyio.sleep(settings.lease_s / 4)
        await anyio.sleep(settings.lease_s / 4)
        assert (await own(two)).texts == ["question", "answer"]


async def test_a_session_that_was_given_up_just_now_is_not_busy(memory: FakeMemory) -> None:
    async with opened(memory) as one, opened(memory) as two:
        writer = await own(one)

        async def give_up() -> None:
            await anyio.sleep(QUICK.relook_s / 2)
            await writer.release()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            assert (await two.acquire("s")).lease.owner == two._shared.owner


async def test_a_commit_whose_answer_got_lost_can_be_made_again_and_is_there_once(memory: FakeMemory) -> None:
    plans: list[str | None] = []

    def plan(operation: str) -> str | None:
        return plans.pop(0) if plans and operation == "CreateEvent" else None

    settings = AgentCoreSettings(prove_s=0.0, event_bytes_max=1)
    async with opened(memory, settings, plan=plan) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        for number, fault in enumerate([["lost"], ["refused"], [None, "lost"], [None, "refused", "lost", "refused"]]):
            rows = [writer.message(f"question {number}"), writer.message(f"answer {number}")]
            plans[:] = fault
            while plans:
                assert isinstance(await writer.append(*rows), Unavailable)
            assert await writer.append(*rows) == Position(agent_id="default", seq=2 * number + 4)
        wanted = writer.texts
        assert len(wanted) == 10
        plans[:] = ["lost"]
        rows = [writer.message("left")]
        assert isinstance(await writer.append(*rows), Unavailable)
        assert isinstance(await writer.say("what follows it"), Position)
        plans[:] = ["lost"]
        assert isinstance(await writer.say("never made again"), Unavailable)
    async with opened(memory) as store:
        assert (await own(store)).texts == [*wanted, "left", "what follows it", "never made again"]


async def test_an_event_that_was_created_twice_counts_once(memory: FakeMemory) -> None:
    """As by a service that forgets its tokens."""
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.release()
    twice = next(event.fields for event in memory.events("s") if len(event.fields["payload"]) == 4)
    copied = {
        name: twice[name] for name in ("memoryId", "actorId", "sessionId", "payload", "metadata", "eventTimestamp")
    }
    memory.call("CreateEvent", copied)
    for number in range(2):
        async with opened(memory) as store:
            writer = await own(store)
            assert writer.texts[:2] == ["question", "answer"]
            assert len(writer.texts) == 2 + 2 * number
            await writer.say(f"question {number}", f"answer {number}")
            await writer.release()
    assert bytes_of(memory).count('\\"answer\\"') == 2  # In the item and in the row beside it.


async def test_agents_of_a_session_commit_together_in_one_event(memory: FakeMemory) -> None:
    first, second = grow(2, "first"), grow(2, "second")
    async with opened(memory) as store:
        lease, _ = await store.acquire("s")
        (outcome,) = await store.append([Batch(lease=lease, rows=[*first, *second])])
        assert outcome == Position(agent_id="second", seq=2)
    assert kinds(memory).count("rows") == 1
    assert await everything(memory, "first") == ["first says 0", "first says 1"]
    assert await everything(memory, "second") == ["second says 0", "second says 1"]


async def test_a_clock_that_is_behind_makes_nobody_wait_longer_than_a_lease_lasts(memory: FakeMemory) -> None:
    async with opened(memory) as gone, opened(memory, behind_s=3600.0) as late:
        lease, _ = await gone.acquire("s")
        with pytest.raises(SessionBusy):
            await late.acquire("s")
        await anyio.sleep(QUICK.lease_s)
        assert (await late.acquire("s")).lease.generation > lease.generation
