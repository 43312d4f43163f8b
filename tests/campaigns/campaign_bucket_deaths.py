"""Processes that die among their requests to a bucket of documents, in turns with and without a tool, on virtual time.

Each request that is under way then has an effect or has none. In the end each prompt and each acknowledged answer is
there once, in an order that models take, and the tree says what the journal says.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from repertory import Agent, AgentResult, AgentSpec, Runtime, ScriptedModel, StorePatience, tool
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import ObjectStore, SessionStore, give_up
from repertory.backends.sessions import table
from repertory.backends.sessions.liveness import TimeToLive
from repertory.backends.tools.function_tool import schema_class
from repertory.core.journal.restore import restore
from repertory.core.messages import Message, check_next, text_of, tool_results
from repertory.errors import RepertoryError
from repertory.runtime.testing.virtual_time import virtual_asyncio
from repertory.testing.wrapped_stores import WrappedObjectStore
from tests.app.sessions.tree_sessions import Died
from tests.backends.sessions.bucket_places import bucket_store
from tests.campaigns.campaigns import Report

T = TypeVar("T")
MESSAGES = "session_s/agents/agent_default/messages/message_"
CALLS, DEATHS_MAX = 4, 12
PATIENCE = StorePatience(wait_s=30.0, busy_s=60.0)


class _Dying(WrappedObjectStore):
    """The bucket for a process that dies at a moment. Requests take a while."""

    def __init__(self, store: ObjectStore, rng: random.Random, dies_at: float) -> None:
        super().__init__(store)
        self._rng, self._dies_at = rng, dies_at

    async def _call(self, name: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        del name
        now, takes_s, arrives = anyio.current_time(), self._rng.uniform(0.05, 0.5), self._rng.random() < 0.5
        await anyio.sleep(max(min(takes_s, self._dies_at - now), 0.0))
        if now + takes_s < self._dies_at:
            return await call()
        if now < self._dies_at and arrives:
            with suppress(RepertoryError):
                await call()
        raise Died("the process has died", key=key)


class _Place:
    """The bucket as a process sees it, and the session in it."""

    session_id, takeover = "s", False

    def __init__(self, world: World, dies_at: float) -> None:
        self._world, self._dies_at = world, dies_at
        world.processes += 1
        self.key = f"process-{world.processes}"

    @property
    def sessions(self) -> _Place:
        return self

    def open_store(self) -> SessionStore:
        objects = _Dying(MemoryObjectStore(self._world.shelf), self._world.rng, self._dies_at)
        life, wall = TimeToLive(anyio.current_time, 10.0), anyio.current_time
        return bucket_store(objects, self.key, life=life, wall=wall, entropy=self._world.rng.randbytes)


class World:
    """A conversation that several processes carry on, one after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shelf = ObjectShelf(anyio.current_time)
        self.processes = self.asked = 0
        self.held, self.model_s = self.rng.random() < 0.5, self.rng.choice((0.0, 0.0, 1.5))
        self.prompts = [f"{self.rng.choice(('pay', 'pay', 'say'))} {number}." for number in range(CALLS)]
        self.answers: dict[str, str] = {}
        """What was acknowledged, by prompt."""

    async def run(self) -> None:
        while len(self.answers) < CALLS:
            alive_s = 1e6 if self.processes > DEATHS_MAX else self.rng.uniform(0.5, 6.0)
            dies_at = anyio.current_time() + alive_s
            try:
                await self._process(_Place(self, dies_at), dies_at)
            except* RepertoryError:
                assert alive_s < 1e6
            await anyio.sleep(self.rng.choice((0.1, 30.0)))
        await anyio.sleep(30.0)
        await self._judge()

    async def _process(self, place: _Place, dies_at: float) -> None:
        @tool
        def pay() -> str:
            """Pay."""
            return "paid"

        def answer(messages: Sequence[Message], *rest: object) -> Any:
            del rest
            self.asked += 1
            if text_of(messages[-1]).startswith("pay") and not any(tool_results(messages[-1])):
                return {"toolUse": {"name": "pay", "input": {}}}
            return f"answer {self.asked}"

        model: Any = ScriptedModel([answer], loop=True, delay_s=self.model_s)
        if self.held:
            spec = AgentSpec(model=model, tools=[pay], unknown_tool_outcome="retry")
            async with Runtime(sessions=place, patience=PATIENCE) as runtime:
                session = runtime.agent(spec).session("s")
                await self._talk(session.invoke, dies_at)
        else:
            manager: Any = place
            options: Any = {"unknown_tool_outcome": "retry", "patience": PATIENCE, "callback_handler": None}
            agent = Agent(model, tools=[pay], session_manager=manager, **options)
            await self._talk(agent.invoke_async, dies_at)

    async def _talk(self, call: Callable[..., Awaitable[AgentResult]], dies_at: float) -> None:
        for prompt in self.prompts[len(self.answers) :]:
            result = await call(prompt, idempotency_token=prompt)
            if anyio.current_time() >= dies_at:
                return  # Nobody has heard it.
            assert result.stop_reason == "end_turn", result.stop_reason
            self.answers[prompt] = str(result).strip()

    async def _judge(self) -> None:
        store = _Place(self, 1e9).open_store()
        lease, _ = await store.acquire("s")
        shown = [message for _, message in restore(await store.load("s", "default", whole=True)).fold.shown]
        await give_up(store, lease)
        keys = [key for key in self.shelf.objects if key.startswith(MESSAGES)]
        found = {int(key.removeprefix(MESSAGES)[:-5]): self.shelf.objects[key].body for key in keys}
        assert sorted(found) == list(range(len(found))), sorted(found)
        documents = [json.loads(found[number])["message"] for number in range(len(found))]
        previous = None
        for message in documents:
            check_next(previous, message)
            previous = message
        texts = [text_of(message).strip() for message in documents]
        assert texts == [text_of(message).strip() for message in shown], texts
        for prompt, answer in self.answers.items():
            assert texts.count(prompt) == texts.count(answer) == 1, (prompt, answer, texts)
            assert texts.index(prompt) < texts.index(answer), (prompt, answer, texts)


def bucket_deaths(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Conversations of processes that die."""
    del folder
    schema_class()  # Otherwise the first agent loads it in a thread, which a clock that jumps passes.
    report, end = Report(), time.monotonic() + seconds
    backend, options = virtual_asyncio()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "ON_LOOP_BYTES_MAX", 1 << 40)  # The same.
        while not report.acknowledged or time.monotonic() < end:
            seed = rng.randrange(2**31)

            async def one(seed: int = seed) -> None:
                world = World(seed)
                with anyio.fail_after(1e6):
                    await world.run()
                report.acknowledged += len(world.answers)
                report.counts["deaths"] += world.processes - 1

            try:
                anyio.run(one, backend=backend, backend_options={**options})
            except* (AssertionError, TimeoutError, RepertoryError) as errors:
                report.check(False, f"world {seed}: {errors.exceptions[0]!r}"[:1000])
            report.counts["worlds"] += 1
    report.found = 0 if report.faults else report.acknowledged
    return report
