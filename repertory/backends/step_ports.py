"""The part of a running tool's context by which its work has durable steps, and the port behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import anyio.from_thread

from repertory.core.steps import NO_INNER_TOOLS, NO_STEPS, StepCall, step_call
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Json, ToolResult
    from repertory.core.steps import StepRetry

T = TypeVar("T")


class ToolStepsPort(Protocol):
    """The steps of one call, as the runtime carries them out."""

    compensations: list[StepCall]

    async def run(self, call: StepCall) -> Json:
        """See `HasSteps.step`."""
        ...

    def run_from_thread(self, call: StepCall) -> Json:
        """See `HasSteps.run_step`."""
        ...

    def report(self, text: str) -> None:
        """See `HasSteps.report`."""
        ...


class InnerToolsPort(Protocol):
    """The calls that one call of a tool makes of the agent's other tools, as the runtime carries them out.

    Each is a tool call like one of the model: hooks, approvals, middleware, attempts. It is a durable step of the tool
    that makes it, so after a kill a call that had ended gives its recorded result. The caller must ask for the same
    calls as before; calls with the same name and input, in the same order.
    """

    @property
    def repeats(self) -> bool:
        """True while an earlier run of the tool has calls or steps on record that this one has not asked for yet."""
        ...

    def ask(self, name: str, value: Mapping[str, Json]) -> Any:
        """A call of this tool with this input, at its place among the calls. Errors: `StepsChanged`, `Invalid`."""
        ...

    async def run(self, asked: Any) -> ToolResult:
        """The result of a call that was asked for; a failure is a result. Calls may run beside each other.

        Raises `InterruptException` if a person must be asked: raise it out of the tool when the calls beside have
        ended; once answered, the tool runs again. Cancellation leaves the outcome unknown. Errors: `StepsChanged`, and
        those of guards and of the store; the tool must end then.
        """
        ...

    async def cut_short(self, why: str) -> None:
        """Tell the hooks of calls that were cancelled while they ran. For a tool that goes on, or ends, behind them."""
        ...


class HasSteps:
    """The part of a running tool's context by which its work has durable steps."""

    __slots__ = ()
    find_steps: Callable[[Any], ToolStepsPort] | None
    """Gives the steps of this call; None where no agent has called the tool."""
    on_partial: Callable[[object], Awaitable[None]] | None
    """Sends a piece of the result to the stream of the turn; None when nothing streams the turn."""
    find_inner: Callable[[Any], InnerToolsPort] | None
    """Gives the calls of other tools by this call; None where no agent has called the tool."""

    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> T: ...
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> Any:
        """Run a part of the tool's work once, its result on record: `await tool_context.step("charge", charge, 5)`.

        If the process is killed and the tool runs again, a step that had ended gives its recorded result, or raises its
        recorded failure, without running. A step that had begun and whose end nobody knows is asked about, as a tool
        is: a person answers `"retry"`, `"fail"` or `{"result": ...}`. With `idempotent` it runs again unasked. A
        function is called when the start of its step is stored, and the ends of the steps before it. The end of a step
        is stored in the background.

        Asynchronous functions run in the caller's task, others in a worker thread. A function with a parameter
        `step_context` gets a `StepContext` there. Cancellation cancels an asynchronous function, leaves a thread to
        itself, and makes the outcome unknown.

        Args:
            name: The step's name, for records and for people. Names may repeat; they are numbered in the order of the
                calls. Steps that run beside each other under one name are told apart by their arguments.
            function: The function, synchronous or not.
            *args: Its arguments. Bind named ones with `functools.partial`.
            retry: The number of attempts, or a `StepRetry`; None for one.
            timeout_s: Seconds one attempt may take.
            idempotent: True if running the function again with the same key has the effect of one run.

        Returns:
            What the function returned, as JSON keeps it (a tuple becomes a list); bytes stay bytes.

        Raises:
            StepFailed: If the function failed for good, now or before a kill, or a person says so. Its cause is the
                function's exception if it was raised in this life. Handle it, or let it pass: the tool then fails.
            StepsChanged: If the tool asks for other steps than before it was cut off. Let it pass.
            Invalid: For bad arguments, a step within a step, more than 1,000 steps, and outside a running tool.
            Unavailable: If the store does not take the step's start; the function was not called then.
        """
        return await self._steps().run(step_call(name, function, args, retry, timeout_s, idempotent))

    @overload
    def run_step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> T: ...
    @overload
    def run_step(
        self,
        name: str,
        function: Callable[..., T],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> T: ...
    def run_step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> Any:
        """`step` for synchronous tools: blocks the tool's thread until the step has ended.

        Args:
            name: The step's name.
            function: The function, synchronous or not; not called in the tool's thread.
            *args: Its arguments.
            retry: The number of attempts, or a `StepRetry`; None for one.
            timeout_s: Seconds one attempt may take.
            idempotent: True if running the function again with the same key has the effect of one run.

        Raises:
            StepFailed: If the function failed for good, as of `step`.
            StepsChanged: If the tool asks for other steps than before, as of `step`.
            Invalid: As of `step`; also on the event loop, where `await tool_context.step(...)` is meant.
            Unavailable: If the store does not take the step's start.
        """
        return self._steps().run_from_thread(step_call(name, function, args, retry, timeout_s, idempotent))

    async def report(self, text: str) -> None:
        """Say how far the tool has got: `await tool_context.report("found 12 of 40")`.

        The report is a record of the journal until the tool has its result. The stream of the turn shows it at once, as
        `tool_stream_event` with the data `{"report": text}`; streams of agents above this one show it as well. The
        status of the turn lists it, and so does the inspector. A tool that runs again after a kill may report the same
        again; it is recorded once. Beyond 256 reports of a call, further ones are only shown.

        Args:
            text: The report: 1 to 1,000 characters.

        Raises:
            Invalid: For anything but such a text, and outside a running tool. Correct the argument.
        """
        self._steps().report(text)
        if self.on_partial is not None:
            await self.on_partial({"report": text})

    def run_report(self, text: str) -> None:
        """`report` for synchronous tools, in the tool's thread.

        Args:
            text: The report: 1 to 1,000 characters.

        Raises:
            Invalid: As of `report`; also on the event loop, where `await tool_context.report(...)` is meant.
        """
        try:
            anyio.from_thread.run(self.report, text)
        except RuntimeError as error:
            text = "run_report is for the thread of a synchronous tool; elsewhere, await tool_context.report(...)"
            raise Invalid(text) from error

    def on_failure(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        retry: int | StepRetry | None = None,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> None:
        """Undo a step if the tool does not succeed: `tool_context.on_failure("refund", refund, charge_id)`.

        If the tool raises or returns an error for good, times out, or its turn is cancelled, its compensations run as
        steps, the last one first. One that fails does not keep the others from running. What was undone, and what could
        not be, stands in the tool's result, in the log and on the inspector's page. A turn that is cut off by a kill or
        a shutdown undoes nothing: it goes on. If a compensation's end is unknown after a kill, a person is asked.

        Register it after the step that it undoes, or before it where a step of unknown outcome must be undone too. A
        tool without `durable=True` that is cut off by a kill undoes nothing unless it is run again.

        Args:
            name: The compensation's name.
            function: The function, synchronous or not.
            *args: Its arguments.
            retry: The number of attempts, or a `StepRetry`; None for one.
            timeout_s: Seconds one attempt may take.
            idempotent: True if it may run again after a kill unasked.

        Raises:
            Invalid: For bad arguments, and outside a running tool.
        """
        self._steps().compensations.append(step_call(name, function, args, retry, timeout_s, idempotent))

    @property
    def inner_tools(self) -> InnerToolsPort:
        """The calls of the agent's other tools that this call makes. Errors: `Invalid` outside of a running tool."""
        if self.find_inner is None:
            raise Invalid(NO_INNER_TOOLS)
        return self.find_inner(self)

    def _steps(self) -> ToolStepsPort:
        if self.find_steps is None:
            raise Invalid(NO_STEPS)
        return self.find_steps(self)
