"""Tools that run in the background: which calls do, what the model is shown of them, and what a restart does with them.

A call in the background has a result at once, which names a task; its real result comes later (`core/deferral.py`), in
the running turn or in one that tells it. The task is a `BackgroundRun` in the journal from before it begins until its
result is there, so that a process which is killed meanwhile loses none.

Source: names, settings and the flag in a tool's input are those of the Strands Agents SDK 1.62, so its programs run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from msgspec import Struct

from repertory.core.turns.turn_start import UNKNOWN_TEXT
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.deferral import BackgroundRun, DeferredTool
    from repertory.core.journal.records import DeferredResult
    from repertory.core.journal.steps import RecordedStep
    from repertory.core.messages import Json, ToolSpec
    from repertory.core.turns.turn_start import UnknownOutcome

FLAG = "_background_execution"
"""The property of a tool's input by which the model chooses the background."""
MANAGE = "strands_manage_background_task"
"""The name of the tool by which the model looks after its tasks."""
CONCURRENCY = 4
"""Background tools of a session that run at once, unless the program says otherwise."""
CONCURRENCY_MAX = 1000
CUT_TEXT = "Cancelled before it ended."
_FOREGROUND = frozenset((MANAGE, "summarize_context", "truncate_context", "pin_context"))
"""Tools whose work is over before the next model call, or has no meaning after it."""
_COMPOSED = frozenset(("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"))

Mode = Literal["never", "agentic", "always"]


class BackgroundTasksConfig(TypedDict, total=False):
    """The tools that run in the background, for `Agent(background_tasks=...)`. Tools are named, or given themselves.

    Attributes:
        wait_for_completion: True: a call returns when its background tools have ended and the model has had their
            results. False: it returns with the model's answer, and a turn of its own tells results that come later.
        agentic: The tools of which the model decides at each call; `["*"]`, the default, for all others.
        always: The tools that always run in the background.
        never: The tools that never do.
        max_concurrency: The tools of one session that run at once; others wait. 4 unless you say otherwise.
        timeout: The seconds that a run may take in one life of the process. No bound unless you say otherwise.

    Examples:
        >>> from repertory import Agent, BackgroundTasksConfig, ScriptedModel, tool
        >>> @tool(effects=False)
        ... async def count(shelf: int) -> str:
        ...     '''Count the books.'''
        ...     return "40 books"
        >>> asked = {"toolUse": {"name": "count", "input": {"shelf": 1}}}
        >>> model = ScriptedModel([asked, "I am counting.", "Forty."])
        >>> tasks = BackgroundTasksConfig(always=["count"], max_concurrency=2)
        >>> print(Agent(model, tools=[count], background_tasks=tasks)("How many?"))
        Forty.
    """

    wait_for_completion: bool
    agentic: Sequence[object]
    always: Sequence[object]
    never: Sequence[object]
    max_concurrency: int
    timeout: float


class BackgroundPolicy(Struct, frozen=True, kw_only=True):
    """`BackgroundTasksConfig`, checked."""

    modes: Mapping[str, Mode]
    """The mode of each tool that is named; `*` for all others."""
    waits: bool = True
    concurrency: int = CONCURRENCY
    timeout_s: float = math.inf

    def mode(self, name: str, *, declared: bool) -> tuple[Mode, bool]:
        """The mode of a tool, and True if it is meant itself rather than one of all others. `declared`: it says itself
        that it runs in the background.
        """
        if name in _FOREGROUND:
            return "never", False
        if name in self.modes:
            return self.modes[name], True
        return ("always", True) if declared else (self.modes.get("*", "never"), False)


