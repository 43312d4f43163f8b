"""LangGraph with its SQLite checkpointer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import SESSION, Subject, Tool, main
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

CONFIG = {"configurable": {"thread_id": SESSION}, "recursion_limit": 50}


class Instant(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, tools: Any, **options: Any) -> Instant:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            answer = AIMessage("done")
        else:
            use = {"name": "note", "args": {"text": last.content}, "id": f"use-{len(messages)}"}
            answer = AIMessage("", tool_calls=[use])
        return ChatResult(generations=[ChatGeneration(message=answer)])


class LangGraph(Subject):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._saver: Any = None
        self._agent: Any = None

    async def _open(self) -> Any:
        if self._agent is None:
            self._saver = AsyncSqliteSaver.from_conn_string(str(self.folder / "checkpoints.db"))
            run = Tool(self.folder)

            async def note(text: str) -> str:
                """Note a text."""
                return await run(text)

            self._agent = create_agent(Instant(), tools=[note], checkpointer=await self._saver.__aenter__())
        return self._agent

    async def turn(self, prompt: str) -> None:
        agent = await self._open()
        await agent.ainvoke({"messages": [{"role": "user", "content": prompt}]}, CONFIG)

    async def resume(self) -> None:
        agent = await self._open()
        await agent.ainvoke(None, CONFIG)

    async def prompts(self) -> list[str]:
        state = await (await self._open()).aget_state(CONFIG)
        return [m.content for m in state.values.get("messages", []) if isinstance(m, HumanMessage)]

    async def close(self) -> None:
        await self._saver.__aexit__(None, None, None)


if __name__ == "__main__":
    main(LangGraph)
