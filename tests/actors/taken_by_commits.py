"""Calls outside any block, of several processes that share one session in a bucket: the first commit of each takes it.

What holds whatever the interleaving: a tool runs, and a piece of an answer is shown, only while the session is owned by
who runs or shows it. All that is shown of a call is its answer. What a call has returned is in the
journal, once, in its order.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import anyio

from repertory import Agent, InMemoryStorage, JournalSessionManager, Model, tool
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import ObjectStore
from repertory.backends.sessions.journal.format import head_in, unpack
from repertory.backends.sessions.liveness import Liveness, TimeToLive
from repertory.backends.tools.function_tool import schema_class
from repertory.core.journal.codec import decode
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import RecordKind
from repertory.core.messages import text_of
from repertory.core.result import AgentResult
from repertory.errors import RepertoryError, SessionBusy
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from tests.backends.sessions.object_places import on_objects, virtual_shelf

schema_class()  # Otherwise the first agent loads it in a thread, which a clock that jumps passes.
SLOW = ObjectFaults(slow_rate=1.0, slow_s=1.0)
SLOW_AND_LOST = ObjectFaults(slow_rate=1.0, slow_s=1.0, lost_rate=0.04, error_rate=0.04)


class Bucket(InMemoryStorage):
    """What one process sees of the bucket."""

    def __init__(self, shelf: ObjectShelf, name: str, rng: random.Random, faults: ObjectFaults) -> None:
        super().__init__()
        self._bucket, self._name, self._rng, self._faults = shelf, name, rng, faults
        self.owner = ""

    @property
    def key(self) -> str:
        return f"bucket of {self._name}"

    def open_objects(self, writer: str) -> ObjectStore:
        del writer
        return _Client(self._name, MemoryObjectStore(self._bucket), self._rng, self._faults)

    def owners(self, owner: str, lease_s: float) -> Liveness:
        self.owner = owner
        return TimeToLive(anyio.current_time, lease_s)


class _Client(FaultyObjectStore):
    """The bucket under a name of its own: one event loop has all of the processes here."""

    def __init__(self, name: str, *given: Any) -> None:
        super().__init__(*given)
        self._name = name

    @property
    def name(self) -> str:
        return self._name


class Voice(Model):
    """Answers in pieces, after a while, and sometimes asks for a tool first. No two of its answers are the same."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name, self.rng, self.asked = name, rng, 0

    async def stream(self, messages: Any, *given: Any, **options: Any) -> AsyncIterator[Any]:
        self.asked += 1
        mark, last = f"<{self.name}.{self.asked}>", messages[-1]["content"][0]
        await anyio.sleep(2 * self.rng.random())
        yield {"messageStart": {"role": "assistant"}}
        if "text" in last and self.rng.random() < 0.4:
            use = {"toolUseId": mark, "name": self.rng.choice(("note", "look_up"))}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": f'{{"text": "{last["text"]}"}}'}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
            return
        for piece in (mark, " is", " the answer"):
            yield {"contentBlockDelta": {"delta": {"text": piece}}}
            await anyio.sleep(self.rng.random() / 2)
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


class World:
    """Processes with a session in common."""

    def __init__(self, seed: int, faults: ObjectFaults, *, calls: int = 4) -> None:
        self.rng, self.faults, self.calls = random.Random(seed), faults, calls
        self.shelf = virtual_shelf()
        self.answers: dict[str, str] = {}
        """Of the calls that have returned, by their prompts."""
        self.tools: list[str] = []
        self.wrong: list[str] = []
        self.failed = self.beside = 0
        """Calls that have failed; those whose model was asked before the session was theirs."""

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(self.rng.choice((2, 2, 3))):
                tasks.start_soon(self._process, f"p{number}")
        await self._judge()
        assert not self.wrong, self.wrong

    async def _process(self, name: str) -> None:
        bucket, voice = Bucket(self.shelf, name, self.rng, self.faults), Voice(name, self.rng)
        prompt, shown = "", list[str]()

        def look() -> None:
            self._check_owner(bucket.owner, prompt)

        @tool
        async def note(text: str) -> str:
            """Note a text."""
            look()
            self.tools.append(text)
            return "noted"

        @tool(effects=False)
        async def look_up(text: str) -> str:
            """Look a text up."""
            look()
            return "seen"

        def show(**event: Any) -> None:
            if "data" in event:
                look()
                shown.append(event["data"])

        manager = JournalSessionManager("s", storage=bucket)
        agent = Agent(voice, tools=[note, look_up], session_manager=manager, callback_handler=show)
        for number in range(self.calls):
            await anyio.sleep(3 * self.rng.random())
            prompt = f"prompt {name} {number}."
            shown.clear()
            cut = 4 * self.rng.random() if self.rng.random() < 0.15 else 200.0
            with anyio.move_on_after(cut):
                try:
                    result = await self._called(agent, prompt)
                except RepertoryError as error:
                    if not (self.faults.lost_rate or isinstance(error, SessionBusy)):  # The others were faster.
                        raise
                    self.failed += 1
                    continue
                if result.stop_reason == "end_turn":
                    self.answers[prompt] = str(result).strip()
                    assert "".join(shown) == self.answers[prompt], (shown, self.answers[prompt])

    async def _called(self, agent: Agent, prompt: str) -> AgentResult:
        if self.rng.random() < 0.5:
            return await agent.invoke_async(prompt)
        async for event in agent.stream_async(prompt):
            if "result" in event:
                result: AgentResult = event["result"]
        return result

    def _check_owner(self, owner: str, prompt: str) -> None:
        """What is shown or run now is shown or run by who owns the session, by what the bucket has."""
        head = head_in(unpack(self.shelf.objects["journals/s/head"].body))
        if head.owner != owner:
            self.wrong.append(f"{prompt} shown by {owner}, owned by {head.owner}")

    async def _judge(self) -> None:
        judge = on_objects(MemoryObjectStore(self.shelf), "judge")
        await judge.acquire("s", takeover=True)
        rows = list(await judge.load("s", "default", whole=True))
        fold = restore(rows).fold
        assert restore(await judge.load("s", "default")).fold.image() == fold.image()
        records = [decode(row.kind, row.version, row.body) for row in rows if row.kind == RecordKind.MESSAGE]
        texts = [text_of(record.message).strip() for record in records if isinstance(record, MessageAdded)]
        for prompt, answer in self.answers.items():
            assert texts.count(prompt) == 1, (prompt, texts)
            assert texts.count(answer) == 1, (answer, texts)
            between = texts[texts.index(prompt) + 1 : texts.index(answer)]
            assert not [text for text in between if text.startswith("prompt")], (prompt, between)
        assert len(self.tools) == len(set(self.tools)) or self.faults.lost_rate