def read_policy(given: object) -> BackgroundPolicy | None:
    """The checked settings; None for `None` and False. Errors: `Invalid`."""
    if given is None or given is False:
        return None
    if given is not True and not isinstance(given, Mapping):
        raise Invalid("background_tasks is True, False, None or a BackgroundTasksConfig", got=type(given).__name__)
    config = cast("Mapping[str, object]", {} if given is True else given)
    known = BackgroundTasksConfig.__annotations__
    if unknown := sorted(str(name) for name in config if name not in known):
        raise Invalid("background_tasks has unknown keys", unknown=unknown, known=sorted(known))
    waits, at_once = config.get("wait_for_completion", True), config.get("max_concurrency", CONCURRENCY)
    if not isinstance(waits, bool):
        raise Invalid("wait_for_completion is True or False", got=waits)
    if isinstance(at_once, bool) or not isinstance(at_once, int) or not 1 <= at_once <= CONCURRENCY_MAX:
        raise Invalid("max_concurrency is a number from 1 to 1,000", got=at_once)
    timeout_s = config.get("timeout", math.inf)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise Invalid("timeout is a positive number of seconds", got=timeout_s)
    return BackgroundPolicy(modes=_modes(config), waits=waits, concurrency=at_once, timeout_s=float(timeout_s))


DECLARED_ALONE = BackgroundPolicy(modes={})
"""Only tools that say so themselves run in the background."""


def _modes(config: Mapping[str, object]) -> dict[str, Mode]:
    """Errors: `Invalid` for a tool in two lists, and for what names no tool."""
    modes: dict[str, Mode] = {}
    others = "*" in _names(config, "always") or "*" in _names(config, "never")
    agentic = _names(config, "agentic") if "agentic" in config or others else ("*",)
    chosen: tuple[tuple[Mode, Sequence[str]], ...] = (
        ("agentic", agentic),
        ("always", _names(config, "always")),
        ("never", _names(config, "never")),
    )
    for mode, names in chosen:
        for name in names:
            if modes.setdefault(name, mode) != mode:
                raise Invalid("a tool has one mode of execution", tool=name, modes=[modes[name], mode])
    return modes


def _names(config: Mapping[str, object], key: str) -> tuple[str, ...]:
    given = config.get(key, ())
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise Invalid(f"{key} is a list of tools or of their names", got=given)
    return tuple(_name(key, each) for each in cast("Sequence[object]", given))


def _name(key: str, given: object) -> str:
    name: object = given if isinstance(given, str) else getattr(given, "tool_name", getattr(given, "name", None))
    if not isinstance(name, str) or not name:
        raise Invalid(f"{key} has tools or their names", got=given)
    return name


# What the model is shown, and what it asks for.


def unfit(policy: BackgroundPolicy, name: str, spec: ToolSpec, *, able: bool) -> str | None:
    """The reason for which an agent with these rules cannot have this tool; None if it can. `able`: the tool can run in
    the background. Only a tool that the rules name has to.
    """
    if _has_flag(_schema(spec)):
        return f"Tool '{name}' has a parameter '{FLAG}', by which the model chooses the background"
    mode = policy.modes.get(name, "never")
    if mode == "never" or name == MANAGE:
        return None
    if not able or name in _FOREGROUND:
        return f"Tool '{name}' cannot run in the background"
    if mode == "agentic" and selectable(spec) is None:
        return f"The model cannot choose the background for tool '{name}': its schema is composed, or no object"
    return None


def _schema(spec: ToolSpec) -> dict[str, object]:
    return cast("dict[str, object]", spec.get("inputSchema", {}).get("json", {}))


def _has_flag(schema: Mapping[str, object]) -> bool:
    return any(
        FLAG in cast("Sequence[object]", names)
        for names in (schema.get("properties"), schema.get("required"))
        if isinstance(names, dict | list)
    )


def selectable(spec: ToolSpec) -> ToolSpec | None:
    """The definition with the flag by which the model chooses the background; None if the schema cannot take it."""
    schema = _schema(spec)
    properties = schema.get("properties", {})
    if _COMPOSED & schema.keys() or schema.get("type", "object") != "object" or not isinstance(properties, dict):
        return None
    if _has_flag(schema):
        return None
    about = "True runs the tool in the background: you get the id of a task at once, and the result later."
    flag = {"type": "boolean", "description": about}
    extended = {**schema, "type": "object", "properties": {**cast("dict[str, object]", properties), FLAG: flag}}
    return cast("ToolSpec", {**spec, "inputSchema": {"json": extended}})


class TaskRoute(Struct, frozen=True, kw_only=True):
    """The way of one tool use."""

    background: bool
    input: Json
    """The input without the flag."""
    refusal: str | None = None
    """The result, if the use cannot run so."""


