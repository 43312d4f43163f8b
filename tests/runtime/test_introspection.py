"""Looking at a system while it runs."""

from __future__ import annotations

import anyio
import pytest

from repertory.runtime.lifecycle import State
from repertory.runtime.mailbox import DeadLetter
from repertory.runtime.message import Next, Reason, carry_on, current_trace, refuse, reply, traced
from repertory.runtime.system import ActorSystem, SystemSettings
from tests.runtime.toys import Add, Bump, Crash, Nap, Run, Scripted, counter, scripted, settle

pytestmark = pytest.mark.anyio


async def test_tree_shows_what_everybody_does_now() -> None:
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(counter())
        await ref.ask(Add(amount=4), timeout_s=1)
        group.start_soon(lambda: ref.ask(Nap(seconds=10), timeout_s=20))
        await settle()
        ref.tell(Bump())
        await anyio.sleep(2)
        ref.tell(Bump())
        root = system.tree()
        (info,) = root.children
        assert root.path == "/"
        assert (info.path, info.kind, info.state, info.incarnation) == ("/counter", "Counter", State.RUNNING, 1)
        assert (info.queued, info.current, info.processed, info.failed) == (2, "Nap", 1, 0)
        assert info.oldest_s == pytest.approx(2)
        assert info.running_s == pytest.approx(2)
        assert info.summary == {"total": 4}
        assert [actor.path for actor in root.walk()] == ["/", "/counter"]
        group.cancel_scope.cancel()


async def test_tree_shows_actors_between_two_incarnations() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        ref.tell(Crash())
        ref.tell(Bump())
        while system.tree().children[0].state is State.RUNNING:
            await anyio.lowlevel.checkpoint()
        (info,) = system.tree().children
        assert (info.state, info.queued, info.failed) == (State.STOPPED, 1, 1)
        await anyio.sleep(1)
        (info,) = system.tree().children
        assert (info.state, info.incarnation, info.processed) == (State.RUNNING, 2, 2)


async def test_stats_keep_counts_of_actors_that_are_gone() -> None:
    async with ActorSystem() as system:
        for _ in range(3):
            ref = await system.start(counter())
            await ref.ask(Add(), timeout_s=1)
            ref.tell(Crash())
            await anyio.sleep(1)
            await system.stop(ref)
        stats = system.stats()
        assert (stats.actors, stats.processed, stats.failed, stats.restarts) == (1, 6, 3, 3)


async def test_dead_letters_are_shown_counted_and_bounded() -> None:
    seen: list[DeadLetter] = []

    async def refuse_all(actor: Scripted, message: object) -> Next:
        return refuse(ValueError("no"))

    async with ActorSystem(SystemSettings(dead_letters_max=10)) as system:
        end = system.dead_letters.subscribe(seen.append)
        ref = await system.start(scripted(refuse_all))
        for number in range(25):
            ref.tell(number)
        await settle()
        end()
        ref.tell("unseen")
        await settle()
        assert [letter.message for letter in seen] == list(range(25))
        assert [letter.message for letter in system.dead_letters.recent()] == [*range(16, 25), "unseen"]
        assert system.dead_letters.counts == {("Scripted", Reason.REJECTED): 26}
        assert system.stats().dead_letters == {"rejected": 26}


async def test_trace_token_travels_with_everything_that_a_message_causes() -> None:
    seen: list[tuple[str, object]] = []

    async with ActorSystem() as system:

        async def last(actor: Scripted, message: object) -> Next:
            seen.append(("last", actor.context.trace))
            return reply(None) if isinstance(message, Run) else carry_on()

        far = await system.start(scripted(last, "far"))

        async def first(actor: Scripted, message: object) -> Next:
            seen.append(("first", actor.context.trace))
            await far.ask(Run(), timeout_s=1)
            far.tell("told")
            with traced("inner"):
                await far.ask(Run(), timeout_s=1)

            async def job() -> None:
                seen.append(("job", current_trace()))
                far.tell("from the job")

            actor.context.job(job)
            return reply(None)

        near = await system.start(scripted(first, "near"))
        with traced("token"):
            await near.ask(Run(), timeout_s=1)
        assert current_trace() is None
        await far.ask(Run(), timeout_s=1)
        await settle()
    assert seen[:2] == [("first", "token"), ("last", "token")]
    assert [token for where, token in seen if where == "last"].count("token") == 3
    assert ("last", "inner") in seen
    assert ("job", "token") in seen
    assert ("last", None) in seen


async def test_context_has_a_clock_a_logger_and_chance() -> None:
    async def look(actor: Scripted, message: object) -> Next:
        context = actor.context
        assert context.clock() == anyio.current_time()
        assert context.logger.extra == {"actor": "/scripted"}
        assert 0 <= context.rng.uniform(0, 1) <= 1
        assert context.sibling("scripted") is context.self_ref
        assert context.self_ref.name == "scripted"
        assert dict(context.children()) == {}
        return reply(repr(context.self_ref))

    async with ActorSystem() as system:
        ref = await system.start(scripted(look))
        assert await ref.ask(Run(), timeout_s=1) == "<ActorRef /scripted>"
