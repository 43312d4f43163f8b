"""What programs of the Strands Agents SDK read of an agent, beside what the agent offers itself."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from repertory.app import lazy_names as later
from repertory.errors import StructuredOutputException

if TYPE_CHECKING:
    from threading import Event

    from repertory.actors.call import Busy
    from repertory.actors.context import AgentParts
    from repertory.app.agent.loop_metrics import EventLoopMetrics
    from repertory.app.agent.tools import DirectTools
    from repertory.core.converse import SystemContentBlock
    from repertory.core.messages import Prompt
    from repertory.core.result import AgentResult

T = TypeVar("T")


class ToolCallerType:
    """`Agent.ToolCaller`, whose module is loaded when it is named."""

    def __get__(self, agent: object, owner: type) -> type[DirectTools]:
        return later.DirectTools


class SdkAgentMembers:
    """The members of an agent that follow from its parts and from `invoke_async`."""

    # Those that `Agent` sets, too: as entries of a dict they would weigh a twentieth of an idle session. Others, which
    # programs set on their agents, go into a dict as always.
    __slots__ = (
        "_busy",
        "_calls",
        "_durability",
        "_enabled",
        "_execution",
        "_first_state",
        "_folder",
        "_given_limits",
        "_initial",
        "_initialized",
        "_kept",
        "_late_plugins",
        "_life",
        "_limits",
        "_lock",
        "_memory",
        "_memory_manager",
        "_open_tools",
        "_opened",
        "_opens_late",
        "_own_place",
        "_parts",
        "_patience",
        "_plugins",
        "_read_model",
        "_sandbox",
        "_state",
        "_tools",
        "_unknown",
        "_unsaved_id",
        "agent_id",
        "baggage_attributes",
        "callback_handler",
        "conversation_manager",
        "description",
        "hooks",
        "interventions",
        "load_tools_from_directory",
        "name",
        "record_direct_tool_call",
        "session_manager",
        "storage",
        "structured_output_model",
        "structured_output_prompt",
        "trace_attributes",
    )
    ToolCaller = ToolCallerType()
    """The type of `agent.tool`."""
    _parts: AgentParts
    _busy: Busy

    if TYPE_CHECKING:

        async def invoke_async(self, prompt: Prompt = None, *, structured_output_model: type[Any]) -> AgentResult: ...
        def shutdown(self) -> None: ...
        @property
        def tool(self) -> DirectTools: ...

    def __repr__(self) -> str:
        """Names and counts on one line; nothing of what was said."""
        from repertory.app.agent.shown_agents import ShownAgent  # loaded when used

        return ShownAgent(self).line()

    def _repr_markdown_(self) -> str:
        """For notebooks."""
        from repertory.app.agent.shown_agents import ShownAgent  # loaded when used

        return ShownAgent(self).markdown()

    @property
    def cancel_signal(self) -> Event:
        """Set when the running turn is to end, until it has ended. A thread may set it to end the turn at its next
        step; `cancel()` does not wait for that.
        """
        return self._parts.cancel_signal()

    @property
    def tool_caller(self) -> DirectTools:
        """The same as `tool`."""
        return self.tool

    def cleanup(self) -> None:
        """The same as `shutdown`: tool servers that calls have left running are stopped. A later call starts them."""
        self.shutdown()

    @property
    def system_prompt_content(self) -> list[SystemContentBlock] | None:
        """The system prompt as content blocks, with the cache points that it has."""
        prompt = self._parts.system_prompt
        blocks = [{"text": prompt}] if isinstance(prompt, str) else None if prompt is None else [*prompt]
        return cast("list[SystemContentBlock] | None", blocks)

    @property
    def concurrent_invocation_mode(self) -> str:
        """`throw` if a call is refused while another one runs, else `unsafe_reentrant`; see `busy`."""
        return "throw" if self._busy == "reject" else "unsafe_reentrant"

    @property
    def event_loop_metrics(self) -> EventLoopMetrics:
        """What the answered turns of this object took together."""
        return cast("EventLoopMetrics", self._parts.all_metrics())

    @staticmethod
    def _new_metrics() -> EventLoopMetrics:
        return later.EventLoopMetrics()

    def structured_output(self, output_model: type[T], prompt: Prompt = None) -> T:
        """`structured_output_async` from sync code.

        Args:
            output_model: A pydantic model class.
            prompt: What the user says; None goes on with the conversation.
        """
        return later.blocking_host().run(self.structured_output_async, output_model, prompt)

    async def structured_output_async(self, output_model: type[T], prompt: Prompt = None) -> T:
        """An object of that type, filled in by the model.

        Args:
            output_model: A pydantic model class.
            prompt: What the user says; None goes on with the conversation.

        Raises:
            StructuredOutputException: When there is none. Ask again, or loosen the type.
        """
        result = await self.invoke_async(prompt, structured_output_model=output_model)
        if result.structured_output is None:
            raise StructuredOutputException("the turn ended without structured output", stop_reason=result.stop_reason)
        return cast("T", result.structured_output)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | str | PathLike[str], more: Mapping[str, Any] | None = None
    ) -> Self:
        """An agent from its constructor's keywords. Errors: those of the constructor.

        Args:
            config: The keywords as a mapping, or the path of a JSON file.
            more: Keywords that JSON cannot express; they win.

        Raises:
            Invalid: For a file that cannot be read. Correct the path.
        """
        return cls(**{**later.read_config(config), **(more or {})})