def route(
    policy: BackgroundPolicy, name: str, given: Json, *, declared: bool, able: bool, here: bool = True
) -> TaskRoute:
    """The way of a tool use with this input. `declared`: the tool says itself that it runs in the background; `able`:
    it can. `here`: False where there is no background, so that each tool runs at once.
    """
    chosen = False
    if isinstance(given, dict) and FLAG in given:
        chosen_by_model, given = given[FLAG], {key: each for key, each in given.items() if key != FLAG}
        if not isinstance(chosen_by_model, bool):
            return TaskRoute(background=False, input=given, refusal=f"'{FLAG}' must be a boolean")
        chosen = chosen_by_model
    mode, meant = policy.mode(name, declared=declared)
    if mode == "never" or not here or not (mode == "always" or chosen):
        return TaskRoute(background=False, input=given)
    if not able:
        return TaskRoute(
            background=False, input=given, refusal=f"Tool '{name}' cannot run in the background" if meant else None
        )
    return TaskRoute(background=True, input=given)


def acknowledgement(task_id: str, tool: str, *, waits: bool) -> str:
    """The result that the model gets at once. `waits`: others run, and it begins behind them."""
    status = "queued" if waits else "working"
    return (
        f"Background task dispatched.\n\nTask ID: {task_id}\nTool: {tool}\nStatus: {status}\n\n"
        "It runs while you go on. You get its result as soon as it has ended, without asking for it."
    )


MANAGE_SPEC: ToolSpec = {
    "name": MANAGE,
    "description": (
        "List the background tasks, get the status of one, wait until it has ended, or cancel it. Each result comes to"
        " you by itself, so do not ask for it again and again. Wait only if nothing else is left to do."
    ),
    "inputSchema": {
        "json": {
            "type": "object",
            "properties": {
                "mode": {"type": "string", "enum": ["list", "get", "wait", "cancel"]},
                "task_id": {
                    "type": "string",
                    "description": "The task's id. Needed by get and cancel; wait without it is for the next one.",
                },
            },
            "required": ["mode"],
        }
    },
}

TaskStatus = Literal["queued", "working", "input_required", "completed", "failed"]


def status_of(tool: DeferredTool | DeferredResult) -> TaskStatus:
    """The status of a task that runs, or has its result and was not told it."""
    run = getattr(tool, "run", None)
    if run is None:
        return "completed" if cast("DeferredResult", tool).result["status"] == "success" else "failed"
    if run.asks:
        return "input_required"
    return "working" if run.attempt else "queued"


def task_list(
    deferred: Mapping[str, DeferredTool], came: Mapping[str, DeferredResult]
) -> Iterator[tuple[str, str, TaskStatus]]:
    """The id, the tool and the status of each task, the oldest first of those that have ended, then of the others."""
    for task_id, result in came.items():
        if result.ran:
            yield task_id, result.name, status_of(result)
    for task_id, tool in deferred.items():
        if tool.run is not None:
            yield task_id, tool.tool, status_of(tool)


# A run whose process was killed.


class Fails(Struct, frozen=True):
    """The run is over, with this text as its result."""

    text: str


AfterRestart = Literal["run", "ask"] | Fails
"""The decision on a run that another life of the process has begun: it runs (again), a person is asked, or it fails."""


def after_restart(
    run: BackgroundRun,
    *,
    exists: bool,
    repeatable: bool,
    steps: Mapping[str, RecordedStep],
    unknown_outcome: UnknownOutcome,
) -> AfterRestart:
    """`exists`: the agent has the tool; `repeatable`: it may run again without anybody being asked."""
    if not exists:
        return Fails(UNKNOWN_TEXT if run.attempt else "Not run: the agent has this tool no more.")
    if not run.attempt:
        return "run"
    if repeatable:
        # A step whose end nobody knows is asked about before the tool runs, and in the background nobody can be.
        return "ask" if unknown_outcome == "ask" and any(step.is_in_doubt for step in steps.values()) else "run"
    if unknown_outcome == "fail":
        return Fails(UNKNOWN_TEXT)
    return "run" if unknown_outcome == "retry" else "ask"
