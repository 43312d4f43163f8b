"""The Strands Agents SDK with its file session manager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import SESSION, Subject, Tool, main
from strands import Agent, tool
from strands.models import Model
from strands.session.file_session_manager import FileSessionManager


class Instant(Model):
    def update_config(self, **config: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {}

    async def structured_output(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError
        yield

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


class Strands(Subject):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        run = Tool(folder)

        @tool
        async def note(text: str) -> str:
            """Note a text."""
            return await run(text)

        self._tools = [note]
        self._agent: Any = None

    def _opened(self) -> Any:
        if self._agent is None:
            manager = FileSessionManager(session_id=SESSION, storage_dir=str(self.folder / "sessions"))
            self._agent = Agent(
                model=Instant(),
                tools=self._tools,
                session_manager=manager,
                callback_handler=None,
                conversation_manager=_everything(),
            )
        return self._agent

    async def turn(self, prompt: str) -> None:
        await self._opened().invoke_async(prompt)

    async def resume(self) -> None:
        await self.turn((self.folder / "asked").read_text().split()[-1])

    async def prompts(self) -> list[str]:
        said = [message for message in self._opened().messages if message["role"] == "user"]
        return [block["text"] for message in said for block in message["content"] if "text" in block]


def _everything() -> Any:
    """No window, so that what is stored is what is counted."""
    from strands.agent.conversation_manager import NullConversationManager

    return NullConversationManager()


if __name__ == "__main__":
    main(Strands)
