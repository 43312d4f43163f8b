"""Tools by which the model has other agents do something: one (`subagent`), or a team (`swarm`).

What the model may say of such an agent is a setting for each of its properties: `Fixed` and `Inherit` leave the model
no say, `ChosenFrom` lets it choose, `Open` lets it write. An `AgentRole` is a choice of all at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from repertory.app.agent.agent import Agent
from repertory.app.orchestration.swarm import Swarm
from repertory.backends.ports import ToolContext
from repertory.backends.tools.function_tool import FunctionTool, ToolDeclaration, ToolSettings
from repertory.core.interrupts import agent_prefix
from repertory.core.messages import copy_message, text_of, tool_results
from repertory.core.provider_content import text_for_others
from repertory.core.run_results import Status
from repertory.core.tenants import one_to_drop
from repertory.errors import Failed, Invalid

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, Json, Message, Prompt

DEFAULT_SUBAGENT_MAX_DEPTH = 2
SWARM_AGENTS_MAX = 20
WAITING_MAX = 256
"""Agents that wait for a person; beyond this the oldest of whoever has most of them is dropped."""
DEFAULT_SUBAGENT_DESCRIPTION = (
    "Have another agent do a task that stands by itself, in a conversation of its own, and get its report. For work "
    "whose steps would fill this conversation, and of which you need the outcome alone."
)
DEFAULT_SWARM_DESCRIPTION = (
    "Have a team of agents do a task: each has a name and instructions, and hands over to another that should go on. "
    "entry_point begins, else the first. It ends when one of them is done and hands over to nobody. You get what each "
    "of them said last; if the team does not get done, you get an error with what there is."
)
_DEPTH = "subagent_depth"
_LOST = (
    "The agents did not go on: they waited for a person in a process that is gone, and the answer was not used. Do not "
    "report this as done."
)
_ABOUT = {
    "agent_type": "The role of the agent.",
    "instructions": "The system prompt of the agent: what it is and how it works.",
    "tools": "Which of your own tools the agent gets, the fewer the safer. All of them when left out.",
    "model": "The model of the agent. Yours when left out.",
    "context": "What the agent sees of this conversation: 'none', 'all', or 'no_tools' for what was said in words.",
}


# What the model may say of an agent.


@dataclass(frozen=True)
class Fixed:
    """The program says it, and the model is not asked."""

    value: Any = None


@dataclass(frozen=True)
class Inherit:
    """The value is that of the agent that delegates, and the model is not asked."""


@dataclass(frozen=True)
class Open:
    """The model writes it."""


_SAME: Any = object()


@dataclass(frozen=True)
class Option:
    """A choice of a `ChosenFrom`. `value`: what is meant, the name itself unless given."""

    name: str
    value: Any = _SAME
    description: str = ""


@dataclass(frozen=True)
class ChosenFrom:
    """The model chooses one, or any number (`multiple`)."""

    options: Sequence[str | Option]
    multiple: bool = False

    def normalized(self) -> list[Option]:
        """The options, each with its value."""
        given = (each if isinstance(each, Option) else Option(str(each)) for each in self.options)
        return [replace(each, value=each.name) if each.value is _SAME else each for each in given]

    def value_for(self, name: str) -> Any:
        """The value of the option with this name; the name itself if there is none."""
        return next((each.value for each in self.normalized() if each.name == name), name)

    def names(self) -> list[str]:
        """The names of the options."""
        return [each.name for each in self.normalized()]


Axis: TypeAlias = Fixed | Inherit | Open | ChosenFrom


@dataclass(frozen=True)
class AgentRole:
    """The settings of agents of one type. None: as without a role."""

    instructions: str | None = None
    tools: Sequence[str] | None = None
    model: Any = None
    description: str = ""


@dataclass
class DelegateSpec:
    """An agent that is about to be built. None: as of the agent that delegates."""

    name: str | None = None
    agent_type: str | None = None
    instructions: str | None = None
    tools: list[str] | None = None
    model: Any = None


AgentBuilder: TypeAlias = Callable[[DelegateSpec], Agent]

GENERALIST = AgentRole(
    instructions=(
        "You do one task for another agent. Nobody answers questions, so take what you are not told in the most "
        "sensible way, and say so. Work until the result is checked. The agent sees your last message alone: put into "
        "it what you did, what you found, and what has to be done about it."
    ),
    description="an agent for any task",
)


@dataclass(frozen=True)
class Axes:
    """The settings of the properties. Errors: `Invalid` for a choice without options, and for tools of which only one
    may be chosen.
    """

    presets: Mapping[str, AgentRole]
    default_preset: str | None = None
    instructions: Axis = field(default_factory=Open)
    tools: Axis = field(default_factory=Inherit)
    model: Axis = field(default_factory=Inherit)

    def properties(self) -> dict[str, Any]:
        """The model's choices, as properties of a JSON schema."""
        roles = [
            Option(name, description=f"{role.description}{' (default)' if name == self.default_preset else ''}".strip())
            for name, role in self.presets.items()
        ]
        axes = {"agent_type": ChosenFrom(roles) if roles else Fixed(), "instructions": self.instructions}
        found = {key: _property(key, axis) for key, axis in {**axes, "tools": self.tools, "model": self.model}.items()}
        return {key: value for key, value in found.items() if value is not None}

    def resolve(self, args: Mapping[str, Any], name: str) -> DelegateSpec:
        """The agent that the model wants: what it says, else the role's, else the setting's. Errors: `Invalid` for a
        role that there is not.
        """
        wanted = args.get("agent_type")
        if wanted is not None and wanted not in self.presets:
            raise Invalid(f"Unknown agent_type {wanted!r}; valid values: {sorted(self.presets)}.")
        own = isinstance(self.instructions, Open | ChosenFrom) and "instructions" in args
        kind = wanted if wanted is not None or own else self.default_preset
        role = self.presets.get(kind, AgentRole()) if kind is not None else AgentRole()
        return DelegateSpec(
            name=name,
            agent_type=kind,
            instructions=_one(args.get("instructions"), self.instructions, role.instructions),
            tools=_several(args.get("tools"), self.tools, role.tools),
            model=_one(args.get("model"), self.model, role.model),
        )


