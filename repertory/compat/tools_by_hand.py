"""The SDK's registry of tools that belongs to no agent, and its loader of files."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from copy import copy
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any, ParamSpec, cast

import typing_extensions
from msgspec import structs
from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.backends.sdk_members import text_result
from repertory.backends.tools.decorator import tool as function_tool
from repertory.backends.tools.function_tool import FunctionTool, ToolDeclaration
from repertory.compat.foreign_tools import (
    UNUSABLE,
    ForeignObject,
    ToolProvider,
    decorated_tools,
    described_tool,
    foreign_tools,
    load_now,
    load_tools_from_module_path,
    module_of_file,
)
from repertory.compat.tool_schemas import normalize_tool_spec
from repertory.core.messages import ToolSpec
from repertory.core.tools import exception_text
from repertory.errors import Invalid
from repertory.logs import WARNING, note

_log = logging.getLogger("repertory.tools")
P = ParamSpec("P")


_PARAMETERS = re.compile(r"(args|arguments|params?|parameters):", re.IGNORECASE)
_AFTER = re.compile(
    r"(returns?|yields?|raises?|except|exceptions|examples?|notes?|see also|seealso|references|ref):", re.IGNORECASE
)


def _description(function: object) -> str:
    """A docstring as the SDK shows it to the model: without what stands between its parameters and one of these words,
    at any depth.
    """
    lines: list[str] = []
    inside = False
    for line in (inspect.getdoc(function) or "").splitlines():
        head = line.strip()
        inside = bool(_PARAMETERS.match(head)) or (inside and not _AFTER.match(head))
        if not inside:
            lines.append(line)
    return "\n".join(lines).strip()


class TextTool(FunctionTool[Any]):
    """A function tool whose model is told what its function returns as text, as the SDK does it."""

    result_of = staticmethod(text_result)

    @staticmethod
    def text_of_error(error: BaseException) -> str:
        """An error as the SDK shows it to the model: that of a wrong value without its class."""
        text = exception_text(error)
        return text.replace(f"{type(error).__name__} - ", "", 1) if isinstance(error, ValueError) else text

    def __init__(self, function: Any, declaration: ToolDeclaration) -> None:
        if declaration.settings.description is None:
            described = structs.replace(declaration.settings, description=_description(function))
            declaration.settings = described
        super().__init__(function, declaration)

    @property
    def _tool_func(self) -> Callable[..., Any]:
        """The function, under the name by which tests of the SDK's packages call it."""
        return self._function

    @property
    def _metadata(self) -> FunctionToolMetadata:
        return FunctionToolMetadata.of(self)

    def stand_in(self, name: str, spec: ToolSpec, function: Callable[..., Any]) -> TextTool:
        """Another function as a tool of this one's parameters."""
        declaration = copy(self._declaration)
        declaration.settings = structs.replace(declaration.settings, name=name)
        declaration.take(spec)
        return TextTool(function, declaration)


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _with_names(function: Any) -> None:
    """Let each of `*args` and `**kwargs` be one more parameter."""
    if not inspect.isfunction(function):
        return
    signature = inspect.signature(function)
    given = list(signature.parameters.values())
    named = [each.replace(kind=each.KEYWORD_ONLY) if each.kind in _MANY else each for each in given]
    if named != given:
        cast("Any", function).__signature__ = signature.replace(parameters=named)


def _decorated(decorate: Callable[..., Any], name: str | None, function: object) -> Any:
    _with_names(function)
    made = decorate(function).of_kind(TextTool)
    return made if name is None else made.stand_in(name, {**made.spec, "name": name}, made._tool_func)


def _as_text(make: Callable[P, Any]) -> Callable[P, Any]:
    @wraps(make)
    def made(*arguments: P.args, **options: P.kwargs) -> Any:
        for each in arguments:
            _with_names(each)
        name: Any = options.get("name")
        dotted = isinstance(name, str) and "." in name
        if dotted:  # Few providers take such a name; code that calls tools does.
            cast("dict[str, Any]", options)["name"] = name.replace(".", "_")
        found = make(*arguments, **options)
        if isinstance(found, FunctionTool):
            return cast("FunctionTool[Any]", found).of_kind(TextTool)
        return partial(_decorated, found, name if dotted else None)

    return made


