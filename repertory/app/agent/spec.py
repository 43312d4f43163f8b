"""What an agent is in a `Runtime`: everything but the session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repertory.core.ids import check_id
from repertory.core.retry import DEFAULT_RETRY

if TYPE_CHECKING:
    from repertory.actors.call import Busy
    from repertory.actors.context import Durability, ToolExecution
    from repertory.actors.hooks.registry import HookProvider
    from repertory.app.agent.conversation_managers import ManagerChoice
    from repertory.app.agent.plugins import Plugin
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.backends.ports import Model
    from repertory.core.limits import Limits
    from repertory.core.messages import Message, SystemPrompt
    from repertory.core.opening import UnknownOutcome
    from repertory.core.retry import RetryStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent that any number of sessions may talk to. The fields mean what they mean for `Agent`.

    Each session has messages, state, system prompt and conversation manager of its own: copies of what stands here,
    proved to share nothing, or what a factory makes (`conversation_manager=lambda: Mine(...)`). Model, tools, hooks,
    plugins, memory manager and retry strategy are shared by all sessions, so they keep nothing of one conversation but
    by its agent (`event.agent`, `context.agent`) or its session. `Runtime.agent` refuses, with `Invalid`, conversation
    managers that cannot be copied, and agents as tools that remember (`preserve_context=True`).
    """

    name: str = "default"
    """Also the agent's id within each session."""
    model: Model | str | None = None
    tools: Iterable[object] = ()
    system_prompt: SystemPrompt = None
    conversation_manager: ManagerChoice = None
    messages: Sequence[Message] = ()
    state: Mapping[str, object] = field(default_factory=dict[str, object])
    durability: Durability = "pipelined"
    busy: Busy = "queue"
    unknown_tool_outcome: UnknownOutcome = "ask"
    description: str | None = None
    hooks: Sequence[HookProvider] = ()
    plugins: Sequence[Plugin] = ()
    memory_manager: MemoryManager | Mapping[str, object] | None = None
    """None for that of the runtime."""
    structured_output_model: type[Any] | None = None
    aux_model: Model | str | None = None
    retry_strategy: RetryStrategy | None = DEFAULT_RETRY
    limits: Limits | None = None
    enabled_tools: Sequence[str] | None = None
    tool_execution: ToolExecution = "concurrent"

    def __post_init__(self) -> None:
        """Errors: `Invalid` (a ValueError) for a name that is no id."""
        check_id(self.name, "name")
