"""Being told of another actor's end."""

from __future__ import annotations

import anyio
import pytest

from repertory.runtime.lifecycle import ExitReason, Shutdown
from repertory.runtime.message import Next, carry_on, reply
from repertory.runtime.ref import ActorRef, Down
from repertory.runtime.spec import ChildSpec, Restart
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Add, Crash, Run, Scripted, counter, settle

pytestmark = pytest.mark.anyio


class Watcher(Scripted):
    """Watches every ref that it is told; notes the ends."""

    def __init__(self, downs: list[tuple[str, ExitReason]]) -> None:
        super().__init__(self._watch)
        self._downs = downs

    async def _watch(self, actor: Scripted, message: object) -> Next:
        match message:
            case ActorRef():
                self.context.watch(message)
                self.context.watch(message)
            case ("unwatch", ActorRef() as ref):
                self.context.unwatch(ref)
            case Run():
                return reply(None)
            case _:
                raise ValueError("as ordered")
        return carry_on()

    async def on_down(self, down: Down) -> Next:
        self._downs.append((down.ref.path, down.reason))
        return carry_on()


def watcher(downs: list[tuple[str, ExitReason]]) -> ChildSpec:
    return ChildSpec(name="watcher", factory=lambda: Watcher(downs))


async def test_end_is_announced_once() -> None:
    downs: list[tuple[str, ExitReason]] = []
    async with ActorSystem() as system:
        watching = await system.start(watcher(downs))
        ref = await system.start(counter())
        watching.tell(ref)
        await settle()
        await system.stop(ref, "over")
        await settle()
        assert downs == [("/counter", Shutdown("over"))]


async def test_end_that_was_is_announced_at_once() -> None:
    downs: list[tuple[str, ExitReason]] = []
    async with ActorSystem() as system:
        watching = await system.start(watcher(downs))
        ref = await system.start(counter())
        await system.stop(ref)
        watching.tell(ref)
        await settle()
        assert [path for path, _ in downs] == ["/counter", "/counter"]


async def test_restart_is_no_end_but_a_temporary_childs_failure_is() -> None:
    downs: list[tuple[str, ExitReason]] = []
    async with ActorSystem() as system:
        watching = await system.start(watcher(downs))
        lasting = await system.start(counter("lasting"))
        brief = await system.start(counter("brief", restart=Restart.TEMPORARY))
        for ref in (lasting, brief):
            watching.tell(ref)
        await settle()
        for ref in (lasting, brief):
            ref.tell(Crash())
        assert await lasting.ask(Add(), timeout_s=5) == 1
        assert [path for path, _ in downs] == ["/brief"]


async def test_unwatched_end_is_not_announced() -> None:
    downs: list[tuple[str, ExitReason]] = []
    async with ActorSystem() as system:
        watching = await system.start(watcher(downs))
        ref = await system.start(counter())
        watching.tell(ref)
        watching.tell(("unwatch", ref))
        await watching.ask(Run(), timeout_s=1)
        await system.stop(ref)
        await settle()
    assert downs == []


async def test_restarted_watcher_watches_nobody_and_is_not_retained() -> None:
    downs: list[tuple[str, ExitReason]] = []
    async with ActorSystem() as system:
        watching = await system.start(watcher(downs))
        ref = await system.start(counter())
        watching.tell(ref)
        watching.tell("crash")
        await anyio.sleep(1)
        await system.stop(ref)
        await watching.ask(Run(), timeout_s=1)
        assert not ref.watchers
    assert downs == []


async def test_who_watches_restarts_too_hears_of_each_incarnation_and_of_the_end() -> None:
    heard: list[bool] = []

    class OfRestarts(Scripted):
        async def on_down(self, down: Down) -> Next:
            heard.append(down.comes_back)
            return carry_on()

    async def watch(actor: Scripted, message: object) -> Next:
        assert isinstance(message, ActorRef)
        actor.context.watch(message, restarts=True)
        return carry_on()

    async with ActorSystem() as system:
        watching = await system.start(ChildSpec(name="watcher", factory=lambda: OfRestarts(watch)))
        ref = await system.start(counter())
        watching.tell(ref)
        await settle()
        ref.tell(Crash())
        await anyio.sleep(60)
        system.kill(ref)
        await anyio.sleep(60)
        await system.stop(ref)
        await settle()
        assert heard == [True, True, False]