text_tool: Any = _as_text(cast("Callable[..., Any]", function_tool))
"""`tool`, for programs of the SDK: a dictionary, a model of pydantic and the like become JSON text."""


class FunctionToolMetadata:
    """The spec that a decorated function would have."""

    def __init__(self, func: Callable[..., Any], context_param: str | None = None) -> None:
        self.tool: TextTool = text_tool(func, context=context_param or False)

    @classmethod
    def of(cls, tool: TextTool) -> FunctionToolMetadata:
        """The metadata of a decorated function."""
        found = cls.__new__(cls)
        found.tool = tool
        return found

    def extract_metadata(self) -> ToolSpec:
        """Name, description and JSON schema."""
        return cast("ToolSpec", {**self.tool.tool_spec})


class _EveryFunctionTool(type):
    def __call__(
        cls, tool_name: str, tool_spec: ToolSpec, tool_func: Callable[..., Any], metadata: FunctionToolMetadata
    ) -> TextTool:
        return metadata.tool.stand_in(tool_name, tool_spec, tool_func)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, FunctionTool)


class DecoratedFunctionTool(FunctionTool[Any], metaclass=_EveryFunctionTool):
    """The class of decorated functions. A call makes a tool of `tool_func`, with the parameters of `metadata`."""


class ToolOfConfig(TypedDict):
    """A tool in a configuration of tools."""

    spec: ToolSpec


