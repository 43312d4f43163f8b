"""The OpenAI Agents SDK with its SQLite session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled
from common import SESSION, Subject, Tool, main
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

set_tracing_disabled(True)


class Instant(Model):
    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        last = input[-1]
        if last.get("type") == "function_call_output":
            text = ResponseOutputText(text="done", type="output_text", annotations=[])
            answer: Any = ResponseOutputMessage(
                id="answer", role="assistant", status="completed", type="message", content=[text]
            )
        else:
            arguments = json.dumps({"text": str(last.get("content"))})
            answer = ResponseFunctionToolCall(
                call_id=f"use-{len(input)}", name="note", arguments=arguments, type="function_call"
            )
        return ModelResponse(output=[answer], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


class OpenAIAgents(Subject):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._session = SQLiteSession(SESSION, str(folder / "sessions.db"))
        run = Tool(folder)

        @function_tool
        async def note(text: str) -> str:
            """Note a text."""
            return await run(text)

        self._agent = Agent(name="clerk", model=Instant(), tools=[note])

    async def turn(self, prompt: str) -> None:
        await Runner.run(self._agent, prompt, session=self._session)

    async def resume(self) -> None:
        await self.turn((self.folder / "asked").read_text().split()[-1])

    async def prompts(self) -> list[str]:
        items = await self._session.get_items()
        return [str(item["content"]) for item in items if item.get("role") == "user"]


if __name__ == "__main__":
    main(OpenAIAgents)