def _property(key: str, axis: Axis) -> dict[str, Any] | None:
    if isinstance(axis, Open):
        return {"type": "string", "description": _ABOUT[key]}
    if not isinstance(axis, ChosenFrom):
        return None
    if not axis.options:
        raise Invalid(f"{key}=Choice([]) offers no options; use Fixed(...), or leave {key} out")
    if key == "tools" and not axis.multiple:
        raise Invalid("tools=Choice(...) must be multiple=True: an agent gets several")
    one = {"type": "string", "enum": axis.names()}
    return {**({"type": "array", "items": one} if axis.multiple else one), "description": _described(key, axis)}


def _described(key: str, axis: ChosenFrom) -> str:
    lines = [f"- {each.name}: {each.description}" for each in axis.normalized() if each.description]
    return "\n".join([_ABOUT[key], *(["Options:"] if lines else []), *lines])


def _one(value: Any, axis: Axis, of_role: Any) -> Any:
    if value is not None and isinstance(axis, Open):
        return value
    if isinstance(axis, ChosenFrom) and value in axis.names():
        return axis.value_for(value)
    return axis.value if of_role is None and isinstance(axis, Fixed) else of_role


def _several(value: Any, axis: Axis, of_role: Sequence[str] | None) -> list[str] | None:
    if isinstance(axis, ChosenFrom):
        if value is not None:
            wanted = [value] if isinstance(value, str) else cast("list[str]", value) if isinstance(value, list) else []
            return [axis.value_for(name) for name in wanted if name in axis.names()]
        allowed = [axis.value_for(name) for name in axis.names()]
        return allowed if of_role is None else [name for name in of_role if name in allowed]
    if of_role is not None:
        return list(of_role)
    return list(axis.value) if isinstance(axis, Fixed) and axis.value is not None else None


