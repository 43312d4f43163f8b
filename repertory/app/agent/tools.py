"""An agent as a tool of another agent, and direct calls of an agent's tools by the program."""

from __future__ import annotations

import re
import secrets
from collections import UserDict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from repertory.actors.call import Invocation
from repertory.actors.spawning import SubagentCall
from repertory.actors.tool_registry import ToolRegistry
from repertory.actors.tools import call_unrecorded, unrecorded_outcome
from repertory.app.agent import extensions
from repertory.app.agent.conversation_managers import another_manager
from repertory.app.host.blocking import blocking_host
from repertory.backends.sdk_members import ForeignObject, SdkMembers, ToolLike, ToolProvider
from repertory.core.limits import MESSAGE_DEPTH_MAX, is_too_deep
from repertory.core.messages import ToolResult, ToolSpec, ToolUse, error_result, tool_results
from repertory.core.tools import normal_spec
from repertory.core.turns.subagents import SHARE
from repertory.core.turns.turn_start import DIRECT_WHILE_BUSY, direct_prompt, recorded
from repertory.errors import AgentBusy, Invalid, RepertoryError

if TYPE_CHECKING:
    from types import ModuleType

    from repertory.actors.context import AgentParts, ToolExecution
    from repertory.actors.spawning import SubagentAnswer
    from repertory.app.agent.conversation_managers import ConversationManager
    from repertory.app.agent.extensions import WatchedTools
    from repertory.app.agent.session import AgentLife, AgentSessionSpec
    from repertory.app.host.plugins import Plugin
    from repertory.app.host.session import ActiveSession
    from repertory.backends.ports import Tool, ToolContext
    from repertory.backends.sandbox_ports import Sandbox
    from repertory.backends.tool_ports import ToolSource
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Json, Message, Prompt
    from repertory.core.stream_events import AgentStreamEvent
    from repertory.core.turns.background_tasks import BackgroundTasksConfig

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]+")


class AsTool(Protocol):
    """An agent, or anything else that gives itself as a tool."""

    def as_tool(self) -> object: ...


TasksGiven: TypeAlias = "bool | BackgroundTasksConfig | None"
_OfSdk: TypeAlias = "ForeignObject | ToolProvider | ModuleType | str | Path | Mapping[str, str]"
AnyTool: TypeAlias = "ToolLike | Tool | ToolSource | AsTool | _OfSdk | Sequence[AnyTool]"
"""A tool as `Agent(tools=[...])` takes it: a function decorated with `@tool`, an agent, an MCP client, an object of the
SDK, a module or file with tools, a list of these."""


class Answering(Protocol):
    """The attributes of an `Agent` that make it a tool."""

    name: str
    description: str | None

    conversation_manager: ConversationManager

    def spec(self) -> AgentSessionSpec: ...

    def fresh_copy(self) -> Answering: ...

    @property
    def interrupts(self) -> list[Interrupt]: ...

    async def ready(self) -> None: ...

    def stream_async(self, prompt: Prompt) -> AsyncGenerator[AgentStreamEvent]: ...


