"""The documented samples on sessions, verbatim but for their imports and folders: Bedrock, files and a bucket.

The services are peers on loopback, aimock and moto, which the standard AWS environment names. The samples are sync.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from repertory import Agent, FileSessionManager, Graph, S3SessionManager, Swarm
from repertory.core.messages import text_of
from tests.backends.models.aimock_server import aimock
from tests.backends.objects.moto_s3 import moto_s3

pytestmark = pytest.mark.real_time

FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "Do you remember"}, "response": {"content": "You said hello."}},
    {"match": {"userMessage": "Can you elaborate"}, "response": {"content": "It stores objects."}},
    {"match": {"userMessage": "Tell me about"}, "response": {"content": "It is a service."}},
    {"match": {"userMessage": "Research and write"}, "response": {"content": "AI is a field."}},
    {"match": {"userMessage": "Coordinate the task"}, "response": {"content": "Done by one."}},
    {"match": {"userMessage": "ello"}, "response": {"content": "Hi there!"}},
]
BUCKET = "my-agent-sessions"


@pytest.fixture(scope="module")
def model_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aimock(FIXTURES, tmp_path_factory.mktemp("aimock")) as url:
        yield url


@pytest.fixture(scope="module")
def bucket_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.fixture
def home(model_url: str, aws_keys: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    aws_keys.setenv("REPERTORY_HOME", str(tmp_path))
    aws_keys.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", model_url)
    return tmp_path


@pytest.fixture
def bucket(home: Path, bucket_url: str, aws_keys: pytest.MonkeyPatch) -> Any:
    aws_keys.setenv("AWS_ENDPOINT_URL_S3", bucket_url)
    there = boto3.resource("s3", region_name="us-west-2").Bucket(BUCKET)
    there.create(CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield there
    there.objects.delete()
    there.delete()


def said(agent: Agent) -> list[str]:
    return [text_of(message) for message in agent.messages]


def test_a_conversation_is_kept_in_a_folder(home: Path) -> None:
    session_manager = FileSessionManager(session_id="test-session")
    agent = Agent(session_manager=session_manager)
    agent("Hello!")  # This conversation is persisted

    kept = home / "sessions/session_test-session"
    assert (kept / "session.json").is_file()
    messages = kept / "agents/agent_default/messages"
    assert sorted(path.name for path in messages.iterdir()) == ["message_0.json", "message_1.json"]


def test_a_new_agent_with_the_same_manager_continues_in_a_folder(home: Path) -> None:
    session_manager = FileSessionManager(session_id="user-123", storage_dir=home / "path/to/sessions")
    agent = Agent(session_manager=session_manager)
    agent("Hello, I'm a new user!")

    new_agent = Agent(session_manager=session_manager)
    new_agent("Do you remember what I said earlier?")

    assert said(new_agent) == [
        "Hello, I'm a new user!",
        "Hi there!",
        "Do you remember what I said earlier?",
        "You said hello.",
    ]
    assert (home / "path/to/sessions/session_user-123/agents/agent_default/messages/message_3.json").is_file()


def test_a_new_agent_with_the_same_manager_continues_in_a_bucket(bucket: Any) -> None:
    session_manager = S3SessionManager(
        session_id="user-456", bucket="my-agent-sessions", prefix="production/", region_name="us-west-2"
    )
    agent = Agent(session_manager=session_manager)
    agent("Tell me about AWS S3")

    new_agent = Agent(session_manager=session_manager)
    new_agent("Can you elaborate on what you told me about S3?")

    assert said(new_agent) == [
        "Tell me about AWS S3",
        "It is a service.",
        "Can you elaborate on what you told me about S3?",
        "It stores objects.",
    ]
    keys = {entry.key for entry in bucket.objects.all()}
    assert "production/session_user-456/session.json" in keys
    assert "production/session_user-456/agents/agent_default/messages/message_3.json" in keys


def test_a_bucket_is_reached_with_a_session_of_boto3(bucket: Any) -> None:
    boto_session = boto3.Session(region_name="us-west-2")
    session_manager = S3SessionManager(
        session_id="user-456",
        bucket="my-agent-sessions",
        prefix="production/",
        boto_session=boto_session,
        region_name="us-west-2",
    )
    agent = Agent(session_manager=session_manager)
    agent("Tell me about AWS S3")

    assert any(entry.key.startswith("production/session_user-456/agents/") for entry in bucket.objects.all())


def test_a_graph_is_kept_in_a_folder(home: Path) -> None:
    agent1 = Agent(name="researcher")
    agent2 = Agent(name="writer")
    session_manager = FileSessionManager(session_id="multi-agent-session")
    graph = Graph(agents={"researcher": agent1, "writer": agent2}, session_manager=session_manager)
    result = graph("Research and write about AI")

    assert str(result) == "researcher: AI is a field.\nwriter: AI is a field."
    kept = home / "sessions/session_multi-agent-session/multi_agents/multi_agent_default_graph/multi_agent.json"
    assert json.loads(kept.read_text())["completed_nodes"] == ["researcher", "writer"]


def test_an_agent_and_a_graph_have_managers_of_their_own(home: Path) -> None:
    session_manager = FileSessionManager(session_id="user-123", storage_dir=home / "path/to/sessions")
    agent = Agent(session_manager=session_manager)
    agent("Hello, I'm a new user!")
    agent1, agent2 = Agent(), Agent()

    multi_session_manager = FileSessionManager(session_id="orchestrator-456", storage_dir=home / "path/to/sessions")
    graph = Graph(agents={"agent1": agent1, "agent2": agent2}, session_manager=multi_session_manager)
    graph("Research and write about AI")

    assert (home / "path/to/sessions/session_orchestrator-456/multi_agents/multi_agent_default_graph").is_dir()


def test_a_swarm_uses_the_manager_of_an_agent_in_a_bucket(bucket: Any) -> None:
    session_manager = S3SessionManager(
        session_id="user-456", bucket="my-agent-sessions", prefix="production/", region_name="us-west-2"
    )
    agent = Agent(session_manager=session_manager)
    agent("Tell me about AWS S3")
    agent1, agent2, agent3 = Agent(name="one"), Agent(name="two"), Agent(name="three")

    swarm = Swarm(agents=[agent1, agent2, agent3], session_manager=session_manager)
    result = swarm("Coordinate the task across agents")

    assert str(result) == "one: Done by one."
    keys = [item.key for item in bucket.objects.all()]
    assert "production/session_user-456/multi_agents/multi_agent_default_swarm/multi_agent.json" in keys