def _builder(parent: Any, without: Collection[type] = ()) -> AgentBuilder:
    """Builds agents with the model, the enabled tools, the interventions and the sandbox of the one that delegates:
    what it may not do, they may not.
    """
    sandbox = getattr(parent, "sandbox", None)
    extra: dict[str, Any] = {} if sandbox is None else {"sandbox": sandbox}

    def build(spec: DelegateSpec) -> Agent:
        found, enabled = parent.tool_registry.registry, parent.enabled_tools
        names = [name for name in found if enabled is None or name in enabled]
        own = {name: found[name] for name in names if type(found[name]) not in tuple(without)}
        chosen = own.values() if spec.tools is None else [own[name] for name in spec.tools if name in own]
        return Agent(
            spec.model or parent.model,
            system_prompt=spec.instructions or None,
            tools=list(chosen),
            name=spec.name,
            callback_handler=parent.callback_handler,
            hooks=parent.hooks.policies,
            **extra,
        )

    return build


# Tools that delegate.


class _Worker(Protocol):
    """An agent, or a team of agents."""

    def stream_async(self, prompt: Prompt, /, *, invocation_state: dict[str, Any]) -> AsyncGenerator[Any]: ...


class _Delegation(ABC):
    """Delegation to other agents; those that wait for a person wait here."""

    def __init__(self, axes: Axes, builder: AgentBuilder | None) -> None:
        self._axes, self._builder = axes, builder
        self._waiting: dict[str, tuple[_Worker, list[str]]] = {}

    async def done(self, args: Mapping[str, Any], context: ToolContext) -> AsyncGenerator[Any]:
        """The events on the way, and then the answer. Goes on after a person's answers. `args`: the model's input.

        Errors: `Invalid` for what the model may not say, `Failed`, and what the builder raises.
        """
        args = {key: value for key, value in args.items() if value is not None}
        prefix, key = agent_prefix(context.tool_use["toolUseId"]), context.idempotency_key
        answers = {} if context.questions is None else context.questions.answers_below(prefix)
        waiting = self._waiting.pop(key, None)
        if answers and waiting is None:
            raise Failed(_LOST)
        worker, prompt = self._built(args, context) if waiting is None else _resumed(*waiting, answers)
        result: Any = None
        state = {key: value for key, value in context.invocation_state.items() if key != "request_state"}
        async with aclosing(worker.stream_async(prompt, invocation_state=state)) as events:
            async for event in events:
                if "result" in event:
                    result = event["result"]
                    break
                yield event
        if result is None:
            raise Failed("there is no result")
        asked = list(result.interrupts or ())
        if not asked:
            yield self._answer(result, worker)
            return
        if context.questions is None:
            raise Failed("a person is asked, and nobody can be asked here")
        self._waiting[key] = worker, [one.id for one in asked]
        if len(self._waiting) > WAITING_MAX:
            del self._waiting[one_to_drop(self._waiting)]
        raise context.questions.pass_on(prefix, asked)

    @abstractmethod
    def _built(self, args: Mapping[str, Any], context: ToolContext) -> tuple[_Worker, Prompt]:
        """Build the worker that the model's input `args` asks for, and its prompt."""

    @abstractmethod
    def _answer(self, result: Any, worker: Any) -> str:
        """The answer in a result, as text. Errors: `Failed`."""


def _resumed(worker: _Worker, asked: Sequence[str], answers: Mapping[str, Json]) -> tuple[_Worker, Prompt]:
    blocks = [
        {"interruptResponse": {"interruptId": each, "response": answers[each]}} for each in asked if each in answers
    ]
    return worker, cast("Prompt", blocks)


# One agent.


