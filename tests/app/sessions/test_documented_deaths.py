"""A process that dies while it commits to the documented layout."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import pytest

from repertory import Agent, ScriptedModel, StorePatience, tool
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Condition, ObjectInfo, ObjectStore, SessionStore, StoredObject, ToolContext
from repertory.backends.sessions.journal.format import unpack
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.messages import Message, text_of, tool_results
from repertory.core.turns.turn_start import NOT_RUN_TEXT
from repertory.errors import RepertoryError
from tests.app.sessions.tree_sessions import TreeSessions
from tests.backends.sessions.bucket_places import bucket_store

T = TypeVar("T")
_processes = itertools.count()

pytestmark = pytest.mark.anyio


async def test_a_commit_that_is_cut_off_is_not_there_afterwards() -> None:
    history: list[Message] = [
        {"role": "assistant" if number % 2 else "user", "content": [{"text": f"m{number}"}]} for number in range(6)
    ]
    begun: set[int] = set()
    for dies_at in range(3, 14):
        place = TreeSessions()
        place.dies_at = dies_at
        with contextlib.suppress(RepertoryError):
            async with Agent(
                ScriptedModel(["a"]), messages=history, callback_handler=None, session_manager=place
            ) as it:
                await it.invoke_async("more")
        begun.add(sum("messages/" in key for key in place.shelf.objects))
        place.dies_at = None
        async with Agent(
            ScriptedModel(["b"]), messages=history, callback_handler=None, session_manager=place.after_death()
        ) as it:
            await it.invoke_async("again")
            texts = [text_of(one) for one in it.messages]
        assert texts[:6] == ["m0", "m1", "m2", "m3", "m4", "m5"]
        assert texts[-2:] == ["again", "b"]
    assert len(begun) > 5


@dataclass
class Standstill:
    """When a process stands still, at which of its requests, and whether that one is carried out first."""

    at: int
    carried_out: bool
    requests: int = 0
    still: anyio.Event = field(default_factory=anyio.Event)
    goes_on: anyio.Event = field(default_factory=anyio.Event)

    async def around(self, ask: Callable[[], Awaitable[T]]) -> T:
        self.requests += 1
        if self.requests - 1 != self.at:
            return await ask()
        if not self.carried_out:
            await self._stand()
            return await ask()
        try:
            return await ask()
        finally:
            await self._stand()

    async def _stand(self) -> None:
        self.still.set()
        with anyio.CancelScope(shield=True):
            await self.goes_on.wait()


@dataclass
class StandingObjects:
    """Objects whose process is stopped at one of its requests."""

    objects: ObjectStore
    standstill: Standstill

    @property
    def name(self) -> str:
        return self.objects.name

    async def get(self, key: str) -> StoredObject:
        return await self.standstill.around(lambda: self.objects.get(key))

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        return await self.standstill.around(lambda: self.objects.put(key, body, condition))

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        return await self.standstill.around(lambda: self.objects.list(prefix, start_after))

    async def delete(self, key: str) -> None:
        await self.standstill.around(lambda: self.objects.delete(key))

    async def aclose(self) -> None:
        await self.objects.aclose()


@dataclass
class OtherProcess(TreeSessions):
    """The same bucket as another process opens it."""

    standstill: Standstill | None = None
    owner: str = field(default_factory=lambda: f"process-{next(_processes)}")

    @property
    def key(self) -> str:
        return self.owner

    def open_store(self) -> SessionStore:
        objects: ObjectStore = MemoryObjectStore(self.shelf)
        if self.standstill is not None:
            objects = StandingObjects(objects, self.standstill)
        life = TimeToLive(anyio.current_time, 10.0)
        return bucket_store(objects, self.owner, life=life, wall=anyio.current_time)


def owner_of(shelf: ObjectShelf) -> str:
    """Whose session it is, as the bucket says."""
    return str(unpack(shelf.objects["session_s/repertory/head"].body).header.get("owner"))


@pytest.mark.parametrize("carried_out", [True, False], ids=["behind-the-request", "before-the-request"])
@pytest.mark.parametrize("said", ["the same", "something else"])
async def test_no_tool_starts_for_an_owner_that_stood_still_while_another_took_over(
    carried_out: bool, said: str
) -> None:
    """Stopped at each of its requests in turn. Stopped behind the very last look, the tool starts when it goes on:
    then the other one knows that it may have run, and nobody starts it twice.
    """
    stops = 0
    for at in range(40):
        shelf, still = ObjectShelf(anyio.current_time), Standstill(at, carried_out)
        paid: list[tuple[str, str, str]] = []

        def agent_of(place: OtherProcess, paid: list[tuple[str, str, str]], shelf: ObjectShelf) -> Agent:
            @tool
            async def pay(tool_context: ToolContext) -> str:
                """Pay."""
                paid.append((place.owner, owner_of(shelf), tool_context.idempotency_key))
                return "paid"

            def answer(messages: Sequence[Message], *rest: Any) -> Any:
                return "ok" if any(tool_results(messages[-1])) else {"toolUse": {"name": "pay", "input": {}}}

            return Agent(
                ScriptedModel([answer], loop=True),
                tools=[pay],
                callback_handler=None,
                session_manager=place,
                unknown_tool_outcome="fail",
                patience=StorePatience(busy_s=1.0),
            )

        first = OtherProcess(shelf=shelf, standstill=still)
        second = OtherProcess(shelf=shelf, takeover=True)

        async def begin(first: OtherProcess, paid: list[tuple[str, str, str]], shelf: ObjectShelf) -> None:
            with suppress(RepertoryError):
                await agent_of(first, paid, shelf).invoke_async("pay", idempotency_token="t")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin, first, paid, shelf)
            with anyio.move_on_after(60.0):
                await still.still.wait()
            if still.still.is_set():
                stops += 1
                taker = agent_of(second, paid, shelf)
                token = "t" if said == "the same" else None
                with suppress(RepertoryError):
                    await taker.invoke_async("pay" if token else "hello", idempotency_token=token)
            still.goes_on.set()
        fenced = [one for one in paid if one[0] != one[1]]
        assert len(fenced) <= carried_out, (at, paid)
        told = any(NOT_RUN_TEXT.encode() in stored.body for stored in shelf.objects.values())
        assert not (told and any(one[0] == first.owner for one in paid)), (at, paid)
        keys = [key for _, _, key in paid]
        assert len(set(keys)) == len(keys), (at, paid)
        assert said != "the same" or len(paid) <= 1, (at, paid)
        if not still.still.is_set():
            break
    assert stops >= 6
