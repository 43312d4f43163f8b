"""Functions and classes of the SDK that its programs call, and that are one step away from what is here."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import partial, update_wrapper, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ParamSpec, cast

import typing_extensions

from repertory.actors.tool_registry import ToolRegistry
from repertory.app.agent.agent import Agent
from repertory.app.agent.loop_metrics import EventLoopMetrics, Trace
from repertory.app.agent.printer import PrintingCallbackHandler
from repertory.app.agent.tools import as_tools
from repertory.app.host.blocking import blocking_host
from repertory.app.host.plugins import ModelChooser, Plugin, as_list
from repertory.app.memory.memory_manager import MemoryManager
from repertory.app.tracebacks import inside_event_loop
from repertory.backends.tool_ports import is_tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.compat.context_manager import ContextManager
from repertory.compat.document_managers import FileSessionManager, S3SessionManager
from repertory.compat.foreign_tools import answers_of_call
from repertory.compat.records import SessionMessage, SessionRepository
from repertory.compat.repository import RepositorySessionManager
from repertory.compat.shapes import ToolInterruptEvent, TypedEvent
from repertory.compat.tool_schemas import normalize_tool_spec
from repertory.compat.tools_by_hand import TextTool
from repertory.core.call_events import ToolResultEvent
from repertory.core.interrupts import Interrupt
from repertory.core.limits import clip
from repertory.core.messages import texts_in
from repertory.core.result import AgentResult, TurnMetrics
from repertory.core.turns.background_tasks import read_policy
from repertory.core.turns.interrupt_state import documented_state
from repertory.errors import Invalid
from repertory.toolbox.commands import make_python_repl, make_shell

if TYPE_CHECKING:
    from repertory.app.agent.session import AgentLife
    from repertory.app.agent.tools import DirectTools
    from repertory.core.messages import Message, ToolResult, ToolUse

_log = logging.getLogger("repertory.tools")
P = ParamSpec("P")

AGENT_CONFIG_SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Agent Configuration",
    "type": "object",
    "properties": {
        "name": {"type": ["string", "null"], "default": None},
        "model": {"type": ["string", "null"], "default": None},
        "prompt": {"type": ["string", "null"], "default": None},
        "tools": {"type": "array", "items": {"type": "string"}, "default": []},
    },
    "additionalProperties": False,
}
"""The JSON schema of an agent's configuration."""

_NOT_VALID = "Configuration validation error"
_ARGUMENTS = {"model": "model", "prompt": "system_prompt", "tools": "tools", "name": "name"}


def config_to_agent(config: str | Mapping[str, Any], **options: Any) -> Agent:
    """The agent of a configuration: a mapping, or the path of a JSON file (`file://` before it is left out). `options`
    are further arguments of `Agent`, and come before those of the configuration.

    Errors: `FileNotFoundError`; `ValueError` for anything that `AGENT_CONFIG_SCHEMA` does not allow, and for tools that
    cannot be loaded.
    """
    if isinstance(config, str):
        path = Path(config.removeprefix("file://"))
        if not path.exists():
            raise FileNotFoundError(f"Configuration file not found: {path}")
        try:
            config = json.loads(path.read_text())
        except RecursionError as error:
            raise Invalid(f"{_NOT_VALID}: it is a file of JSON", path=str(path), cause=str(error)) from error
    if not isinstance(config, Mapping):
        raise Invalid("Config must be a file path string or dictionary", got=type(config).__name__)
    unknown = sorted(set(config) - set(_ARGUMENTS))
    if unknown:
        raise Invalid(f"{_NOT_VALID}: it has {', '.join(_ARGUMENTS)}", got=unknown)
    for key in ("model", "prompt", "name"):
        if not isinstance(config.get(key), str | None):
            raise Invalid(f"{_NOT_VALID}: {key} is a string", got=config[key])
    tools = cast("object", config.get("tools"))
    if tools is not None and not (
        isinstance(tools, list) and all(isinstance(each, str) for each in cast("list[object]", tools))
    ):
        raise Invalid(f"{_NOT_VALID}: tools is a list of paths and module names", got=str(cast("object", tools)))
    given = {_ARGUMENTS[key]: value for key, value in config.items() if value is not None}
    return Agent(**{**given, **options})


