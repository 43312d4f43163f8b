"""Tools in the forms of the Strands Agents SDK: its tool objects, modules with `TOOL_SPEC`, files, providers.

Nothing of that SDK is imported: an object is known by its members.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from secrets import token_hex
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast

from anyio.from_thread import run as run_in_loop

from repertory.backends.sdk_members import ForeignObject, SdkMembers, ToolProvider, running_call
from repertory.backends.tools.function_tool import FunctionTool, tool_threads
from repertory.backends.worker_threads import run_foreign
from repertory.core.interrupts import Interrupt, agent_prefix, question_in
from repertory.core.messages import Json, ToolResult, ToolSpec, ToolUse, error_result
from repertory.core.tools import exception_text, normal_spec, tool_result
from repertory.errors import Invalid, RepertoryError
from repertory.logs import WARNING, note

if TYPE_CHECKING:
    from repertory.backends.ports import ToolContext

_log = logging.getLogger("repertory.tools")

answers_of_call: ContextVar[Mapping[str, Json] | None] = ContextVar("repertory_answers_of_call", default=None)
"""The answers to the questions that the tool object which runs now has passed on, by their ids in the agent that asked:
the SDK's tools look for them at that agent.
"""

UNUSABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    RepertoryError,
)
"""The errors that a file, a module or a provider without usable tools may raise."""

MODULE_PREFIX = "_repertory_tool_"
"""The prefix of the names in `sys.modules` of files with tools."""


class NotPython(Invalid, ImportError):
    """A file that was to be loaded is no Python file."""


class ForeignTool(SdkMembers):
    """A tool of the SDK as one of ours. Its effects are not known, so its start is durable before it runs."""

    effects = True
    idempotent = False
    timeout_s: float | None = None

    def __init__(self, name: str, call: _Call) -> None:
        self._call = call
        self.name = name

    @property
    def spec(self) -> ToolSpec:
        """The tool's present spec, with the schema inside `{"json": ...}`."""
        return normal_spec(self._given_spec())

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """Run once. Exceptions become results with status `error`; cancellation and questions to a person pass on."""
        use_id = tool_use["toolUseId"]
        token = running_call.set(context)
        try:
            value = await self._call(tool_use, _invocation_state(context), context)
            return {**tool_result(use_id, value, bytes_max=context.result_bytes), "toolUseId": use_id}
        except Exception as error:
            if question_in(error) is not None:
                raise
            note(_log, WARNING, "tool failed", error, tool=self.name, tool_use=use_id)
            if context.on_exception is not None:
                context.on_exception(error)
            return error_result(use_id, exception_text(error))
        finally:
            running_call.reset(token)


class ModuleTool(ForeignTool):
    """A function that is called with the tool use and the keywords of the call, and the spec that says what it does."""

    tool_type = "python"
    supports_hot_reload = True

    def __init__(self, tool_name: str, tool_spec: ToolSpec, tool_func: Callable[..., Any]) -> None:
        async def call(tool_use: ToolUse, state: dict[str, Any], context: ToolContext) -> object:
            del context
            if inspect.iscoroutinefunction(tool_func):
                return await tool_func(tool_use, **state)
            return await tool_threads().run(lambda: tool_func(tool_use, **state))

        super().__init__(tool_name, call)
        self._assigned_spec = tool_spec

    def _given_spec(self) -> ToolSpec:
        return self._assigned_spec

    def _take_spec(self, spec: ToolSpec) -> None:
        self._assigned_spec = spec


class _Call(Protocol):
    async def __call__(self, tool_use: ToolUse, state: dict[str, Any], context: ToolContext, /) -> object: ...


def foreign_tools(given: object) -> list[object] | None:
    """The tools that an object of another form stands for; None if it is none of them.

    Errors: `Invalid` for a file, module or name without tools; what importing it raises.
    """
    if isinstance(given, str | Path | Mapping):
        try:
            if isinstance(given, Mapping):
                return _described(cast("Mapping[str, object]", given))
            return load_tool_from_string(given) if isinstance(given, str) else load_tools_from_file_path(given)
        except Invalid as error:
            raise Invalid(f"Failed to load tool {given}: {error}") from error
    if isinstance(given, ModuleType):
        return load_tools_from_module(given, given.__name__.rpartition(".")[2])
    if is_sdk_tool(given):
        return [ObjectTool(given)]
    if _has(given, "load_tools", "add_consumer", "remove_consumer") and not hasattr(given, "connect"):
        return _provided(cast("ToolProvider", given))
    return None


def is_sdk_tool(given: object) -> TypeGuard[ForeignObject]:
    """True for a tool object of the SDK, and not one of ours that has its members too."""
    return not isinstance(given, type) and not hasattr(given, "run") and _has(given, "tool_name", "tool_spec", "stream")


