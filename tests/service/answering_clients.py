"""A bank that asks people, and clients of its protocols that send their requests again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import httpx

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, ToolContext, tool
from repertory.asgi import asgi_app
from tests.service.protocol_servers import LIMITS

Door = Literal["chat", "responses", "a2a", "ag-ui"]
Sign = Literal["key", "mark"]


def pays(amount: int) -> Any:
    return {"toolUse": {"name": "pay", "input": {"amount": amount}}}


class Bank:
    """Processes of one service, one after the other, and what was paid."""

    def __init__(self, folder: Path, *replies: Any, name: str = "a") -> None:
        self.place, self.model, self.paid = (
            SQLiteSessions(folder / f"{name}.db"),
            ScriptedModel([*replies]),
            list[int](),
        )

        @tool
        async def pay(amount: int, tool_context: ToolContext) -> str:
            """Pay, if a person says yes twice to much."""
            if tool_context.interrupt(f"Pay {amount}?") != "yes":
                return "refused"
            if amount > 100 and tool_context.interrupt("Really?") != "yes":
                return "refused"
            self.paid.append(amount)
            return "paid"

        self._pay = pay

    def process(self) -> tuple[Runtime, Any]:
        runtime = Runtime(sessions=self.place)
        runtime.agent(AgentSpec(name="helper", model=self.model, tools=[self._pay], retry_strategy=None))
        return runtime, asgi_app(runtime, limits=LIMITS)


class Client:
    """A client of one protocol. It names what it says, and may send it again under the same name."""

    def __init__(self, door: Door = "chat", sign: Sign = "key") -> None:
        self.app: Any = None
        self._door: Door = door
        self._sign = sign
        self._asked: Any = None
        """The task or the question that waits."""
        self._sent: dict[str, tuple[str, Any]] = {}

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body, headers=headers)

    async def say(self, text: str, name: str, *, again: bool = False) -> httpx.Response:
        """A prompt, or `yes` to what was asked last. `again`: what was sent under this name."""
        path, body = self._sent[name] if again else self._request(text, name)
        self._sent[name] = path, body
        marks = {"x-stainless-retry-count": "1"} if again else {}
        answer = await self.post(path, body, {"idempotency-key": name} if self._sign == "key" else marks)
        for line in answer.text.splitlines() if self._door in ("a2a", "ag-ui") and not again else ():
            match json.loads(line.removeprefix("data: ") or "{}"):
                case {"result": {"id": asked}} | {"outcome": {"interrupts": [{"id": asked}, *_]}}:
                    self._asked = asked
                case _:
                    pass
        return answer

    def _request(self, text: str, name: str) -> tuple[str, Any]:
        match self._door:
            case "chat":
                messages = [{"role": "user", "content": text}]
                return "/v1/chat/completions", {"model": "helper", "messages": messages, "conversation": "s"}
            case "responses":
                return "/v1/responses", {"model": "helper", "input": text, "conversation": "s"}
            case "a2a":
                message: Any = {"messageId": name, "role": "user", "contextId": "s"}
                message["parts"] = [{"kind": "text", "text": text}]
                message |= {"taskId": self._asked} if text == "yes" else {}
                return "/a2a/helper", {
                    "jsonrpc": "2.0",
                    "id": 1,
                    "method": "message/send",
                    "params": {"message": message},
                }
            case "ag-ui":
                run: Any = {
                    "threadId": "s",
                    "runId": name,
                    "state": {},
                    "tools": [],
                    "context": [],
                    "forwardedProps": {},
                }
                run["messages"] = [{"id": name, "role": "user", "content": text}] if text != "yes" else []
                resume = [{"interruptId": self._asked, "status": "resolved", "payload": "yes"}]
                return "/ag-ui/helper", run | ({"resume": resume} if text == "yes" else {})