def metrics_to_string(event_loop_metrics: TurnMetrics | EventLoopMetrics, allowed_names: set[str] | None = None) -> str:
    """A summary of a turn, or of several, for people to read: calls of the model, tokens, tools, and traces.

    `allowed_names`: the tools to show; all of them when there are none.
    """
    metrics, usage = event_loop_metrics, event_loop_metrics.accumulated_usage
    seconds, calls = sum(metrics.cycle_durations), metrics.cycle_count
    counts = [f"in={usage['inputTokens']}", f"out={usage['outputTokens']}", f"total={usage['totalTokens']}"]
    if cached := usage.get("cacheReadInputTokens"):
        counts.append(f"cache_read_input_tokens={cached}")
    if cached := usage.get("cacheWriteInputTokens"):
        counts.append(f"cache_write_input_tokens={cached}")
    lines = [
        "Event Loop Metrics Summary:",
        f"├─ Cycles: total={calls}, avg_time={seconds / calls if calls else 0:.3f}s, total_time={seconds:.3f}s",
        f"├─ Tokens: {', '.join(counts)}",
        f"├─ Bedrock Latency: {metrics.accumulated_metrics['latencyMs']}ms",
        "├─ Tool Usage:",
    ]
    traces = cast("list[Trace]", metrics.traces)
    within = [child.metadata for trace in traces for child in trace.children]
    for name, tool in metrics.tool_metrics.items():
        if allowed_names and name not in allowed_names:
            continue
        lines += [
            f"   └─ {name}:",
            f"      ├─ Stats: calls={tool.call_count}, success={tool.success_count}",
            f"      │         errors={tool.error_count}, success_rate={tool.success_rate:.1%}",
            f"      ├─ Timing: avg={tool.average_time:.3f}s, total={tool.total_time:.3f}s",
            "      └─ Tool Calls:",
        ]
        called = [each.get("toolUseId", "unknown") for each in within if each.get("tool_name") == name]
        lines += [f"         ├─ {use_id}: {name}" for use_id in called]
    lines.append("├─ Execution Trace:")
    for trace in traces:
        lines += _trace_lines(trace, 1)
    return "\n".join(lines)


def _trace_lines(trace: Trace, depth: int) -> list[str]:
    seconds, name, use_id = trace.duration(), trace.raw_name or trace.name, trace.metadata.get("toolUseId")
    seconds_text = "None" if seconds is None else f"{seconds:.4f}s"
    suffix = f" - {use_id}" if use_id and " - tooluse_" not in name else ""
    lines = [f"{'   ' * depth}└─ {name}{suffix} - Duration: {seconds_text}"]
    return lines + [line for child in trace.children for line in _trace_lines(child, depth + 1)]


class _EveryExecutor(type):
    def __instancecheck__(cls, instance: object) -> bool:
        either = hasattr(instance, "execution") if cls is SdkToolExecutor else False
        return either or super().__instancecheck__(instance)


class SdkToolExecutor(metaclass=_EveryExecutor):
    """The base class of both executors. Packages run a tool by its `_stream` as the agent's own executor does."""

    execution = "concurrent"

    @staticmethod
    async def _stream(
        agent: Agent, tool_use: ToolUse, tool_results: list[ToolResult], invocation_state: dict[str, Any], **more: Any
    ) -> AsyncGenerator[TypedEvent]:
        """Run one tool of an agent past its hooks and policies; nothing is recorded. Yields the questions to a person,
        or the result, which `tool_results` gets as well.
        """
        del more  # The SDK's cycle and spans: a call has its own here.
        given: Any = {**tool_use, "toolUseId": str(tool_use["toolUseId"])}
        outcome = await agent.tool_registry.outcome(given, invocation_state)
        if isinstance(outcome, list):
            yield ToolInterruptEvent(tool_use, outcome)
            return
        tool_results.append(outcome)
        yield ToolResultEvent(outcome)


class ConcurrentToolExecutor(SdkToolExecutor):
    """`Agent(tool_executor=...)`: the tools of one step run at the same time. The default."""


class SequentialToolExecutor(SdkToolExecutor):
    """`Agent(tool_executor=...)`: the tools of one step run one after the other."""

    execution = "sequential"


def _is_tool(given: object) -> bool:
    if not is_tool(given):
        _log.warning("left out of the tools, since it is none: %s", clip(repr(given), 200))
        return False
    return True


_POSITIONAL = tuple(inspect.signature(Agent).parameters)[3:9]
"""The arguments behind the tools that may be given by position."""