class ToolsByHand:
    """Tools by name, put together by hand. The one of an agent is `agent.tool_registry`."""

    NewToolDict = ToolOfConfig

    def __init__(self) -> None:
        self.registry: dict[str, ForeignObject] = {}
        self.dynamic_tools: dict[str, ForeignObject] = {}
        """The tools of `registry` whose `is_dynamic` is true."""
        self._tool_providers: list[ToolProvider] = []
        self._registry_id = f"repertory-{token_hex(8)}"

    def process_tools(self, tools: Iterable[Any]) -> list[str]:
        """Add tools in any form that `Agent(tools=...)` takes, and give their names.

        Errors: `ValueError` for what cannot be loaded, and for a name twice. What is no tool is logged and left out.
        """
        names: list[str] = []
        for given in tools:
            if isinstance(given, list | tuple | set | frozenset):
                names += self.process_tools(cast("Iterable[Any]", given))
                continue
            for tool in self._loaded(given):
                self.register_tool(tool)
                names.append(tool.tool_name)
        return names

    def _loaded(self, given: Any) -> Iterable[ForeignObject]:
        if hasattr(given, "tool_name"):
            return [given]
        if callable(as_tool := getattr(given, "as_tool", None)):
            return [cast("ForeignObject", as_tool())]
        try:
            if all(hasattr(given, member) for member in ("load_tools", "add_consumer", "remove_consumer")):
                self._tool_providers.append(given)
                given.add_consumer(self._registry_id)
                return load_now(given)
            found = foreign_tools(given)
        except Invalid:
            raise
        except UNUSABLE as error:
            raise Invalid(f"Failed to load tool {given}: {error}") from error
        if found is None:
            note(_log, WARNING, "not a tool", given=type(given).__name__ if not isinstance(given, str | int) else given)
        return cast("list[ForeignObject]", found or [])

    def register_tool(self, tool: ForeignObject) -> None:
        """Add a tool. Errors: `ValueError` for a name twice, unless the new tool says `supports_hot_reload`, and for
        one that differs from another only by hyphens and underscores.
        """
        name = tool.tool_name
        if name in self.registry:
            if not getattr(tool, "supports_hot_reload", False):
                raise ValueError(f"Tool name '{name}' already exists. Cannot register tools with exact same name.")
        else:
            for other in self.registry:
                if other.replace("-", "_") == name.replace("-", "_"):
                    text = f"Tool name '{name}' already exists as '{other}'."
                    raise ValueError(f"{text} Cannot add a duplicate tool which differs by a '-' or '_'")
        self._put(tool)

    def register_dynamic_tool(self, tool: ForeignObject) -> None:
        """Add a tool that was made while the program ran. Errors: `ValueError` for a name twice."""
        if tool.tool_name in self.registry:
            raise ValueError(f"Tool '{tool.tool_name}' already exists")
        self.registry[tool.tool_name] = self.dynamic_tools[tool.tool_name] = tool

    def replace(self, new_tool: ForeignObject) -> None:
        """Put a tool in the place of the one of its name. Errors: `ValueError` if there is none."""
        if new_tool.tool_name not in self.registry:
            raise ValueError(f"Cannot replace tool '{new_tool.tool_name}' - tool does not exist")
        self._put(new_tool)

    def _put(self, tool: ForeignObject) -> None:
        self.registry[tool.tool_name] = tool
        self.dynamic_tools.pop(tool.tool_name, None)
        if getattr(tool, "is_dynamic", False):
            self.dynamic_tools[tool.tool_name] = tool

    def load_tool_from_filepath(self, tool_name: str, tool_path: str) -> None:
        """Add the tools of a Python file. Errors: `ValueError`."""
        try:
            tools = _tools_at(tool_path, tool_name)
        except UNUSABLE as error:
            raise Invalid(f"Failed to load tool {tool_name}: {error}") from error
        for tool in tools:
            _mark_dynamic(tool)
            self.register_tool(tool)

    def get_tools_dirs(self) -> list[Path]:
        """The folders whose files are tools: `tools` in the working directory, if it is there."""
        folder = Path.cwd() / "tools"
        return [folder] if folder.is_dir() else []

    def discover_tool_modules(self) -> dict[str, Path]:
        """The Python files of these folders, by name."""
        files = (path for folder in self.get_tools_dirs() for path in sorted(folder.glob("*.py")))
        return {path.stem: path for path in files if path.name != "__init__.py"}

    def initialize_tools(self, load_tools_from_directory: bool = False) -> None:
        """Add the tools of these folders, if told to. A file that cannot be loaded is logged and left out."""
        for name in self.discover_tool_modules() if load_tools_from_directory else ():
            try:
                self.reload_tool(name)
            except (FileNotFoundError, Invalid) as error:
                note(_log, WARNING, "a file with tools could not be loaded", error, tool=name)

    def reload_tool(self, tool_name: str) -> None:
        """Read a file of these folders again; its tools replace those of their names.

        Errors: `FileNotFoundError`; `ValueError` for a file that cannot be loaded.
        """
        path = self.discover_tool_modules().get(tool_name)
        if path is None:
            raise FileNotFoundError(f"no file for this tool in the folders of tools: {tool_name}")
        try:
            tools = _tools_at(str(path), tool_name)
        except UNUSABLE as error:
            raise Invalid(f"Failed to load tool {tool_name}: {error}") from error
        for tool in tools:
            _mark_dynamic(tool)
            if tool.tool_name in self.registry:
                self._put(tool)
            else:
                self.register_tool(tool)

    def get_all_tools_config(self) -> dict[str, ToolSpec]:
        """The complete spec of each tool, by name. A tool whose spec is not valid is logged and left out."""
        found: dict[str, ToolSpec] = {}
        for name, tool in self.registry.items():
            try:
                spec = normalize_tool_spec(tool.tool_spec)
                self.validate_tool_spec(spec)
            except ValueError as error:
                note(_log, WARNING, "a tool's spec is not valid", error, tool=name)
            else:
                found[name] = spec
        return found

    def get_all_tool_specs(self) -> list[ToolSpec]:
        """The complete spec of each tool. A tool whose spec is not valid is logged and left out."""
        return list(self.get_all_tools_config().values())

    def validate_tool_spec(self, tool_spec: ToolSpec) -> None:
        """Complete the schema of a spec in its place; see `normalize_schema`.

        Errors: `ValueError` for a spec without name, description or schema, and for a schema of too many levels.
        """
        missing = [key for key in ("name", "description", "inputSchema") if key not in tool_spec]
        if missing:
            raise Invalid("a tool spec has a name, a description and an inputSchema", missing=missing)
        schema = cast("dict[str, Any]", tool_spec["inputSchema"])
        inner = schema if "json" in schema else {"json": schema}
        tool_spec["inputSchema"] = normalize_tool_spec({**tool_spec, "inputSchema": cast("Any", inner)})["inputSchema"]

    def cleanup(self) -> None:
        """Let the providers of tools go. Errors: the one that the first of them raises, after all were told."""
        with ExitStack() as stack:
            for provider in self._tool_providers:
                stack.callback(provider.remove_consumer, self._registry_id)