class AgentTool(SdkMembers):
    """A tool that passes `input` to an agent, and returns its answer.

    Without `preserve_context` each call begins with the messages and the state that the agent was built with. An agent
    without a conversation of its own then has the messages of the last call, and the metrics of all. With it all calls
    are one conversation, in the agent's own session if it has one.

    Where the agent that asks has its conversation in SQLite, PostgreSQL, a bucket or a log, the turn of each call
    stands in the same session, and goes on after a kill.

    When the agent asks a person, so does this tool, and it passes the answers on. With `preserve_context` the question
    waits in the agent's conversation, also across restarts if it has a session. Without, it waits in the session of the
    agent that asks, or in this object where that has none; after a restart the result is then an error that says so.

    Errors: `Invalid` without `preserve_context` when the agent's conversation manager cannot be copied.
    """

    effects = True
    idempotent = False
    timeout_s = None
    tool_type = "agent"

    @property
    def works_in_subagents(self) -> bool:
        """True if all of its work is that of subagents of the agent that calls it."""
        return not self._preserve_context

    def __init__(
        self,
        agent: Answering,
        *,
        name: str | None,
        description: str | None,
        preserve_context: bool,
        delegate: bool = False,
    ) -> None:
        for what, given in (("preserve_context", preserve_context), ("delegate", delegate)):
            if not isinstance(cast("object", given), bool):
                raise Invalid(f"{what} is True or False", got=given)
        self.delegate = delegate
        """True if the answer ends the turn of the agent that asks, if that asks nothing else in the same step."""
        if not preserve_context:
            another_manager(agent.conversation_manager)  # Each call needs one.
        self._agent = agent
        self._preserve_context = preserve_context
        self._waiting: dict[str, object] = {}
        """The copies of the agent that wait for a person where a program calls the tool, the oldest first."""
        self.name = _UNFIT.sub("_", name or agent.name).strip("_")[:64]
        if not self.name:
            raise Invalid("an agent that is a tool needs a name", got=name or agent.name)
        about = description or agent.description or f"Asks the agent {agent.name}."
        self.spec: ToolSpec = {
            "name": self.name,
            "description": about,
            "inputSchema": {
                "json": {
                    "type": "object",
                    "properties": {"input": {"type": "string", "description": "What to ask the agent."}},
                    "required": ["input"],
                }
            },
        }

    def _take_spec(self, spec: ToolSpec) -> None:
        self.spec = normal_spec(spec)

    @property
    def agent(self) -> Answering:
        """The agent that is asked."""
        return self._agent

    @property
    def remembers(self) -> bool:
        """True if all calls of the tool are one conversation, or those of an agent among its agent's tools are."""
        return self._preserve_context or any(map(_remembers, self._agent.spec().parts.tools))

    def input_for(self, agent: object, prompt: str) -> dict[str, Json] | None:
        """The input that has this agent do this; None for another agent."""
        return {"input": prompt} if agent is self._agent and not self._preserve_context else None

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """Run a turn of the agent. Its failures are results with status `error`; cancellation cancels its turn."""
        use_id, given = tool_use["toolUseId"], tool_use["input"]
        fields = cast("dict[str, object]", given) if isinstance(given, dict) else {}
        prompt = fields.get("input")
        if not isinstance(prompt, str) or not prompt.strip():
            return error_result(use_id, 'The input must be an object like {"input": "what to ask"}.')
        try:
            answer = await (self._own_turn if self._preserve_context else self._turn)(prompt, fields, context)
        except RepertoryError as error:
            if context.on_exception is not None:
                context.on_exception(error)
            return error_result(use_id, f"Error: {type(error).__name__} - {error}")
        if answer.result is not None and not self._preserve_context:
            _show_call_of(self._agent, answer.agent)
        return answer.as_tool_result(use_id)

    async def _turn(self, prompt: str, fields: Mapping[str, object], context: ToolContext) -> SubagentAnswer:
        """The answer of the agent, as a subagent of the one that asks. Raises `InterruptException` when it asks a
        person.
        """
        from repertory.app.agent.subagents import bounded_call, run_unstored  # loaded when used

        call = bounded_call(
            SubagentCall(agent=self._agent, prompt=prompt, label="", context=context), fields.get(SHARE)
        )
        if context.find_spawner is None:  # The program calls the tool.
            return await run_unstored(call, self._waiting)
        return await context.find_spawner(context).run(call)

    async def _own_turn(self, prompt: str, fields: Mapping[str, object], context: ToolContext) -> SubagentAnswer:
        """The agent's answer in its own conversation. Raises `InterruptException` when it asks a person."""
        from repertory.app.agent.subagents import run_own  # loaded when used

        call = SubagentCall(agent=self._agent, prompt=prompt, label="", context=context)
        return await run_own(call)


def _show_call_of(agent: Any, copy: Any) -> None:
    """Give the agent the messages and the metrics of a copy that has answered in its place, unless it has a
    conversation of its own.
    """
    for turn in copy._parts.measured:
        agent._parts.add_metrics(turn)
    life = agent._life
    if agent.session_manager is None and life.current is None and (life.edited or not life.loads):
        life.loads.clear()
        life.read_model.show(messages=agent.spec().agent.initial)
        agent.messages = [*copy.messages]


def as_tools(tools: Iterable[object]) -> list[object]:
    """The tools as a flat list, with agents, and tools in the forms of the SDK, converted.

    Errors: `Invalid` for anything but a list, and for a file, module or name that has no tools.
    """
    if isinstance(tools, str | bytes) or not isinstance(cast("object", tools), Iterable):
        given: object = tools
        name = getattr(given, "__name__", None) or getattr(given, "name", None) or "my_tool"
        raise Invalid(f"tools is a list: write tools=[{name}]", got=type(given).__name__)
    found: list[object] = []
    for one in tools:
        if isinstance(one, list | tuple):
            found.extend(as_tools(cast("Iterable[object]", one)))
        elif hasattr(one, "run"):
            found.append(one)
        elif callable(as_tool := getattr(one, "as_tool", None)):
            found.append(as_tool())
        else:
            foreign = extensions.made_by.foreign_tools(one)
            found.extend([one] if foreign is None else foreign)
    return found


def check_forgetful(tools: Iterable[object]) -> None:
    """Errors: `Invalid` for an agent with `preserve_context` among the tools: all sessions would share its memory."""
    for one in tools:
        if _remembers(one):
            raise Invalid(
                "an agent as a tool with preserve_context=True has one memory for all sessions of a spec: leave "
                "preserve_context out, or write a @tool that asks runtime.agent(...).session(...) of its own",
                tool=getattr(one, "name", None),
            )