class ToolFolder:
    """The tools of each Python file in a folder, by the files' names. A file that has none, or that cannot be imported,
    is logged and left out; the tools of its earlier contents stay.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, tuple[int, int]] = {}
        """The time of each file's last change, and its size."""

    def changed(self) -> list[object]:
        """The tools of the files that are new or changed since the last call. Files that these import do not count."""
        found: list[object] = []
        for path in sorted(self._folder.glob("*.py")) if self._folder.is_dir() else ():
            if path.name == "__init__.py":
                continue
            try:
                about = path.stat()
                mark = (about.st_mtime_ns, about.st_size)
                if self._seen.get(path) != mark:
                    self._seen[path] = mark
                    found += load_tools_from_file_path(path)
            except UNUSABLE as error:
                note(_log, WARNING, "a file with tools could not be loaded", error, file=str(path))
        return found

    async def renew(self, register: Callable[[object], None]) -> None:
        """Register the tools that have changed, instead of those of the same names."""
        for tool in await run_foreign(self.changed):
            register(tool)


# ------------------------------------------------------------------------------------------------------------ by form


class ObjectTool(ForeignTool):
    """A tool object of the SDK."""

    def __init__(self, tool: ForeignObject) -> None:
        async def call(tool_use: ToolUse, state: dict[str, Any], context: ToolContext) -> object:
            if asyncio_runs():
                return await _last_of(tool, tool_use, state, context)
            # Its tools are written for asyncio: elsewhere they have a loop of their own, in a thread.
            partial = _FromThread(context)
            return await run_foreign(lambda: asyncio.run(_last_of(tool, tool_use, state, partial)), grace_s=0)

        super().__init__(tool.tool_name, call)
        self._tool = tool
        self.tool_type = str(getattr(tool, "tool_type", "function"))
        self.supports_hot_reload = bool(getattr(tool, "supports_hot_reload", False))

    def _given_spec(self) -> ToolSpec:
        return self._tool.tool_spec

    def _take_spec(self, spec: ToolSpec) -> None:
        cast("Any", self._tool).tool_spec = spec

    def __getattr__(self, name: str) -> Any:
        """The other attributes are those of the program's own object, which it looks for in `tool_registry`."""
        if name.startswith("__") or "_tool" not in vars(self):
            raise AttributeError(name)
        return getattr(self._tool, name)


async def _last_of(tool: ForeignObject, tool_use: ToolUse, state: dict[str, Any], context: Any) -> object:
    result: object = None
    prefix = agent_prefix(tool_use["toolUseId"])
    answers_of_call.set({} if context.questions is None else context.questions.answers_below(prefix))
    async with aclosing(cast("Any", tool.stream(tool_use, state))) as events:
        async for event in events:
            fields = _fields(event)
            if "tool_interrupt_event" in fields:
                asked = fields["tool_interrupt_event"]["interrupts"]
                if context.questions is None or not all(isinstance(each, Interrupt) for each in asked):
                    raise _interrupted(asked)
                raise context.questions.pass_on(prefix, asked)
            result = fields.get("tool_result", event)
            if "tool_result" in fields:
                break
            if context.on_partial is not None and not ("toolUseId" in fields and "content" in fields):
                streamed = fields.get("tool_stream_event")
                await context.on_partial(event if streamed is None else _fields(streamed).get("data"))
    return result


def _interrupted(interrupts: Sequence[Any]) -> Exception:
    names = ", ".join(str(getattr(each, "name", each)) for each in interrupts)
    return Invalid(
        "the SDK's own tools cannot ask a person here: decorate the function with repertory's @tool", asked=names
    )


