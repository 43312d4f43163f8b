"""What an agent gives back: results as values, metrics of all calls, prompts as blocks, messages with an id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, AgentResult, FileSessionManager, ScriptedModel
from tests.app.orchestration.recorder import add, use

pytestmark = pytest.mark.anyio


class Tracking(Agent):
    tracks_messages = True


def tracking(*replies: Any, at: Path) -> Tracking:
    session = FileSessionManager("s", storage_dir=str(at))
    return Tracking(ScriptedModel(list(replies)), tools=[add], callback_handler=None, session_manager=session)


@pytest.mark.real_time
async def test_each_new_message_has_an_id_that_it_keeps_through_a_restart(tmp_path: Path) -> None:
    agent = tracking(use("add", a=1, b=2), "three", at=tmp_path)
    result = await agent.invoke_async("go")
    ids = [message.get("tracking_id") for message in agent.messages]
    assert len({*ids, None}) == 5
    assert result.message is not None
    assert result.message.get("tracking_id") == ids[-1]
    await agent.shutdown_async()
    again = tracking("four", at=tmp_path)
    await again.invoke_async("on")
    assert [message.get("tracking_id") for message in again.messages][:4] == ids


async def test_a_model_gets_roles_and_contents_alone() -> None:
    model = ScriptedModel(["one", "two"])
    agent = Agent(model)
    await agent.invoke_async("go")
    await agent.invoke_async("on")
    assert "usage" in agent.messages[1].get("metadata", {})
    assert {key for message in model.calls[1].messages for key in message} == {"role", "content"}


async def test_a_result_is_written_and_read_back_with_its_bytes() -> None:
    agent = Agent(ScriptedModel(["hi"]), callback_handler=None)
    result = await agent.invoke_async([{"text": "look"}, {"image": {"format": "png", "source": {"bytes": b"\0\1"}}}])
    assert AgentResult.from_dict(result.to_dict()).message == result.message
    asked = AgentResult("end_turn", agent.messages[0])
    assert AgentResult.from_dict(asked.to_dict()).message == agent.messages[0]
    with pytest.raises(TypeError, match="not the fields of an agent's result"):
        AgentResult.from_dict({"type": "multiagent_result"})


async def test_an_agent_adds_up_what_its_calls_took() -> None:
    agent = Agent(ScriptedModel([use("add", a=1, b=2), "three", "four"]), tools=[add], callback_handler=None)
    first, second = await agent.invoke_async("go"), await agent.invoke_async("on")
    both = agent.event_loop_metrics
    assert both.cycle_count == 3 == first.metrics.steps + second.metrics.steps
    assert both.tool_metrics["add"].call_count == 1
    assert (
        both.accumulated_usage["totalTokens"]
        == first.metrics.usage["totalTokens"] + second.metrics.usage["totalTokens"]
    )


async def test_the_text_of_a_result_has_citations_and_the_questions_to_a_person() -> None:
    cited = {"citationsContent": {"citations": [], "content": [{"text": "cited"}]}}
    result = AgentResult("end_turn", {"role": "assistant", "content": [{"text": "so"}, cited]})  # type: ignore[list-item]
    assert str(result) == "so\ncited"


def test_a_model_is_anything_that_streams() -> None:
    class Bare:
        async def stream(self, *asked: object, **options: object):  # type: ignore[no-untyped-def]
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockDelta": {"delta": {"text": "bare"}}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    assert str(Agent(Bare(), callback_handler=None)("go")) == "bare"  # type: ignore[arg-type]


def test_system_prompts_are_text_and_blocks() -> None:
    agent = Agent(ScriptedModel([]), system_prompt=[{"text": "a"}, {"cachePoint": {"type": "default"}}, {"text": "b"}])
    assert agent.system_prompt == "a\nb"
    assert agent.system_prompt_content == [{"text": "a"}, {"cachePoint": {"type": "default"}}, {"text": "b"}]
    agent.system_prompt = "c"
    assert agent.system_prompt_content == [{"text": "c"}]
    agent.system_prompt = None
    assert agent.system_prompt_content is None