def _remembers(tool: object) -> bool:
    return isinstance(tool, AgentTool) and tool.remembers


class ToolExecutor(Protocol):
    """The order in which the tools of one step run, as an object; `Agent(tool_execution=...)` takes it as a word."""

    @property
    def execution(self) -> ToolExecution:
        """The order as a word."""
        ...


def all_tools(
    given: Iterable[object] | None, plugins: Sequence[Plugin], folder: WatchedTools | None, sandbox: Sandbox | None
) -> ToolRegistry:
    """The tools of a new agent: those given, of its plugins, in its folder, and of its sandbox where a name is free."""
    added: list[object] = [tool for plugin in plugins for tool in plugin.tools]
    if folder is not None:
        added += folder.changed()
    tools = given if isinstance(given, ToolRegistry) else ToolRegistry(as_tools(given or ()))
    tools = tools.also(*added)
    if sandbox is None:
        return tools
    return tools.also(*(tool for tool in sandbox.get_tools() if tool.name not in tools.names))


def run_in_background(parts: AgentParts, given: TasksGiven) -> TasksGiven:
    """Have the tools of a new agent run in the background, as it says, or as they say themselves where it says nothing.
    Returns what was given. Errors: `Invalid` for wrong settings, and for tools that cannot do what they say.
    """
    if given is False or (given is None and not any(getattr(tool, "background", False) for tool in parts.tools)):
        return given
    from repertory.actors.background_runs import BackgroundTools  # loaded when used
    from repertory.core.turns.background_tasks import DECLARED_ALONE, MANAGE, read_policy

    background = parts.background = BackgroundTools(read_policy(given) or DECLARED_ALONE, parts.tools)
    # A copy of an agent has the tools of the agent, and looks after its own tasks.
    parts.tools = parts.tools.without(MANAGE).also(background.manage)
    return given


class ToolsByName(UserDict[str, "Tool"]):
    """The tools of an agent by name, for programs that change the dictionary itself; see `AgentTools.registry`."""

    def __init__(self, tools: AgentTools, found: Iterable[Tool]) -> None:
        super().__init__()
        self.data, self._tools = {tool.name: tool for tool in found}, tools

    def __setitem__(self, name: str, tool: Tool) -> None:
        self._tools.register_tool(tool)
        super().__setitem__(name, tool)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._tools.unregister_tool(name)


class AgentTools:
    """The tools of an agent, to be read and changed while it lives: `agent.tool_registry`.

    A change counts from the agent's next step, also in the middle of a turn.
    """

    def __init__(self, parts: AgentParts, life: AgentLife) -> None:
        self._parts = parts
        self._life = life

    @property
    def now(self) -> ToolRegistry:
        """All tools: those of servers from when they run, and of a session that another agent object has opened the
        tools of that one.
        """
        session = self._life.current
        return (self._parts if session is None or session.parts is None else session.parts).tools.whole

    @property
    def registry(self) -> ToolsByName:
        """The tools by name. A tool that is set or deleted in it is added to the agent, or removed."""
        return ToolsByName(self, self.now)

    @property
    def dynamic_tools(self) -> dict[str, Tool]:
        """The tools that were made while the program ran, by name. A copy."""
        return {name: tool for name, tool in self.registry.items() if getattr(tool, "is_dynamic", False)}

    def register_tool(self, tool: object) -> None:
        """Add a tool, or replace the one of the same name. Errors: `Invalid` for anything that is no tool."""
        self.process_tools([tool])

    def register_dynamic_tool(self, tool: Tool) -> None:
        """Add a tool that was made while the program ran. Errors: `Invalid` for a name twice."""
        if tool.name in self.now:
            raise Invalid(f"Tool '{tool.name}' already exists")
        self.register_tool(tool)

    def process_tools(self, tools: Iterable[object]) -> list[str]:
        """Add tools in any form that `Agent(tools=...)` takes, and give their names. Errors: as `register_tool`."""
        added = list(ToolRegistry(as_tools(tools)))

        def with_them(now: ToolRegistry) -> ToolRegistry:
            for tool in added:
                now = now.without(tool.name).also(tool)
            return now

        self._apply(with_them)
        return [tool.name for tool in added]

    def replace(self, new_tool: Tool) -> None:
        """Put a tool in the place of the one of its name. Errors: `Invalid` if there is none."""
        if new_tool.name not in self.now:
            raise Invalid(f"Cannot replace tool '{new_tool.name}' - tool does not exist")
        self.register_tool(new_tool)

    def unregister_tool(self, name: str) -> None:
        """Remove a tool. Errors: `AttributeError` for an unknown one."""
        if name not in self.now:
            raise AttributeError(f"Tool '{name}' not found")
        self._apply(lambda now: now.without(name))

    def load_tool_from_filepath(self, tool_name: str, tool_path: str) -> None:
        """Add a tool of a Python file. Errors: `FileNotFoundError`; `Invalid` when the file has no such tool."""
        if not Path(tool_path).expanduser().exists():
            raise FileNotFoundError(f"Tool file not found: {tool_path}")
        self.process_tools([{"path": tool_path, "name": tool_name}])

    def _apply(self, change: Callable[[ToolRegistry], ToolRegistry]) -> None:
        self._parts.tools = change(self._parts.tools)

    async def call(self, name: str, arguments: dict[str, Any], override: str | None, record: bool | None) -> ToolResult:
        """Call a tool for the program; see `DirectTool.invoke_async`."""
        agent, use = self._parts.owner, direct_use(self.now, name, arguments)
        if not (agent.record_direct_tool_call if record is None else record):
            return await call_unrecorded(agent.spec().agent, self._parts, use)
        try:
            async with self._life.session("reject") as session:
                return await call_recorded(session, use, override)
        except AgentBusy as error:
            raise AgentBusy(DIRECT_WHILE_BUSY, agent=agent.agent_id) from error

    async def outcome(self, use: ToolUse, invocation_state: Mapping[str, object]) -> ToolResult | list[Interrupt]:
        """The result of a tool use that is not recorded, or the questions to a person that it asks."""
        return await unrecorded_outcome(self._parts.owner.spec().agent, self._parts, use, invocation_state)

    def get_all_tool_specs(self) -> list[ToolSpec]:
        """The spec of each tool, as the model sees it."""
        return list(self.now.specs)

    def get_all_tools_config(self) -> dict[str, ToolSpec]:
        """The spec of each tool, by name."""
        return {spec["name"]: spec for spec in self.now.specs}


