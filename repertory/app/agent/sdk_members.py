"""The members of an agent that follow from its parts and its calls, many of them for programs of the Strands SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from repertory.app.agent.session import read_config
from repertory.app.agent.tools import DirectTools
from repertory.app.host.blocking import blocking_host
from repertory.app.host.model_choice import default_model
from repertory.backends.sdk_members import ToolLike
from repertory.core.messages import check_system_prompt, system_text

if TYPE_CHECKING:
    from threading import Event

    from repertory.actors.context import AgentParts
    from repertory.app.agent.loop_metrics import EventLoopMetrics
    from repertory.app.agent.session import AgentLife
    from repertory.app.agent.tools import AgentTools
    from repertory.app.host.plugins import Plugin
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.backends.ports import Model
    from repertory.backends.sandbox_ports import Sandbox
    from repertory.core.converse import SystemContentBlock
    from repertory.core.messages import Prompt, SystemPrompt
    from repertory.core.result import AgentResult

T = TypeVar("T")


def new_metrics() -> EventLoopMetrics:
    """The sums over the turns of an agent that has had none."""
    from repertory.app.agent.loop_metrics import EventLoopMetrics  # loaded when used

    return EventLoopMetrics()


class SdkAgentMembers(ToolLike):
    """The members of an agent that follow from its parts and from `invoke_async`."""

    # Those that `Agent` sets, too: as entries of a dict they would weigh a twentieth of an idle session. Others, which
    # programs set on their agents, go into a dict as always.
    __slots__ = (
        "_call_settings",
        "_folder",
        "_late_plugins",
        "_life",
        "_memory_manager",
        "_parts",
        "_patience",
        "_plugins",
        "_sandbox",
        "_settings",
        "agent_id",
        "baggage_attributes",
        "callback_handler",
        "conversation_manager",
        "description",
        "hooks",
        "interventions",
        "kept_by",
        "load_tools_from_directory",
        "name",
        "record_direct_tool_call",
        "session_manager",
        "storage",
        "structured_output_model",
        "structured_output_prompt",
        "trace_attributes",
    )
    ToolCaller = DirectTools
    """The type of `agent.tool`."""
    _parts: AgentParts
    _life: AgentLife

    if TYPE_CHECKING:

        async def invoke_async(self, prompt: Prompt = None, *, structured_output_model: type[T]) -> AgentResult[T]: ...

        _memory_manager: MemoryManager | None
        _plugins: Sequence[Plugin]
        _sandbox: Sandbox | None

        def shutdown(self) -> None: ...
        @property
        def tool(self) -> DirectTools: ...
        @property
        def tool_registry(self) -> AgentTools: ...

    def __repr__(self) -> str:
        """Names and counts on one line; nothing of what was said."""
        from repertory.app.agent.shown_agents import ShownAgent  # loaded when used

        return ShownAgent(self, self._life.read_model.messages() if self._life.opened else None).line()

    def _repr_markdown_(self) -> str:
        """The agent as a table for notebooks."""
        from repertory.app.agent.shown_agents import ShownAgent  # loaded when used

        return ShownAgent(self, self._life.read_model.messages() if self._life.opened else None).markdown()

    @property
    def model(self) -> Model:
        """The model. A model assigned here is used from the next step on."""
        return self._parts.model

    @model.setter
    def model(self, model: Model | str | None) -> None:
        self._parts.model = default_model(model)

    @property
    def aux_model(self) -> Model:
        """The model for side calls; `model` when the agent has none of its own. One assigned here is used from the next
        call on.
        """
        return self._parts.aux_model or self._parts.model

    @aux_model.setter
    def aux_model(self, model: Model | str | None) -> None:
        self._parts.aux_model = None if model is None else default_model(model)

    @property
    def system_prompt(self) -> str | None:
        """The text of the system prompt; None if there is none. One assigned here, also as content blocks, is used from
        the next step on.
        """
        return system_text(self._parts.system_prompt)

    @system_prompt.setter
    def system_prompt(self, prompt: SystemPrompt) -> None:
        self._parts.system_prompt = check_system_prompt(prompt)

    @property
    def enabled_tools(self) -> list[str] | None:
        """The names of the tools that the model sees; None for all. May be assigned between any two steps.

        Errors: `Invalid` naming tools that the agent does not have.
        """
        enabled = self._parts.tools.enabled
        return None if enabled is None else list(enabled)

    @enabled_tools.setter
    def enabled_tools(self, names: Sequence[str] | None) -> None:
        tools = self.tool_registry.now
        self._parts.tools = tools if names is None else tools.only(names)

    @property
    def plugins(self) -> Sequence[Plugin]:
        """The plugins, in the order given."""
        return self._plugins

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools, in the order given; those of a tool server from when it is open."""
        return list(self.tool_registry.now.names)

    @property
    def memory_manager(self) -> MemoryManager | None:
        """The memory across conversations; None when the agent has none."""
        return self._memory_manager

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox in which its tools run commands and have their files; this machine unless one was given."""
        if self._sandbox is None:
            from repertory.backends.this_machine import ThisMachine  # loaded when used

            self._sandbox = ThisMachine()
        return self._sandbox

    @property
    def cancel_signal(self) -> Event:
        """Set when the running turn is to end, until it has ended. A thread may set it to end the turn at its next
        step; `cancel()` does not wait for that.
        """
        return self._parts.cancel_signal()

    @property
    def tool_caller(self) -> DirectTools:
        """The tools as methods, as `tool` has them."""
        return self.tool

    def cleanup(self) -> None:
        """Stop the tool servers that calls have left running, as `shutdown` does. A later call starts them."""
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
        return "throw" if self._life.busy == "reject" else "unsafe_reentrant"

    @property
    def event_loop_metrics(self) -> EventLoopMetrics:
        """The totals of the answered turns of this object."""
        return cast("EventLoopMetrics", self._parts.all_metrics())

    def structured_output(self, output_model: type[T], prompt: Prompt = None) -> T:
        """`structured_output_async` from sync code.

        Args:
            output_model: A pydantic model class.
            prompt: The user's message; None goes on with the conversation.
        """
        return blocking_host().run(self.structured_output_async, output_model, prompt)

    async def structured_output_async(self, output_model: type[T], prompt: Prompt = None) -> T:
        """An object of that type, which the model is asked for once, by its own `structured_output`. Nothing of it
        stays in the conversation; `agent(prompt, structured_output_model=...)` is a turn, which asks again.

        Args:
            output_model: A pydantic model class.
            prompt: The user's message behind the conversation; None for no more.

        Raises:
            StructuredOutputException: When there is none. Ask again, or loosen the type.
            Invalid: Without a prompt and a conversation. Give one.
        """
        from repertory.app.agent.structured import ask_model  # loaded when used

        return cast("T", await ask_model(self, output_model, prompt))

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
        return cls(**{**read_config(config), **(more or {})})
