"""A process that dies while it commits to the documented layout."""

from __future__ import annotations

import contextlib

import pytest

from repertory import Agent, ScriptedModel
from repertory.backends.sessions.message_tree_journal import TreeSettings
from repertory.core.messages import Message, text_of
from repertory.errors import RepertoryError
from tests.app.tree_sessions import TreeSessions

pytestmark = pytest.mark.anyio


async def test_a_commit_that_is_cut_off_is_not_there_afterwards() -> None:
    history: list[Message] = [
        {"role": "assistant" if number % 2 else "user", "content": [{"text": f"m{number}"}]} for number in range(6)
    ]
    begun: set[int] = set()
    for dies_at in range(3, 14):
        place = TreeSessions(settings=TreeSettings())
        place.dies_at = dies_at
        with contextlib.suppress(RepertoryError):
            async with Agent(
                ScriptedModel(["a"]), messages=history, callback_handler=None, session_manager=place
            ) as it:
                await it.invoke_async("more")
        begun.add(sum("messages/" in key for key in place.shelf.objects))
        place.dies_at = None
        async with Agent(
            ScriptedModel(["b"]), messages=history, callback_handler=None, session_manager=place.after_death()
        ) as it:
            await it.invoke_async("again")
            texts = [text_of(one) for one in it.messages]
        assert texts[:6] == ["m0", "m1", "m2", "m3", "m4", "m5"]
        assert texts[-2:] == ["again", "b"]
    assert len(begun) > 5