# `agent.tool.<name>(...)`: a tool called by the program itself, recorded or not.


class DirectTools:
    """The tools of an agent as attributes; underscores also match hyphens. Names are looked up at the call."""

    def __init__(self, tools: AgentTools) -> None:
        self._tools = tools

    def __getattr__(self, name: str) -> DirectTool:
        if name.startswith("__"):
            raise AttributeError(name)
        return DirectTool(name, self._tools)


class DirectTool:
    """One tool of an agent. Call it with the tool's own arguments as keywords."""

    def __init__(self, name: str, tools: AgentTools) -> None:
        self._name = name
        self._tools = tools

    def __call__(
        self, user_message_override: str | None = None, record_direct_tool_call: bool | None = None, **arguments: Any
    ) -> ToolResult:
        """`invoke_async` from sync code."""
        return blocking_host().run(self.invoke_async, user_message_override, record_direct_tool_call, **arguments)

    async def invoke_async(
        self, user_message_override: str | None = None, record_direct_tool_call: bool | None = None, **arguments: Any
    ) -> ToolResult:
        """Run the tool and give its result; a failure of the tool is a result with status `error`.

        Recorded (by the agent's setting, unless given here), the call becomes four messages of the conversation and is
        durable on return; an argument that JSON cannot express is recorded by the name of its type.
        `user_message_override` precedes the user's message. An unrecorded call may also be made while a turn runs, and
        a tool that `enabled_tools` hides from the model may be called. Errors: `AttributeError` for an unknown tool;
        `ConcurrencyException` when a recorded call meets a running turn; `Invalid` while an unfinished turn waits, and
        for arguments nested too deeply.
        """
        return await self._tools.call(self._name, arguments, user_message_override, record_direct_tool_call)


def direct_use(tools: ToolRegistry, name: str, arguments: dict[str, Any]) -> ToolUse:
    """The tool use of a direct call. Errors: `AttributeError` for an unknown tool; `Invalid` for too deep arguments."""
    tool = tools.find(name)
    if tool is None:
        msg = f"Tool '{name}' not found"
        raise AttributeError(msg)
    if is_too_deep(arguments, MESSAGE_DEPTH_MAX):
        raise Invalid("the arguments are nested too deeply", tool=tool.name, depth_max=MESSAGE_DEPTH_MAX)
    use_id = f"tooluse_{tool.name}_{secrets.randbelow(10**9):09d}"
    return {"toolUseId": use_id, "name": tool.name, "input": cast("Json", arguments)}


async def call_recorded(session: ActiveSession, use: ToolUse, override: str | None) -> ToolResult:
    """The tool's result, read from the stored message's event: the window may have dropped the message by now."""
    prompt = [direct_prompt(recorded(use), override)]
    found: list[ToolResult] = []
    async with session.stream(Invocation(prompt=prompt, busy="reject", direct=use)) as events:
        async for event in events:
            if "message" in event:
                found.extend(tool_results(cast("Message", event["message"])))
    return found[0]
