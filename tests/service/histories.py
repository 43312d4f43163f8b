"""What is stored of a conversation, read and checked by somebody who comes afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.core.messages import Message, check_next, text_of


async def read_histories(database: Path, agent: str, sessions: Sequence[str]) -> list[list[str]]:
    """The texts of these sessions, oldest first. Each is checked to be a history that a model can be shown."""
    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        reader = runtime.agent(AgentSpec(name=agent, model=ScriptedModel([])))
        found = [await reader.session(session).history() for session in sessions]
    for history in found:
        check_history(history)
    return [[text_of(message) for message in history] for history in found]


def check_history(history: Sequence[Message]) -> None:
    """Raise unless a model can be shown this: what it uses has a result, and so on."""
    previous = None
    for message in history:
        check_next(previous, message)
        previous = message
