"""Sessions of the Strands Agents SDK in which the model once said nothing, which that SDK stores as no content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, ScriptedModel
from tests.app.sessions.bucket_in_folder import SessionInFolder

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WHEN = "2026-11-21T06:03:59.807405+00:00"
ABOUT: dict[str, Any] = {
    "agent_id": "default",
    "state": {},
    "conversation_manager_state": {"__name__": "SlidingWindowConversationManager", "removed_message_count": 0},
    "_internal_state": {},
    "created_at": WHEN,
    "updated_at": WHEN,
}


def write_session(folder: Path, *messages: dict[str, Any]) -> Path:
    agent = folder / "session_s" / "agents" / "agent_default"
    (agent / "messages").mkdir(parents=True)
    about = {"session_id": "s", "session_type": "AGENT", "created_at": WHEN, "updated_at": WHEN}
    (folder / "session_s" / "session.json").write_text(json.dumps(about))
    (agent / "agent.json").write_text(json.dumps(ABOUT))
    for number, message in enumerate(messages):
        fields = {"message": message, "message_id": number, "redact_message": None, "created_at": WHEN}
        (agent / "messages" / f"message_{number}.json").write_text(json.dumps({**fields, "updated_at": WHEN}))
    return agent / "messages"


@pytest.mark.parametrize("empty", [1, 3])
async def test_an_answer_without_content_is_an_empty_one_and_the_session_goes_on(empty: int, tmp_path: Path) -> None:
    user, silent = {"role": "user", "content": [{"text": "Hi"}]}, {"role": "assistant", "content": []}
    answers = [{"role": "assistant", "content": [{"text": "Hello."}]}, silent]
    first, second = answers if empty == 3 else reversed(answers)
    write_session(tmp_path, user, first, user, second)
    for reply in ("Again.", "And again."):
        model = ScriptedModel([reply])
        manager = SessionInFolder("s", tmp_path)
        async with Agent(model, session_manager=manager, callback_handler=None) as agent:
            assert str(await agent.invoke_async("Are you there?")) == reply
        assert model.calls[0].messages[empty]["content"] == [{"text": ""}]


async def test_it_may_be_given_to_an_agent_too() -> None:
    messages: Any = [{"role": "user", "content": [{"text": "Hi"}]}, {"role": "assistant", "content": []}]
    agent = Agent(ScriptedModel(["Hello."]), messages=messages, callback_handler=None)
    assert str(await agent.invoke_async("Hello?")) == "Hello."
