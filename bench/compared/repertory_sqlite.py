"""Repertory with its SQLite session manager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import SESSION, Subject, Tool, main

from repertory import Agent, Model, NullConversationManager, SQLiteSessionManager, tool


class Instant(Model):
    def update_config(self, **config: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {}

    async def stream(self, messages: Any, *args: Any, **options: Any) -> Any:
        last = messages[-1]["content"][-1]
        yield {"messageStart": {"role": "assistant"}}
        if "toolResult" in last:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
        else:
            use = {"name": "note", "toolUseId": f"use-{len(messages)}"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": f'{{"text": "{last["text"]}"}}'}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if "toolResult" in last else "tool_use"}}


class Repertory(Subject):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        run = Tool(folder)

        @tool
        async def note(text: str) -> str:
            """Note a text."""
            return await run(text)

        self._tools = [note]
        self._agent: Any = None

    def session(self) -> Any:
        """The session manager under comparison."""
        return SQLiteSessionManager(SESSION, path=self.folder / "sessions.db")

    def _opened(self) -> Agent:
        if self._agent is None:
            self._agent = Agent(
                Instant(),
                tools=self._tools,
                session_manager=self.session(),
                callback_handler=None,
                conversation_manager=NullConversationManager(),
            )
        return self._agent

    async def turn(self, prompt: str) -> None:
        result = await self._opened().invoke_async(prompt)
        while result.stop_reason == "interrupt":  # a turn that a kill has left: somebody says what became of its tool
            answers = [{"interruptResponse": {"interruptId": i.id, "response": "fail"}} for i in result.interrupts]
            await self._opened().invoke_async(answers)
            result = await self._opened().invoke_async(prompt)

    async def resume(self) -> None:
        result = await self._opened().invoke_async()
        if result.stop_reason == "interrupt":
            (self.folder / "interrupted").touch()

    async def prompts(self) -> list[str]:
        agent = self._opened()
        await agent.ready()
        said = [message for message in agent.messages if message["role"] == "user"]
        return [block["text"] for message in said for block in message["content"] if "text" in block]

    async def close(self) -> None:
        await self._opened().shutdown_async()


if __name__ == "__main__":
    main(Repertory)