def _fields(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def load_tools_from_module(module: ModuleType, module_name: str) -> list[object]:
    """Decorated functions; without any, the function that `TOOL_SPEC` describes.

    Errors: `Invalid` for a module without either, and for a `TOOL_SPEC` without its function.
    """
    found = decorated_tools(module)
    if found:
        return found
    if not isinstance(getattr(module, "TOOL_SPEC", None), Mapping):
        how_to = "decorate a function with @tool, or write TOOL_SPEC and a function of the module's name"
        raise Invalid(f"The module {module_name} is not a valid module: {how_to}")
    if not hasattr(module, module_name):
        raise Invalid(f"Module-based tool {module_name} missing function {module_name}")
    if not callable(getattr(module, module_name)):
        raise Invalid(f"Tool {module_name} function is not callable")
    return [described_tool(module, module_name)]


def decorated_tools(module: ModuleType) -> list[object]:
    """The decorated functions of a module, ours and the SDK's, in the order of their names."""
    found: list[object] = []
    for _, each in sorted(vars(module).items()):
        if isinstance(each, FunctionTool):
            found.append(cast("object", each))
        elif is_sdk_tool(each) and type(each).__name__ == "DecoratedFunctionTool":
            found.append(ObjectTool(each))
    return found


def described_tool(module: ModuleType, function: str) -> ModuleTool:
    """The tool that a module's `TOOL_SPEC` describes, and that a function of it is."""
    spec = cast("ToolSpec", vars(module)["TOOL_SPEC"])
    return ModuleTool(str(spec["name"]), spec, cast("Callable[..., Any]", getattr(module, function)))


def load_tool_from_string(tool_string: str) -> list[object]:
    """Load the tools of `./file.py`, `package.module` or `package.module:function`."""
    path = Path(tool_string).expanduser()
    if path.exists():
        return load_tools_from_file_path(path)
    return load_tools_from_module_path(tool_string)


def load_tools_from_module_path(module_tool_path: str) -> list[object]:
    """Load the tools of `package.module`, or `package.module:function`."""
    path, _, function = module_tool_path.partition(":")
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        how_to = "give a tool, the path of a file with tools, or the name of a module"
        raise Invalid(f'Tool string: "{module_tool_path}" is not a valid tool string: {how_to}') from error
    if not function:
        return load_tools_from_module(module, path.rpartition(".")[2])
    found = getattr(module, function, None)
    if isinstance(found, FunctionTool):
        return [found]
    if is_sdk_tool(found):
        return [ObjectTool(found)]
    raise Invalid("the module has no tool of this name", module=path, name=function)


def load_tools_from_file_path(tool_path: str | Path) -> list[object]:
    """The tools of a Python file. Errors: `Invalid` for a file that is none, or has none; what running it raises."""
    path = Path(tool_path).expanduser().resolve()
    return load_tools_from_module(module_of_file(path, path.stem), path.stem)


def module_of_file(path: Path, name: str) -> ModuleType:
    """A Python file run as a module that only this process knows, under its own prefix: a file with the name of another
    module, such as `json`, leaves that module alone. It may import the files beside it.

    Errors: `NotPython`; what running it raises.
    """
    if path.suffix != ".py":
        raise NotPython(f"Could not create spec for {name}: not a Python file", path=str(path))
    key = f"{MODULE_PREFIX}{name}"
    loader = _SourceLoader(name, str(path))
    module = module_from_spec(ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    sys.modules[key] = module
    sys.path.insert(0, str(path.parent))
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(key, None)
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


class _SourceLoader(SourceFileLoader):
    """Compiles a file each time: Python's cache takes two edits within a second for one."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _described(given: Mapping[str, object]) -> list[object] | None:
    """Load the tools of `{"path": ...}`, perhaps with the `name` of one of its tools."""
    if not isinstance(given.get("path"), str):
        return None
    found = load_tool_from_string(cast("str", given["path"]))
    name = given.get("name")
    if name is None:
        return found
    named = [tool for tool in found if getattr(tool, "name", None) == name]
    if not named:
        raise Invalid(f'Tool "{name}" not found in "{given["path"]}"')
    return named


def _provided(provider: ToolProvider) -> list[object]:
    """A provider's tools, loaded now, for as long as one of them is there."""
    consumer = f"repertory-{token_hex(8)}"
    provider.add_consumer(consumer)
    tools = [ObjectTool(each) for each in load_now(provider)]
    if tools:
        weakref.finalize(tools[0], provider.remove_consumer, consumer)
    else:
        provider.remove_consumer(consumer)
    return list(tools)


def load_now(provider: ToolProvider) -> Sequence[ForeignObject]:
    """A provider's tools, loaded in a thread with a loop of its own, as the SDK does it."""

    async def load() -> Sequence[ForeignObject]:
        return await provider.load_tools()

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, load()).result()


# ------------------------------------------------------------------------------------------- what such a tool is given


def _invocation_state(context: ToolContext) -> dict[str, Any]:
    """The keywords that the SDK gives to its tools: the call's own, the agent, and what the agent is made of."""
    agent = context.agent
    state: dict[str, Any] = dict(context.invocation_state)
    state["agent"] = agent
    if hasattr(agent, "tool_registry"):  # A program that calls a tool by hand may give anything as its agent.
        specs = [{"toolSpec": spec} for spec in agent.tool_registry.get_all_tool_specs()]
        state |= {
            "model": agent.model,
            "messages": agent.messages,
            "system_prompt": agent.system_prompt,
            "tool_config": {"tools": specs, "toolChoice": {"auto": {}}},
        }
    return state


class _FromThread:
    """A context whose pieces of the result are sent from another thread."""

    def __init__(self, context: ToolContext) -> None:
        self.on_partial = None if context.on_partial is None else self._send
        self.questions = context.questions
        self._to: Callable[[object], Any] | None = context.on_partial

    async def _send(self, piece: object) -> None:
        assert self._to is not None
        run_in_loop(self._to, piece)


def asyncio_runs() -> bool:
    """True if the calling code runs in asyncio's event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _has(given: object, *members: str) -> bool:
    return all(hasattr(type(given), member) or member in getattr(given, "__dict__", ()) for member in members)