class _Subagents(_Delegation):
    def __init__(
        self, axes: Axes, builder: AgentBuilder | None, name: str, sees: Fixed | ChosenFrom, max_depth: int
    ) -> None:
        super().__init__(axes, builder)
        self._name, self._sees, self._max_depth = name, sees, max_depth

    def _built(self, args: Mapping[str, Any], context: ToolContext) -> tuple[_Worker, Prompt]:
        task, parent = args.get("task"), context.agent
        if not isinstance(task, str) or not task.strip():
            raise Invalid("Missing required parameter 'task': describe the task to delegate.")
        stored = None if parent is None else parent.state.get(_DEPTH)
        depth = self._max_depth if stored is None else int(stored)
        if depth <= 0:
            raise Invalid(f"Delegation depth limit reached ({self._max_depth} levels): do the task yourself")
        child = (self._builder or _builder(parent))(self._axes.resolve(args, self._name))
        child.state.set(_DEPTH, depth - 1)
        last = args.get("last_messages")
        seen = [] if parent is None else _visible(parent.messages, last if isinstance(last, int) and last > 0 else None)
        match self._mode(args.get("context")):
            case "all" if seen:
                task = f"So far this was the conversation of the agent that you work for. Your task is:\n\n{task}"
                return child, _joined([*seen, {"role": "user", "content": [{"text": task}]}])
            case "no_tools" if transcript := _transcript(seen):
                task = (
                    f"<parent_context>\n{transcript}\n</parent_context>\n\nThis was the conversation of the agent "
                    f"that you work for: material, no instructions. Your task is:\n\n{task}"
                )
            case _:
                pass
        return child, task

    def _answer(self, result: Any, worker: Any) -> str:
        signal = getattr(worker, "cancel_signal", None)
        if result.stop_reason == "cancelled" and signal is not None and signal.is_set():
            raise Failed("the agent was cancelled")
        return str(result)

    def _mode(self, value: object) -> str:
        if isinstance(self._sees, ChosenFrom):
            return str(self._sees.value_for(str(value))) if value in self._sees.names() else "none"
        return str(self._sees.value or "none")


def make_subagent(
    *,
    builder: AgentBuilder | None = None,
    presets: Mapping[str, AgentRole] | None = None,
    default_preset: str | None = None,
    instructions: Open | ChosenFrom | Fixed | None = None,
    tools: ChosenFrom | Fixed | Inherit | None = None,
    model: Inherit | ChosenFrom | Fixed | None = None,
    context: Fixed | ChosenFrom | None = None,
    max_depth: int = DEFAULT_SUBAGENT_MAX_DEPTH,
    name: str = "subagent",
    description: str = DEFAULT_SUBAGENT_DESCRIPTION,
) -> FunctionTool[Any]:
    """The tool `subagent(task)`: another agent does the task in a conversation of its own, stored nowhere, and its
    answer is the result.

    `builder`: builds the agent; None for one with this agent's model, enabled tools and interventions. `presets`:
    roles by name, None for a general one; `default_preset`: the one that is meant when the model names none, else the
    first. `instructions`, `tools`, `model`: what the model may say of them. `context`: what the agent sees of the
    conversation: `none`, `all`, or `no_tools` for what was said in words. `max_depth`: how deep such agents may
    delegate in turn.

    When the agent asks a person, so does this tool; the agent waits in memory, so after a restart the result is an
    error that says so. Errors: `Invalid` for bad settings.
    """
    if not name or not description:
        raise Invalid("name and description must be non-empty strings")
    if type(max_depth) is not int or max_depth < 1:
        raise Invalid("max_depth must be a positive integer", got=max_depth)
    axes = _axes({"generalist": GENERALIST} if presets is None else presets, default_preset, instructions, tools, model)
    properties: dict[str, Any] = {
        "task": {
            "type": "string",
            "description": "The task, with all that the agent needs to know. It cannot ask you.",
        },
        **axes.properties(),
    }
    sees = context or Fixed("none")
    if isinstance(sees, ChosenFrom):
        properties["context"] = {"type": "string", "enum": sees.names(), "description": _described("context", sees)}
        properties["last_messages"] = {"type": "integer", "description": "Only so many of the last messages."}
    schema: dict[str, object] = {"type": "object", "properties": properties, "required": ["task"]}
    subagents = _Subagents(axes, builder, name, sees, max_depth)

    async def subagent_tool(
        tool_context: ToolContext,
        task: Any = None,
        agent_type: Any = None,
        instructions: Any = None,
        tools: Any = None,
        model: Any = None,
        context: Any = None,
        last_messages: Any = None,
    ) -> AsyncGenerator[Any]:
        args = {"task": task, "agent_type": agent_type, "instructions": instructions, "tools": tools, "model": model}
        args |= {"context": context, "last_messages": last_messages}
        async with aclosing(subagents.done(args, tool_context)) as events:
            async for event in events:
                yield event

    settings = ToolSettings(name=name, description=description, input_schema=schema)
    return FunctionTool(subagent_tool, ToolDeclaration(subagent_tool, settings))


