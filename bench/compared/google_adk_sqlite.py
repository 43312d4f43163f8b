"""Google's Agent Development Kit with its database session service on SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import SESSION, Subject, Tool, main
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.genai import types

PLACE = {"app_name": "compared", "user_id": "somebody", "session_id": SESSION}


class Instant(BaseLlm):
    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            part = types.Part(text="done")
        else:
            part = types.Part(function_call=types.FunctionCall(name="note", args={"text": last.text or ""}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class AgentDevelopmentKit(Subject):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._service = DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/sessions.db")
        run = Tool(folder)

        async def note(text: str) -> str:
            """Note a text."""
            return await run(text)

        agent = LlmAgent(name="clerk", model=Instant(model="instant"), tools=[note])
        self._runner = Runner(app_name=PLACE["app_name"], agent=agent, session_service=self._service)
        self._made = False

    async def turn(self, prompt: str) -> None:
        if not self._made and await self._service.get_session(**PLACE) is None:
            await self._service.create_session(**PLACE)
        self._made = True
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        where = {name: PLACE[name] for name in ("user_id", "session_id")}
        async for _ in self._runner.run_async(**where, new_message=message):
            pass

    async def resume(self) -> None:
        await self.turn((self.folder / "asked").read_text().split()[-1])

    async def prompts(self) -> list[str]:
        session = await self._service.get_session(**PLACE)
        events = session.events if session is not None else []
        return [event.content.parts[0].text for event in events if event.author == "user"]


if __name__ == "__main__":
    main(AgentDevelopmentKit)