class _ClassOfEither(type):
    """`isinstance(agent, Agent)` and `issubclass` hold for agents of either name, and so for plugins."""

    def __instancecheck__(cls, instance: object) -> bool:
        either = _of_either(cls)
        return super().__instancecheck__(instance) if either is None else isinstance(instance, either)

    def __subclasscheck__(cls, subclass: type) -> bool:
        either = _of_either(cls)
        return super().__subclasscheck__(subclass) if either is None else issubclass(subclass, either)


def _of_either(cls: type) -> type | None:
    """The class of this package whose name programs of the SDK import as this one; None for any other class."""
    return {SdkAgent: Agent, SdkPlugin: Plugin}.get(cast("Any", cls))


class SdkAgent(Agent, metaclass=_ClassOfEither):
    """The `Agent` that programs of the SDK import: what its model raises passes as it is, it prints everywhere, what is
    no tool is left out, and its model gets whole schemas of tools.
    """

    passes_model_errors = True
    default_handler = PrintingCallbackHandler

    def __init__(
        self, model: Any = None, messages: Any = None, tools: Any = None, *arguments: Any, **options: Any
    ) -> None:
        if not isinstance(tools, ToolRegistry):
            tools = ToolRegistry(filter(_is_tool, as_tools(tools or ())), normalize_tool_spec)
        context_manager = ContextManager.from_strategy(options.get("context_manager"))
        options |= dict(zip(_POSITIONAL, arguments, strict=False))
        if options.get("plugins"):
            options["plugins"] = [*map(_as_plugin, as_list("plugins", options["plugins"]))]
        if context_manager is not None:
            options |= context_manager.options(options.get("conversation_manager"), options.get("plugins"))
        super().__init__(model, messages, cast("Any", tools), **options)
        self.context_manager = context_manager
        if isinstance(messages, list) and self._life.opened:  # The program's list shows the conversation from now on.
            self._life.on_change = partial(_show_in, messages, self._life)

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools. Errors: those of a server that cannot be reached."""
        self._meet_servers()
        return super().tool_names

    @property
    def tool(self) -> DirectTools:
        """The tools, for calls by the program. Errors: those of a server that cannot be reached."""
        self._meet_servers()
        return super().tool

    def _meet_servers(self) -> None:
        """Have the tools of servers before the first call, as the SDK has them. Here they are opened when somebody asks
        for the tools, and by the first call inside an event loop, which must not stand still.
        """

        async def open_session() -> None:
            await self._life.enter()
            await self._life.leave()

        if self._life.current is None and self.tool_registry.now.sources and not inside_event_loop():
            blocking_host().run(open_session)

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._flush_manager()
        finally:
            await super().__aexit__(*exc_info)

    async def shutdown_async(self) -> None:
        """The shutdown of an `Agent`; before it, a memory manager with a `flush` of its own is flushed."""
        try:
            await self._flush_manager()
        finally:
            await super().shutdown_async()

    async def _flush_manager(self) -> None:
        """Our own `flush` is not called: closing the session writes this agent's memories, and no other agent's."""
        flush = getattr(self.memory_manager, "flush", None)
        if flush is not None and getattr(flush, "__func__", None) is not MemoryManager.flush:
            await flush()

    # Private to the SDK, and read by packages: `ag-ui-strands`, which asks people in a browser, and `strands-harness`.

    @property
    def _session_manager(self) -> object:
        return self.session_manager or self.kept_by

    @property
    def _context_manager(self) -> ContextManager | None:
        return self.context_manager

    @property
    def _model_router(self) -> Plugin | None:
        return next((each for each in self.plugins if isinstance(each, ModelChooser)), None)

    @property
    def _background_tasks(self) -> SimpleNamespace | None:
        policy = read_policy(self._given_background)
        if policy is None:
            return None
        given = self._given_background
        return SimpleNamespace(_policy={**policy.modes}, _config=dict(given) if isinstance(given, Mapping) else {})

    @property
    def _plugin_registry(self) -> SimpleNamespace:
        return SimpleNamespace(_plugins={each.name: getattr(each, "given", each) for each in self.plugins})

    @property
    def _intervention_registry(self) -> SimpleNamespace:
        return SimpleNamespace(handlers=[*self.interventions], _handlers=[*self.interventions])

    @property
    def _interrupt_state(self) -> SimpleNamespace:
        """The questions that the turn waits with; a change of it changes nothing."""
        self._life.check_open(stored=True)
        state: dict[str, Any] = documented_state(self._life.read_model.pending_tools)
        given = answers_of_call.get() or {}
        interrupts = {key: Interrupt(**one) for key, one in state["interrupts"].items()}
        for key, one in interrupts.items():
            interrupts[key] = replace(one, response=given.get(key, one.response))
        held = state.get("pending_tool_execution")
        parked = None if held is None else SimpleNamespace(**held)
        # A call that nobody records has left nothing to deactivate: any function without effects will do.
        changed = {"interrupts": interrupts, "pending_tool_execution": parked, "deactivate": dict}
        return SimpleNamespace(**{**state, **changed})


def _show_in(given: list[Message], life: AgentLife) -> None:
    given[:] = life.read_model.messages()


class SdkPlugin(Plugin, metaclass=_ClassOfEither):
    """The `Plugin` that programs of the SDK subclass. That of `bedrock-agentcore` leaves out a tool, as `_tools`."""

    @property
    def _tools(self) -> list[FunctionTool[Any]]:
        return self.tools

    @_tools.setter
    def _tools(self, tools: list[FunctionTool[Any]]) -> None:
        self.tools[:] = tools


class _PluginOfNoClass(SdkPlugin):
    """A plugin that has the members of one and not its class: the SDK looks at the members alone."""

    def __init__(self, given: Any) -> None:
        self.name = given.name
        self.hooks[:], self.tools[:] = given.hooks, given.tools
        self.given = given

    def init_agent(self, agent: Any) -> Any:
        return self.given.init_agent(agent)


def _as_plugin(given: Any) -> Any:
    members = ("name", "hooks", "tools", "init_agent")
    whole = not isinstance(given, Plugin | type) and all(hasattr(given, each) for each in members)
    return _PluginOfNoClass(given) if whole else given


SdkAgent.__name__ = SdkAgent.__qualname__ = Agent.__name__
SdkPlugin.__name__ = SdkPlugin.__qualname__ = Plugin.__name__
update_wrapper(SdkAgent.__init__, Agent.__init__)


def sdk_text(result: AgentResult[Any]) -> str:
    """The text of a result with a line break behind each text; the questions to a person as a list of dictionaries."""
    if result.interrupts:
        return str([interrupt.to_dict() for interrupt in result.interrupts])
    written: Callable[[], str] | None = getattr(result.structured_output, "model_dump_json", None)
    if written is not None:
        return written()
    return "" if result.message is None else "".join(f"{text}\n" for text in texts_in(result.message))


class PreparedSessionManager(RepositorySessionManager):
    """A `RepositorySessionManager` that makes its session at once, if the repository's methods are synchronous:
    programs write records into it before any agent does.
    """

    def __init__(self, session_id: str, session_repository: SessionRepository, **kwargs: Any) -> None:
        super().__init__(session_id, session_repository)
        self._latest_agent_message: dict[str, SessionMessage | None] = {}
        """The last message that a subclass has stored, by agent. The package of AgentCore writes it."""
        if not inspect.iscoroutinefunction(session_repository.read_session):
            _ = self.session

    def redact_latest_message(self, redact_message: Any, agent: Any, **kwargs: Any) -> None:
        """Store another message in the place of the latest one, of the number that a subclass gave it."""
        last = self._latest_agent_message.get(agent.agent_id)
        if last is None:
            super().redact_latest_message(redact_message, agent)
            return
        last.redact_message = redact_message
        self.records.update_message(self.session_id, agent.agent_id, last)


PreparedSessionManager.register(FileSessionManager)
PreparedSessionManager.register(S3SessionManager)


# Names of before a renaming: the tools are still called what they were called.


def _as_text(make: Callable[P, FunctionTool[Any]]) -> Callable[P, FunctionTool[Any]]:
    """A maker of tools whose model is told what they give as text, as the SDK's tools do it."""

    @wraps(make)
    def made(*arguments: P.args, **options: P.kwargs) -> FunctionTool[Any]:
        return make(*arguments, **options).of_kind(TextTool)

    return made


text_shell, text_python_repl = _as_text(make_shell), _as_text(make_python_repl)


@typing_extensions.deprecated("make_bash is deprecated: use make_shell")
def make_bash(*, name: str = "bash", **options: Any) -> FunctionTool[Any]:
    """The tool `shell` under its earlier name; see `make_shell`."""
    return text_shell(name=name, **options)


bash, shell, python_repl = text_shell(name="bash"), text_shell(), text_python_repl()