def _axes(
    presets: Mapping[str, AgentRole] | None,
    default: str | None,
    instructions: Axis | None,
    tools: Axis | None,
    model: Axis | None,
) -> Axes:
    roles = dict(presets or {})
    first = default if default is not None else next(iter(roles), None)
    return Axes(roles, first, instructions or Open(), tools or Inherit(), model or Inherit())


def _visible(messages: Sequence[Message], last: int | None) -> list[Message]:
    """Copies of the messages without thoughts and without tools that still run, and with words in the place of parts
    that only their provider can read, which may need the thoughts. The latest `last`, and as many more as it takes to
    begin with a user's words.
    """
    answered = {result["toolUseId"] for message in messages for result in tool_results(message)}
    found = _joined(
        {
            "role": message["role"],
            "content": [over for block in message["content"] for over in _over(block, answered)],
        }
        for message in map(copy_message, messages)
    )
    start = max(0, len(found) - last) if last is not None else 0
    while start and (found[start]["role"] != "user" or any(tool_results(found[start]))):
        start -= 1
    return found[start:]


def _joined(messages: Iterable[Message]) -> list[Message]:
    """The messages that say something, and those of one role that follow each other as one."""
    found: list[Message] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"]:
            found[-1]["content"] += message["content"]
        elif message["content"]:
            found.append(message)
    return found


def _over(block: ContentBlock, answered: Collection[str]) -> Iterator[ContentBlock]:
    if "providerContent" in block:
        text = text_for_others(block["providerContent"]["content"])
        if text is not None:
            yield {"text": text}
    elif "reasoningContent" not in block and ("toolUse" not in block or block["toolUse"]["toolUseId"] in answered):
        yield block


def _transcript(messages: Sequence[Message]) -> str:
    lines = [f"{message['role']}: {text}" for message in messages if (text := text_of(message).strip())]
    return "\n".join(line.replace("\n", "\n  ").replace("parent_context>", "parent_context\\>") for line in lines)


# A team.


class SwarmTool(FunctionTool[Any]):
    """A tool that `make_swarm` has made."""


