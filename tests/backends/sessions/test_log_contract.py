"""Sessions as logs in a folder keep the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from repertory.backends.sessions.log.store import LogSessionStore
from repertory.testing.session_contract import SessionStoreContract
from tests.backends.sessions.log_places import log_store


@pytest.mark.real_time
class TestSessionsAsLogs(SessionStoreContract):
    def open_store(self, place: Path, owner: str) -> LogSessionStore:
        return log_store(place / "home" / "sessions", owner)