def _mark_dynamic(tool: ForeignObject) -> None:
    mark = getattr(tool, "mark_dynamic", None)
    if mark is not None:
        mark()


class ToolLoader:
    """Loads tools of files and modules, where the caller names the function."""

    @staticmethod
    @typing_extensions.deprecated("ToolLoader.load_tools is deprecated: use load_tools_from_file_path")
    def load_tools(tool_path: str, tool_name: str) -> list[ForeignObject]:
        """The tools of a Python file. Errors: `FileNotFoundError`; `ValueError` for another kind of file; as
        `load_python_tools`.
        """
        return _tools_at(tool_path, tool_name)

    @staticmethod
    @typing_extensions.deprecated("ToolLoader.load_tool is deprecated: use load_tools_from_file_path")
    def load_tool(tool_path: str, tool_name: str) -> ForeignObject:
        """The first of `load_tools`."""
        return _tools_at(tool_path, tool_name)[0]

    @staticmethod
    @typing_extensions.deprecated("ToolLoader.load_python_tools is deprecated: use load_tool_from_string")
    def load_python_tools(tool_path: str, tool_name: str) -> list[ForeignObject]:
        """The tools of a Python file, or of `package.module:function`.

        Errors: `ImportError`; `AttributeError` for a file without tools and a function that is not there; `TypeError`
        and `ValueError` for a function that is no tool.
        """
        return _python_tools(tool_path, tool_name)

    @staticmethod
    @typing_extensions.deprecated("ToolLoader.load_python_tool is deprecated: use load_tool_from_string")
    def load_python_tool(tool_path: str, tool_name: str) -> ForeignObject:
        """The first of `load_python_tools`."""
        return _python_tools(tool_path, tool_name)[0]


def _tools_at(tool_path: str, tool_name: str) -> list[ForeignObject]:
    path = Path(tool_path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"Tool file not found: {tool_path}")
    if path.suffix != ".py":
        raise Invalid(f"Unsupported tool file type: {path.suffix}")
    return _python_tools(tool_path, tool_name)


def _python_tools(tool_path: str, tool_name: str) -> list[ForeignObject]:
    path = Path(tool_path).expanduser()
    name, _, function = tool_path.partition(":")
    if function and not path.exists():
        return [_of_module(name, function)]
    module = module_of_file(path.resolve(), tool_name)
    found = decorated_tools(module)
    if found:
        return cast("list[ForeignObject]", found)
    for member, what in (("TOOL_SPEC", "TOOL_SPEC"), (tool_name, "function")):
        if not hasattr(module, member):
            raise AttributeError(f"Tool {tool_name} missing {what}")
    if not callable(getattr(module, tool_name)):
        raise TypeError(f"Tool {tool_name} function is not callable")
    return [described_tool(module, tool_name)]


def _of_module(path: str, function: str) -> ForeignObject:
    try:
        module = import_module(path)
    except ImportError as error:
        raise ImportError(f"Failed to import module {path}: {error}") from error
    if not hasattr(module, function):
        raise AttributeError(f"Module {path} has no function named {function}")
    try:
        return cast("ForeignObject", load_tools_from_module_path(f"{path}:{function}")[0])
    except Invalid as error:
        raise Invalid(f"Function {function} in {path} is not a valid tool: decorate it with @tool") from error
