"""The `Agent` of the SDK's programs: the list that it is given, its memory manager, and the text of its results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repertory import MemoryManager, ScriptedModel, SlidingWindowConversationManager
from repertory.compat.memory_stores import TestMemoryStore
from repertory.compat.programs import SdkAgent, sdk_text
from repertory.core.interrupts import Interrupt
from repertory.core.messages import Message
from repertory.core.result import AgentResult

OLD: list[Message] = [
    {"role": "user", "content": [{"text": "First."}]},
    {"role": "assistant", "content": [{"text": "One."}]},
]


def agent(messages: list[Message] | None = None, **options: Any) -> SdkAgent:
    return SdkAgent(ScriptedModel(["Two."], loop=True), messages, callback_handler=None, **options)


def test_the_list_that_an_agent_is_given_shows_the_conversation() -> None:
    given = list(OLD)
    own = agent(given)
    assert given == OLD
    own("Second.")
    assert given == own.messages
    assert len(given) == 4
    del own.messages[:2]
    assert given == own.messages
    assert len(given) == 2


@pytest.mark.anyio
async def test_the_list_follows_streams_and_conversation_managers_too() -> None:
    given = list(OLD)
    own = agent(given, conversation_manager=SlidingWindowConversationManager(window_size=2))
    async for _ in own.stream_async("Second."):
        pass
    assert [message["role"] for message in given] == ["user", "assistant"]
    assert given == own.messages
    SlidingWindowConversationManager(window_size=1).apply_management(own)
    assert given == own.messages


STORE: Any = TestMemoryStore


class Counting(MemoryManager):
    flushes = 0

    async def flush(self) -> Any:
        self.flushes += 1
        return await super().flush()


def test_a_memory_manager_with_a_flush_of_its_own_is_flushed_when_an_agent_ends(tmp_path: Path) -> None:
    manager = Counting([STORE(name="notes", path=str(tmp_path / "notes.json"))])
    with agent(memory_manager=manager) as own:
        own("Hi.")
        assert manager.flushes == 0
    assert manager.flushes == 1
    own.shutdown()
    assert manager.flushes == 2


def test_each_text_of_a_result_ends_with_a_line_break_and_questions_are_dictionaries() -> None:
    message: Message = {"role": "assistant", "content": [{"text": "a"}, {"text": "b"}]}
    assert sdk_text(AgentResult("end_turn", message)) == "a\nb\n"
    asked = AgentResult("interrupt", None, interrupts=[Interrupt(id="i1", name="pay", reason="Pay?")])
    assert sdk_text(asked) == "[{'id': 'i1', 'name': 'pay', 'reason': 'Pay?', 'response': None}]"
    assert str(asked) != sdk_text(asked)


@pytest.mark.real_time
def test_a_program_that_runs_as_it_is_reads_such_a_text(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import repertory.strands.install\nfrom strands import Agent\nfrom repertory import ScriptedModel\n"
        'print([str(Agent(ScriptedModel(["Two."]), callback_handler=None)("Hi."))])\n'
    )
    said = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert said.stdout == "['Two.\\n']\n"
