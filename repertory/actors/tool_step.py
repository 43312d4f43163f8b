"""Running the tools of one step: as child tasks of the turn, at once unless told otherwise, each with its own timeout.

Every tool use gets exactly one result, whatever happens: an unknown name, an input that is not JSON, a raise, a
timeout and a cancellation are results with status `error`. A tool with effects starts only when its intent is
durable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from repertory.actors.ledger import Ledger
from repertory.actors.registry import ToolRegistry
from repertory.backends.ports import Tool, ToolContext
from repertory.core.journal.records import ToolFinished, ToolStarted
from repertory.core.messages import ToolResult, ToolUse, error_result
from repertory.core.tool_results import exception_text, timeout_text
from repertory.core.turn import RunTools, ToolsEnded

ContextFor = Callable[[ToolUse, int], ToolContext]
"""The context of one tool use; the number is the attempt, from 1."""

PublishResult = Callable[[ToolUse, ToolResult | None], Awaitable[None]]
"""Told when a tool starts (no result yet) and when it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStepSettings:
    """How tools run."""

    sequential: bool = False
    at_once_max: int = 16
    """Tools that run at the same time at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One tool use that is going to run."""

    use: ToolUse
    tool: Tool
    context: ToolContext


class ToolStep:
    """Runs one step's tools. Made for one step, used once."""

    def __init__(
        self,
        tools: ToolRegistry,
        ledger: Ledger,
        settings: ToolStepSettings,
        context_for: ContextFor,
        publish: PublishResult | None,
    ) -> None:
        self._tools = tools
        self._ledger = ledger
        self._settings = settings
        self._context_for = context_for
        self._publish = publish
        self._results: dict[str, ToolResult] = {}
        self._running = 0
        self.ran: dict[str, int] = {}
        """Tool name to how often it ran."""

    async def run(self, command: RunTools, attempts: Mapping[str, int], scope: anyio.CancelScope) -> ToolsEnded:
        """One result per use, in the order asked. Cancelling `scope` cuts what runs short; nothing else is lost.

        `attempts`: how often each tool use was started before. Errors: those of the commit of an intent.
        """
        self._results.update(command.known)
        with scope:
            calls = self._plan(command, attempts)
            await self._record_intents(calls)
            await self._run_all(calls)
        missing = [use for use in command.uses if use["toolUseId"] not in self._results]
        for use in missing:
            self._results[use["toolUseId"]] = error_result(use["toolUseId"], "Cancelled before it ended.")
        results = tuple(self._results[use["toolUseId"]] for use in command.uses)
        return ToolsEnded(results=results, cancelled=scope.cancelled_caught)

    def _plan(self, command: RunTools, attempts: Mapping[str, int]) -> list[_Call]:
        """What has to run; uses that cannot run get their error result here."""
        calls: list[_Call] = []
        for use in command.uses:
            use_id = use["toolUseId"]
            if use_id in self._results:
                continue
            tool = self._tools.get(use["name"])
            if tool is None:
                known = ", ".join(self._tools.names) or "none"
                self._results[use_id] = error_result(use_id, f"Unknown tool: {use['name']}. Available tools: {known}.")
            elif use_id in command.invalid:
                text = f"The input is not valid JSON: {command.invalid[use_id][:200]}"
                self._results[use_id] = error_result(use_id, text)
            else:
                context = self._context_for(use, attempts.get(use_id, 0) + 1)
                calls.append(_Call(use=use, tool=tool, context=context))
        return calls

    async def _record_intents(self, calls: Sequence[_Call]) -> None:
        intended = [call for call in calls if call.tool.effects]
        for call in intended:
            started = ToolStarted(
                at=self._ledger.wall(),
                tool_use_id=call.use["toolUseId"],
                name=call.tool.name,
                idempotency_key=call.context.idempotency_key,
                attempt=call.context.attempt,
            )
            self._ledger.add(started)
        if intended:
            await self._ledger.commit()

    async def _run_all(self, calls: Sequence[_Call]) -> None:
        self._running = len(calls)
        if self._settings.sequential or len(calls) == 1:
            for call in calls:
                await self._run_one(call)
            return
        limiter = anyio.CapacityLimiter(self._settings.at_once_max)
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(self._run_limited, call, limiter)

    async def _run_limited(self, call: _Call, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            await self._run_one(call)

    async def _run_one(self, call: _Call) -> None:
        if self._publish is not None:
            await self._publish(call.use, None)
        self.ran[call.tool.name] = self.ran.get(call.tool.name, 0) + 1
        result = await _bounded(call)
        self._results[call.use["toolUseId"]] = result
        self._running -= 1
        if call.tool.effects and self._running:
            # The step's message, which holds every result, comes only when the slowest tool has ended.
            finished = ToolFinished(at=self._ledger.wall(), tool_use_id=call.use["toolUseId"], result=result)
            self._ledger.add(finished)
            self._ledger.hand_over(soon=True)
        if self._publish is not None:
            await self._publish(call.use, result)


async def _bounded(call: _Call) -> ToolResult:
    """The tool's result, or the error result that says that it ran out of time."""
    if call.tool.timeout_s is None:
        return await _guarded(call)
    with anyio.move_on_after(call.tool.timeout_s):
        return await _guarded(call)
    text = timeout_text(call.tool.name, call.tool.timeout_s, effects=call.tool.effects)
    return error_result(call.use["toolUseId"], text)


async def _guarded(call: _Call) -> ToolResult:
    try:
        return await call.tool.run(call.use, call.context)
    except Exception as error:  # noqa: BLE001 - A tool may be anybody's code, and its failure is for the model to act on.
        return error_result(call.use["toolUseId"], exception_text(error))
