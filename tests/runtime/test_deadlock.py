"""Asks that would wait for themselves are refused before they wait."""

from __future__ import annotations

import math

import anyio
import pytest

from repertory.errors import AskTimeout, Deadlock, StartFailed
from repertory.runtime.message import Next, Waits, carry_on, find_circle, reply
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Nap, Run, Scripted, counter, scripted, settle

pytestmark = pytest.mark.anyio


async def test_ask_to_oneself_names_the_actor() -> None:
    async def ask_self(actor: Scripted, message: object) -> Next:
        with pytest.raises(Deadlock, match="/scripted -> /scripted"):
            await actor.context.self_ref.ask(Run(), timeout_s=math.inf)
        return reply("told at once")

    async with ActorSystem() as system:
        ref = await system.start(scripted(ask_self))
        assert await ref.ask(Run(), timeout_s=1) == "told at once"


async def test_circle_of_three_names_the_path() -> None:
    async with ActorSystem() as system:
        refs: dict[str, ActorRef[object]] = {}
        following = {"a": "b", "b": "c", "c": "a"}

        def asker(name: str) -> ChildSpec:
            async def ask_next(actor: Scripted, message: object) -> Next:
                try:
                    return reply(await refs[following[name]].ask(Run(), timeout_s=math.inf))
                except Deadlock as error:
                    return reply(str(error))

            return scripted(ask_next, name)

        for name in following:
            refs[name] = await system.start(asker(name))
        answer = await refs["a"].ask(Run(), timeout_s=1)
        assert "'/c -> /a -> /b -> /c'" in str(answer)
        assert all(not actor.waiting_on for actor in system.tree().walk())


async def test_two_independent_chains_that_block_each_other_are_found() -> None:
    """A check of the call chain alone misses this; the wait-for graph does not."""
    outcomes: list[object] = []
    async with ActorSystem() as system, anyio.create_task_group() as group:
        refs: dict[str, ActorRef[object]] = {}
        other = {"a": "b", "b": "a"}

        def asker(name: str) -> ChildSpec:
            async def ask_other(actor: Scripted, message: object) -> Next:
                if message == "nested":
                    return carry_on()
                await anyio.sleep(1)
                try:
                    await refs[other[name]].ask(Run(), timeout_s=math.inf)
                except Deadlock as error:
                    return reply(error)
                return reply("went through")

            return scripted(ask_other, name)

        for name in other:
            refs[name] = await system.start(asker(name))

        async def begin(name: str) -> None:
            outcomes.append(await refs[name].ask(Run(), timeout_s=60))

        group.start_soon(begin, "a")
        group.start_soon(begin, "b")
    assert sum(isinstance(outcome, Deadlock) for outcome in outcomes) >= 1


async def test_ask_from_a_job_draws_no_edge() -> None:
    """The mailbox goes on meanwhile, so the ask can be answered."""
    answers: list[object] = []

    async def handle(actor: Scripted, message: object) -> Next:
        if message == "begin":

            async def ask_self() -> None:
                answers.append(await actor.context.self_ref.ask(Run(), timeout_s=1))

            actor.context.job(ask_self)
            return carry_on()
        return reply("answered")

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        ref.tell("begin")
        await settle()
    assert answers == ["answered"]


async def test_deferred_ask_is_no_deadlock() -> None:
    """From then on the receiver's mailbox is free, and somebody else may answer."""
    async with ActorSystem() as system:

        async def defer_and_ask_back(actor: Scripted, message: object) -> Next:
            slot = actor.context.defer()
            try:
                await asker.ask(Run(), timeout_s=0.5)
            except AskTimeout:
                slot.reply("timed out, was not accused")
            return carry_on()

        async def ask(actor: Scripted, message: object) -> Next:
            return reply(await receiver.ask(Run(), timeout_s=5))

        receiver = await system.start(scripted(defer_and_ask_back, "receiver"))
        asker = await system.start(scripted(ask, "asker"))
        assert await asker.ask(Run(), timeout_s=5) == "timed out, was not accused"


async def test_waiting_is_shown_in_the_tree_and_over_afterwards() -> None:
    async with ActorSystem() as system, anyio.create_task_group() as group:
        slow = await system.start(counter("slow"))

        async def ask_slow(actor: Scripted, message: object) -> Next:
            async with anyio.create_task_group() as asks:
                for _ in range(2):
                    asks.start_soon(lambda: slow.ask(Nap(seconds=1), timeout_s=5))
            return reply(None)

        ref = await system.start(scripted(ask_slow))
        group.start_soon(lambda: ref.ask(Run(), timeout_s=5))
        await settle()
        waiting = {actor.path: actor.waiting_on for actor in system.tree().walk()}
        assert waiting["/scripted"] == ("/slow", "/slow")
        await anyio.sleep(3)
        assert all(not actor.waiting_on for actor in system.tree().walk())


async def test_start_child_draws_an_edge_to_the_child() -> None:
    """A child that asks its parent while that waits for the start would wait for the start's deadline."""

    class Asking(Scripted):
        async def on_start(self) -> None:
            await parent.ask(Run(), timeout_s=math.inf)

    errors: list[BaseException | None] = []

    async def start_child(actor: Scripted, message: object) -> Next:
        try:
            await actor.context.start_child(ChildSpec(name="child", factory=lambda: Asking(start_child)))
        except StartFailed as error:
            errors.append(error.__cause__)
        return reply(None)

    async with ActorSystem() as system:
        parent = await system.start(scripted(start_child, "parent"))
        await parent.ask(Run(), timeout_s=1)
    assert isinstance(errors[0], Deadlock)


def test_circles_are_found_on_any_graph() -> None:
    nodes = {name: Waits(name) for name in "abcdef"}
    for before, after in ("ab", "bc", "cd", "ce", "db"):
        nodes[before].wait_for(nodes[after])
    assert [node.path for node in find_circle(nodes["e"], nodes["a"]) or []] == ["a", "b", "c", "e"]
    assert find_circle(nodes["f"], nodes["a"]) is None
    assert find_circle(nodes["a"], nodes["a"]) == [nodes["a"]]
