"""The work that a model is asked for: of which session, and in the background or not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    ContextWindowOverflowException,
    ExtractionConfig,
    InvocationTrigger,
    MemoryManager,
    ModelExtractor,
    Runtime,
    ScriptedModel,
    SQLiteQueue,
    SQLiteSessions,
    SummarizingConversationManager,
    TurnJob,
    Worker,
    background_work,
)
from repertory.actors.call import Work, work_here
from repertory.core.converse import StreamEvent
from repertory.core.messages import Message, ToolSpec, text_of
from tests.app.memory.toy_memories import Facts
from tests.quotas.metered_model import MeteredModel

pytestmark = pytest.mark.anyio


class WatchingModel(MeteredModel):
    """Notes the work that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.works: dict[str, Work] = {}
        """The work by the first word of the last text."""
        self.timer_was_due = anyio.Event()
        self.too_long = False
        """True if the next request is too long."""

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        word = text_of(messages[-1]).partition(" ")[0]
        self.works[word] = work_here()
        if word == "timer":
            self.timer_was_due.set()
        if self.too_long:
            self.too_long = False
            raise ContextWindowOverflowException("too long")
        asked: list[Message] = [{"role": "user", "content": [{"text": "9"}]}]
        async for event in super().stream(asked, tool_specs, system_prompt, **options):
            yield event


async def test_a_turn_is_interactive_unless_its_caller_says_otherwise() -> None:
    model = WatchingModel()
    async with Runtime() as runtime:
        session = runtime.agent(AgentSpec(name="a", model=model)).session("acme~s")
        await session.invoke("hello")
        with background_work():
            await session.invoke("sort")
    assert model.works == {"hello": Work("acme~s"), "sort": Work("acme~s", background=True)}


@pytest.mark.real_time
async def test_timers_and_jobs_are_work_in_the_background(tmp_path: Path) -> None:
    model = WatchingModel()
    async with (
        Runtime(sessions=SQLiteSessions(tmp_path / "agents.db")) as runtime,
        SQLiteQueue(tmp_path / "jobs.db") as queue,
    ):
        session = runtime.agent(AgentSpec(name="a", model=model)).session("acme~s")
        await runtime.schedule(session, "timer", in_s=0.05)
        await queue.send(TurnJob("a", "acme~j", "job", token="t"))
        await Worker(runtime, queue).run(until_empty=True)
        with anyio.fail_after(20):
            await model.timer_was_due.wait()
    assert model.works == {"timer": Work("acme~s", background=True), "job": Work("acme~j", background=True)}


async def test_summaries_are_work_in_the_background_of_their_session() -> None:
    model = WatchingModel()
    manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=1)
    agent = Agent(model, conversation_manager=manager, callback_handler=None)
    prompts = ("one", "two", "three")
    for prompt in prompts:
        model.too_long = prompt == "three"
        await agent.invoke_async(prompt)
    (summary,) = (work for word, work in model.works.items() if word not in prompts)
    assert summary.background
    assert not model.works["three"].background


async def test_extraction_is_work_in_the_background_of_its_session() -> None:
    class Reader(ScriptedModel):
        def __init__(self) -> None:
            super().__init__([lambda *asked: works.append(work_here()) or "[]"])  # type: ignore[func-returns-value]

    works: list[Work] = []
    store = Facts(extraction=ExtractionConfig(trigger=InvocationTrigger(), extractor=ModelExtractor(Reader())))
    manager = MemoryManager(stores=[store], injection=False, search_tool_config=False)
    async with Runtime() as runtime:
        spec = AgentSpec(name="a", model=WatchingModel(), memory_manager=manager)
        await runtime.agent(spec).session("acme~s").invoke("hello")
    assert works == [Work("acme~s", background=True)]
