"""The documented samples on snapshots, as sync programs, and what their reviewers asked for.

The demands are those of the design document of the SDK whose users we serve, and of its review; each test is named
after what its sample shows. Their models are served by aimock, in the place of Bedrock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, ConversationManager, Snapshot, tool
from repertory.core.messages import text_of
from tests.backends.models.aimock_server import aimock
from tests.backends.models.conftest import aws_environment as aws_environment

pytestmark = pytest.mark.real_time


@tool
def tool1() -> str:
    """The first."""
    return "1"


@tool
def tool2() -> str:
    """The second."""
    return "2"


@tool
def tool3() -> str:
    """The third."""
    return "3"


@tool
def tool4() -> str:
    """The fourth."""
    return "4"


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    fixtures = [{"match": {"userMessage": ""}, "response": {"content": "Sunny."}}]
    with aimock(fixtures, tmp_path_factory.mktemp("aimock")) as url:
        yield url


@pytest.fixture(autouse=True)
def service(aws_environment: pytest.MonkeyPatch, peer: str) -> None:
    """Agents without a model ask Bedrock's, which is found as the service itself is."""
    aws_environment.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", peer)


def test_rewind_and_replay() -> None:
    agent = Agent(tools=[tool1, tool2])
    snapshot = agent.save_snapshot()
    result1 = agent("What is the weather?")
    agent2 = Agent(tools=[tool3, tool4])
    agent2.load_snapshot(snapshot)
    result2 = agent2("What is the weather?")
    assert str(result1) == str(result2) == "Sunny."
    assert [text_of(message) for message in agent2.messages] == ["What is the weather?", "Sunny."]
    assert (agent.tool_names, agent2.tool_names) == (["tool1", "tool2"], ["tool3", "tool4"])


class CompactingConversationManager(ConversationManager):
    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        del agent.messages[:-2]

    def reduce_context(self, agent: Any, e: Any = None, **kwargs: Any) -> None:
        del agent.messages[:-1]


def test_advanced_context_management() -> None:
    agent = Agent(conversation_manager=CompactingConversationManager())
    agent("one")
    agent("two")
    snapshot = agent.save_snapshot(metadata={"checkpoint": "before_long_task"})
    later_agent = Agent(conversation_manager=CompactingConversationManager())
    later_agent.load_snapshot(snapshot)
    assert snapshot["metadata"] == {"checkpoint": "before_long_task"}
    assert text_of(later_agent.messages[0]) == "two"


def test_persisting_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = Agent(tools=[tool1, tool2])
    agent("Remember that my favorite color is orange.")
    snapshot = agent.save_snapshot(metadata={"user_id": "123"})
    with open("snapshot.json", "w") as f:
        json.dump(snapshot, f)
    with open("snapshot.json") as f:
        read: Snapshot = json.load(f)
    agent = Agent(tools=[tool1, tool2])
    agent.load_snapshot(read)
    agent("What is my favorite color?")
    said = [text_of(message) for message in agent.messages]
    assert said[::2] == ["Remember that my favorite color is orange.", "What is my favorite color?"]


def test_tools_are_not_restored() -> None:
    agent1 = Agent(tools=[tool1, tool2])
    snapshot = agent1.save_snapshot()
    with pytest.raises(TypeError, match="snapshot="):
        Agent(snapshot)  # type: ignore[arg-type]
    assert Agent(snapshot=snapshot).tool_names == []


def test_a_snapshot_has_the_documented_keys_and_those_that_reviewers_asked_for() -> None:
    snapshot = Agent().save_snapshot()
    assert set(snapshot) == {"type", "state", "metadata", "created_at", "sha256", "schema_version"}
    assert isinstance(snapshot["state"], dict)
    assert snapshot["metadata"] == {}


def test_enabled_tools_are_state() -> None:
    agent = Agent(tools=[tool1, tool2, tool3, tool4], enabled_tools=["tool1"])
    agent.enabled_tools = ["tool1", "tool3"]
    snapshot = agent.save_snapshot()
    agent2 = Agent(tools=[tool3, tool4])
    loaded = agent2.load_snapshot(snapshot)
    assert agent2.enabled_tools == ["tool3"]
    assert loaded.missing_tools == ("tool1",)


def test_an_agent_starts_from_a_snapshot_and_one_value_is_tweaked() -> None:
    agent = Agent(state={"tone": "dry", "lang": "en"})
    agent("hello")
    snapshot = agent.save_snapshot()
    again = Agent(snapshot=snapshot)
    assert again.messages == agent.messages
    tweaked = Agent()
    tweaked.load_snapshot(snapshot, overrides={"state.tone": "warm"})
    assert tweaked.state.get() == {"tone": "warm", "lang": "en"}


def test_an_agent_is_rebuilt_from_its_configuration_and_its_snapshot() -> None:
    config: dict[str, Any] = {"tools": [tool1, tool2], "system_prompt": "Be brief."}
    agent = Agent(**config)
    snapshot = agent.save_snapshot()
    agent("What is the weather?")
    agent = Agent.from_config(config)
    agent.load_snapshot(snapshot)
    assert agent.messages == []
    assert agent.system_prompt == "Be brief."