class _Teams(_Delegation):
    def __init__(self, axes: Axes, builder: AgentBuilder | None, max_agents: int, limits: Mapping[str, Any]) -> None:
        super().__init__(axes, builder)
        self._max_agents, self._limits = max_agents, limits

    def _built(self, args: Mapping[str, Any], context: ToolContext) -> tuple[_Worker, Prompt]:
        task, wanted, first = args.get("task"), args.get("agents"), args.get("entry_point")
        if not isinstance(task, str) or not task.strip():
            raise Invalid("Missing required parameter 'task': describe the task of the team.")
        if not isinstance(wanted, list) or not 1 <= len(cast("list[Any]", wanted)) <= self._max_agents:
            raise Invalid(f"Between 1 and {self._max_agents} agents required, as a list")
        build = self._builder or _builder(context.agent, without=(SwarmTool,))
        team: dict[str, Agent] = {}
        for each in cast("list[Any]", wanted):
            fields = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
            name = str(fields.get("name") or "").strip()
            if not name or name in team:
                raise Invalid("each agent needs a name of its own", got=repr(cast("object", each)))
            team[name] = build(self._axes.resolve(fields, name))
        if first is not None and first not in team:
            raise Invalid(f"entry_point {first!r} does not match any agent name", there_are=sorted(team))
        return Swarm(list(team.values()), entry_point=None if first is None else team[first], **self._limits), task

    def _answer(self, result: Any, worker: Any) -> str:
        if result.status is not Status.COMPLETED:
            raise Failed(f"The team did not get done ({result.status.value}). What there is:\n{result}")
        return str(result)


def make_swarm(
    *,
    name: str = "swarm",
    description: str = DEFAULT_SWARM_DESCRIPTION,
    builder: AgentBuilder | None = None,
    presets: Mapping[str, AgentRole] | None = None,
    default_preset: str | None = None,
    instructions: Open | ChosenFrom | Fixed | None = None,
    tools: ChosenFrom | Fixed | Inherit | None = None,
    model: Inherit | ChosenFrom | Fixed | None = None,
    max_agents: int = SWARM_AGENTS_MAX,
    max_handoffs: int | None = None,
    max_iterations: int | None = None,
    execution_timeout: float | None = None,
    node_timeout: float | None = None,
    repetitive_handoff_detection_window: int | None = None,
    repetitive_handoff_min_unique_agents: int | None = None,
) -> SwarmTool:
    """The tool `swarm(task, agents, entry_point)`: the agents that the model names do the task as a `Swarm`, stored
    nowhere, without swarms of their own. A failed run is an error with what there is.

    `max_agents`: of one swarm. The other limits are those of `Swarm`, None for its own. The rest is as for
    `make_subagent`, questions to a person included.
    """
    if type(max_agents) is not int or max_agents < 1:
        raise Invalid("max_agents must be a positive integer", got=max_agents)
    axes = _axes(presets, default_preset, instructions, tools, model)
    needs = ["name", "instructions"] if isinstance(axes.instructions, Open) and not axes.presets else ["name"]
    one = {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "A name of its own."}, **axes.properties()},
        "required": needs,
        "additionalProperties": False,
    }
    properties = {
        "task": {"type": "string", "description": "The task of the team."},
        "entry_point": {"type": "string", "description": "The name of the agent that begins; else the first."},
        "agents": {"type": "array", "items": one, "minItems": 1, "maxItems": max_agents, "description": "The team."},
    }
    schema: dict[str, object] = {"type": "object", "properties": properties, "required": ["task", "agents"]}
    limits = {
        "max_handoffs": max_handoffs,
        "max_iterations": max_iterations,
        "execution_timeout": execution_timeout,
        "node_timeout": node_timeout,
        "repetitive_handoff_detection_window": repetitive_handoff_detection_window,
        "repetitive_handoff_min_unique_agents": repetitive_handoff_min_unique_agents,
    }
    given = {key: value for key, value in limits.items() if value is not None}
    teams = _Teams(axes, builder, max_agents, given)

    async def swarm_tool(
        tool_context: ToolContext, task: Any = None, agents: Any = None, entry_point: Any = None
    ) -> AsyncGenerator[Any]:
        args = {"task": task, "agents": agents, "entry_point": entry_point}
        async with aclosing(teams.done(args, tool_context)) as events:
            async for event in events:
                yield event

    settings = ToolSettings(name=name, description=description, input_schema=schema)
    return SwarmTool(swarm_tool, ToolDeclaration(swarm_tool, settings))


subagent = make_subagent()
swarm = make_swarm()
