"""AgentCore Memory keeps the contract of session stores: on virtual time, and over its protocol."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.loop_clients import LoopClients
from repertory.backends.ports import SessionStore
from repertory.backends.sessions.agentcore.events import AgentCoreEvents
from repertory.backends.sessions.agentcore.ownership import AgentCoreSettings
from repertory.backends.sessions.agentcore.store import AgentCoreSessionStore
from repertory.testing.session_contract import SessionStoreContract
from tests.backends.sessions.agentcore_memory import MEMORY, DirectEvents, FakeMemory
from tests.backends.sessions.agentcore_server import MemoryServer, agentcore_server

SETTINGS = AgentCoreSettings(prove_s=0.0)


class TestAgentCoreWithoutNetwork(SessionStoreContract):
    settings = SETTINGS

    @pytest.fixture(autouse=True)
    def memories(self) -> None:
        self._memories: dict[Path, FakeMemory] = {}

    def open_store(self, place: Path, owner: str) -> SessionStore:
        events = DirectEvents(self._memories.setdefault(place, FakeMemory()))
        return AgentCoreSessionStore(events, owner=owner, wall=time.time, entropy=os.urandom, settings=self.settings)


class TestAgentCoreInSmallEvents(TestAgentCoreWithoutNetwork):
    """Commits of several events are whole as well."""

    settings = AgentCoreSettings(prove_s=0.0, event_bytes_max=1)


@pytest.fixture(scope="module")
def agentcore() -> Iterator[MemoryServer]:
    with agentcore_server() as server:
        yield server


@pytest.mark.real_time
class TestAgentCoreOverItsProtocol(SessionStoreContract):
    """On trio alone, since every store makes a client; the requests are tested on both loops by themselves."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture(autouse=True)
    def service(self, agentcore: MemoryServer, aws_keys: pytest.MonkeyPatch) -> None:
        self._aws = AwsSettings(endpoint_url=agentcore.url)
        self._clients: LoopClients | None = None

    def open_store(self, place: Path, owner: str) -> SessionStore:
        actor = f"place-{hashlib.sha256(str(place).encode()).hexdigest()[:16]}"
        events = AgentCoreEvents(MEMORY, actor, writer=owner, aws=self._aws)
        self._clients = events._clients = self._clients or events._clients  # Making one takes longer than a test.
        return AgentCoreSessionStore(events, owner=owner, wall=time.time, entropy=os.urandom, settings=SETTINGS)
