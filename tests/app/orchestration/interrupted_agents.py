"""Agents whose tools and hooks ask a person, and the person's answers; shared by tests of interrupts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from repertory import (
    Agent,
    AgentResult,
    BeforeToolCallEvent,
    HookRegistry,
    InMemoryStorage,
    Interrupt,
    JournalSessionManager,
    ScriptedModel,
    ToolContext,
    tool,
)
from repertory.core.messages import Message, Prompt, tool_results


class Office:
    """Tools that write down what they do. `pay` asks, `ask_twice` asks twice, `wipe` is asked about, `look` is not."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.keys: list[tuple[str, int]] = []
        self.expires_s: float | None = None
        self.may_answer: Sequence[str] = ()

    @property
    def tools(self) -> list[Any]:
        """The tools."""

        @tool
        async def pay(amount: int, tool_context: ToolContext) -> str:
            """Pay an amount."""
            self.keys.append((tool_context.idempotency_key, tool_context.attempt))
            said = tool_context.interrupt(
                "approve", reason={"amount": amount}, expires_s=self.expires_s, may_answer=self.may_answer
            )
            self.done.append(f"paid {amount}: {said}")
            return f"paid {amount}: {said}"

        @tool(effects=False)
        async def ask_twice(tool_context: ToolContext) -> str:
            """Ask twice."""
            first = tool_context.interrupt("first")
            second = tool_context.interrupt("second", reason=first)
            self.done.append(f"{first} {second}")
            return f"{first} {second}"

        @tool(effects=False)
        async def look() -> str:
            """Look."""
            self.done.append("looked")
            return "seen"

        @tool
        async def post() -> str:
            """Post a letter."""
            self.done.append("posted")
            return "posted"

        @tool
        async def wipe(disk: str) -> str:
            """Wipe a disk."""
            self.done.append(f"wiped {disk}")
            return f"wiped {disk}"

        return [pay, ask_twice, look, post, wipe]

    def register_hooks(self, registry: HookRegistry) -> None:
        """Have a person asked about every disk."""
        registry.add_callback(BeforeToolCallEvent, self.gate)

    def gate(self, event: BeforeToolCallEvent) -> None:
        """Ask before a disk is wiped."""
        if event.tool_use["name"] != "wipe":
            return
        disk = cast("Mapping[str, str]", event.tool_use["input"])["disk"]
        if event.interrupt("wipe", reason=disk, expires_s=self.expires_s) != "yes":
            event.cancel_tool = "not allowed"

    def agent(self, *replies: Any, storage: InMemoryStorage | None = None, **options: Any) -> Agent:
        """An agent with these tools, on a session in memory if there is a storage."""
        manager = None if storage is None else JournalSessionManager("s", storage=storage)
        options = {"tools": self.tools, "hooks": [self], "session_manager": manager, **options}
        return Agent(ScriptedModel(list(replies)), callback_handler=None, **options)


def answering(answers: Mapping[str, Any] | Iterable[Interrupt], response: Any = "yes") -> Prompt:
    """The prompt that answers: interrupt ids to answers, or the same answer to several interrupts."""
    given = answers if isinstance(answers, Mapping) else {one.id: response for one in answers}
    blocks = [{"interruptResponse": {"interruptId": key, "response": value}} for key, value in given.items()]
    return cast("Prompt", blocks)


def names(result: AgentResult) -> list[str]:
    """What a person is asked, in order."""
    return [interrupt.name for interrupt in result.interrupts]


def results(messages: Sequence[Message]) -> list[str]:
    """The text of every tool result, with its status when it is an error."""
    found = [result for message in messages for result in tool_results(message)]
    return [
        ("" if result["status"] == "success" else "error: ") + str(result["content"][0].get("text")) for result in found
    ]
