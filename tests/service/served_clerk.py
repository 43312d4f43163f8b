"""A model of an assistant that processes of tests serve: it knows from the conversation alone how far it is."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio

from repertory import Model, ScriptedModel
from repertory.core.messages import Message


class Clerk(Model):
    """Writes its prompt into `list.txt`, then says so. It prints the number of its step when it is asked, and never
    answers in the step that `STOPS_AT` names.
    """

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[Any] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncGenerator[Any]:
        step = sum("toolResult" in block for each in messages for block in each["content"])
        print(f"step {step}\n", end="", flush=True)
        if os.environ.get("STOPS_AT") == str(step):
            await anyio.sleep_forever()
        write = {"name": "write_file", "input": {"path": "list.txt", "text": "rye\n"}}
        answer = ScriptedModel(["Written." if step else {"toolUse": write}])
        async for event in answer.stream(messages, tool_specs, system_prompt):
            yield event
