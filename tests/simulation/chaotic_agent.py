"""An agent to which anything may happen: its model, its tools and its hooks do what a seeded generator says.

While `chaos.on`, each of them may answer well or badly, wait, hang, raise, cancel, or leave rubbish behind. Switched
off, all of them behave, so that whatever the agent is left with can be looked at by an ordinary call.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import BaseModel

from repertory import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    AfterToolsEvent,
    Agent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    BeforeToolsEvent,
    HookEvent,
    HookRegistry,
    MessageAddedEvent,
    Model,
    ToolContext,
    tool,
)
from repertory.errors import ContextWindowOverflowException, ModelFailed, Throttled, Unavailable

KINDS: list[type[HookEvent]] = [
    BeforeInvocationEvent,
    AfterInvocationEvent,
    MessageAddedEvent,
    BeforeModelCallEvent,
    AfterModelCallEvent,
    BeforeToolsEvent,
    AfterToolsEvent,
    BeforeToolCallEvent,
    AfterToolCallEvent,
]
RUBBISH: list[Any] = [None, 5, "text", [], {}, [5], {"role": "nobody"}, object()]


class Report(BaseModel):
    """A report."""

    title: str
    score: int


@dataclass
class Chaos:
    """The generator, and how long everything takes."""

    rng: random.Random
    unit_s: float
    """About how long a step takes."""
    on: bool = True
    asked: int = 0
    log: list[str] = field(default_factory=list[str])

    def chance(self, share: float) -> bool:
        return self.on and self.rng.random() < share

    async def wait(self) -> None:
        if self.on:
            await anyio.sleep(self.rng.choice([0, 0, 1, 3]) * self.unit_s)


class ChaoticModel(Model):
    """Answers with text, tool uses or a form, breaks off, is cut off, takes back what was said, or fails."""

    def __init__(self, chaos: Chaos) -> None:
        self._chaos = chaos

    async def stream(
        self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any
    ) -> AsyncIterator[dict[str, Any]]:
        chaos, rng = self._chaos, self._chaos.rng
        chaos.asked += 1
        await chaos.wait()
        if chaos.chance(0.2):
            raise rng.choice(
                [
                    Throttled("slow", retry_after_s=chaos.unit_s),
                    Unavailable("gone"),
                    ModelFailed("nonsense"),
                    ContextWindowOverflowException("too long"),
                    RuntimeError("a bug"),
                ]
            )
        yield {"messageStart": {"role": "assistant"}}
        index = 0
        if not chaos.chance(0.3):
            yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "ok"}}}
            yield {"contentBlockStop": {"contentBlockIndex": 0}}
            index = 1
        await chaos.wait()
        if chaos.chance(0.1):
            return
        uses = self._uses(tool_specs)
        for use_index, (name, given) in enumerate(uses, index):
            use = {"toolUseId": f"t{chaos.asked}-{use_index}", "name": name}
            yield {"contentBlockStart": {"contentBlockIndex": use_index, "start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"contentBlockIndex": use_index, "delta": {"toolUse": {"input": given}}}}
            yield {"contentBlockStop": {"contentBlockIndex": use_index}}
        reason = "max_tokens" if chaos.chance(0.05) else "tool_use" if uses else "end_turn"
        yield {"messageStop": {"stopReason": reason}}
        yield {"metadata": {"usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}}}
        if chaos.chance(0.1):
            chaos.log.append("redacted")
            which = rng.choice(["redactUserContentMessage", "redactAssistantContentMessage"])
            yield {"redactContent": {which: "taken back"}}

    def _uses(self, tool_specs: Any) -> list[tuple[str, str]]:
        chaos, rng = self._chaos, self._chaos.rng
        names = [spec["name"] for spec in tool_specs or ()]
        if not names or not chaos.chance(0.6):
            return []
        chosen = [rng.choice([*names, "nobody_has_it"]) for _ in range(rng.randint(1, 3))]
        return [(name, self._input(name)) for name in chosen]

    def _input(self, name: str) -> str:
        good = '{"title": "t", "score": 1}' if name == "Report" else "{}"
        return self._chaos.rng.choice([good, good, good, '{"score": "x"}', '{"tit'])


def tools_of(chaos: Chaos) -> list[Any]:
    """Tools that end well, slowly, badly or never, one that ends the turn, and one that asks a person."""

    @tool
    async def work() -> str:
        """Work."""
        await chaos.wait()
        if chaos.chance(0.2):
            raise ConnectionError("gone")
        return "worked"

    @tool(effects=False)
    async def look(agent: Agent) -> dict[str, int]:
        """Look."""
        agent.state.set("looked", chaos.asked)
        return {"asked": chaos.asked}

    @tool(timeout_s=chaos.unit_s * 5)
    async def hang() -> AsyncIterator[str]:
        """Hang."""
        yield "a piece"
        if chaos.chance(0.5):
            await anyio.sleep_forever()
        yield "the end"

    @tool
    async def stop(agent: Agent) -> str:
        """Stop the turn."""
        if chaos.chance(0.5):
            agent.cancel(chaos.rng.choice([None, "stopped"]), after_current_tools=chaos.chance(0.5))
        return "stopping"

    @tool(effects=chaos.rng.random() < 0.5)
    async def ask(tool_context: ToolContext) -> str:
        """Ask a person, perhaps twice."""
        if chaos.chance(0.7):
            tool_context.interrupt("one", expires_s=chaos.rng.choice([None, 1e-9, 3600]))
        await chaos.wait()
        return f"told {tool_context.interrupt('two')}" if chaos.chance(0.5) else "not asked"

    return [work, look, hang, stop, ask]


class ChaoticHooks:
    """One callback per event, some guards and some observers, that may do anything that a callback can."""

    def __init__(self, chaos: Chaos) -> None:
        self._chaos = chaos

    def register_hooks(self, registry: HookRegistry) -> None:
        for kind in KINDS:
            for _ in range(self._chaos.rng.randint(0, 2)):
                guard = self._chaos.rng.choice([None, True, False])
                registry.add_callback(kind, self._callback, guard=guard)

    async def _callback(self, event: Any) -> None:
        chaos, rng = self._chaos, self._chaos.rng
        if not chaos.chance(0.15):
            return
        chaos.log.append(type(event).__name__)
        match rng.randint(0, 5):
            case 0:
                raise rng.choice([RuntimeError("a bug"), Throttled("no")])
            case 1:
                await chaos.wait()
            case 2:
                event.agent.cancel(after_current_tools=chaos.chance(0.3))
            case 3:
                event.agent.state.set("hook", type(event).__name__)
            case 4 if event.writable:
                setattr(event, rng.choice(sorted(event.writable)), rng.choice(RUBBISH))
            case _:
                self._steer(event)

    def _steer(self, event: Any) -> None:
        """Change what happens next, as the event allows it."""
        chaos = self._chaos
        match event:
            case AfterInvocationEvent():
                event.resume = "and then?"
            case AfterModelCallEvent() | AfterToolCallEvent():
                event.retry = True
            case AfterToolsEvent():
                event.end_turn = "enough"
            case BeforeToolCallEvent() | BeforeToolsEvent() if chaos.chance(0.6):
                event.interrupt(chaos.rng.choice("ab"), reason=chaos.rng.choice([None, 1]))
            case BeforeToolCallEvent():
                event.cancel_tool = True
            case MessageAddedEvent():
                event.message["content"].append({"text": "edited"})
            case _:
                event.cancel = "no"
