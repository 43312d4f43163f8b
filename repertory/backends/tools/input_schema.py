"""The input of a tool: the JSON schema for the model, and the check of what the model sends.

This file imports pydantic, so it is imported when a tool's schema is first needed and never before.

The input is described as a typed dictionary rather than as a model class: its keys may be any parameter names
(`schema`, `copy`, `_x`), and a key that the model leaves out stays out, so the function's own default applies.
"""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Optional, cast

import pydantic
import pydantic_core
import typing_extensions
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ErrorDetails

from repertory.errors import Invalid

PROBLEMS_MAX = 8
"""The most faults of one input that the model is told at a time."""
_VALUE_TEXT_MAX = 80
_NOTHING = inspect.Parameter.empty


class InputSchema:
    """The input of one tool: `json_schema` for the model, `read` for what it sends."""

    def __init__(
        self,
        tool_name: str,
        function: Callable[..., Any],
        parameters: tuple[inspect.Parameter, ...],
        descriptions: Mapping[str, str],
    ) -> None:
        """Errors: `Invalid`, naming the parameter whose annotation cannot be resolved or has no JSON schema."""
        self._tool_name = tool_name
        self._names = tuple(parameter.name for parameter in parameters)
        plain = (each for each in parameters if not isinstance(each.default, FieldInfo))
        self._defaults = {each.name: each.default for each in plain if each.default is not _NOTHING}
        self._field_defaults = {each.name: each.default for each in parameters if isinstance(each.default, FieldInfo)}
        fields = {
            parameter.name: _field(parameter, _annotation(tool_name, function, parameter), descriptions)
            for parameter in parameters
        }
        adapter = _adapter(tool_name, fields)
        self._validate = adapter.validator.validate_python
        self._dump = adapter.dump_python
        self.json_schema: Mapping[str, object] = _json_schema(adapter)

    def read(self, value: object) -> dict[str, Any]:
        """The arguments for the function, converted by its annotations, without those left out.

        The result is a copy, so a tool that edits its arguments edits no history. Null counts as an empty object.
        Errors: `Invalid`, one clause per faulty field, in words that a model can act on.
        """
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise Invalid(
                f"input of {self._tool_name}: must be an object, not {type(value).__name__}; {self._fields()}"
            )
        try:
            read = cast("dict[str, Any]", self._validate(_copied(cast("object", value))))
        except pydantic.ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            text = "; ".join(_problem(problem) for problem in problems[:PROBLEMS_MAX])
            more = f"; and {len(problems) - PROBLEMS_MAX} more" if len(problems) > PROBLEMS_MAX else ""
            raise Invalid(f"input of {self._tool_name}: {text}{more}; {self._fields()}") from None
        for name, field in self._field_defaults.items():
            read.setdefault(name, _default_of(field))
        return read

    def seen(self, value: object) -> object:
        """The input as JSON, as the function gets it: converted, and with the defaults of what is left out. Those who
        decide about the call look at this: "5000" for a number is 5000. Errors: those of `read`, and any of the types.
        """
        read = self.read(value)
        dumped: dict[str, Any] = self._dump(read, mode="json", by_alias=True, warnings=False)
        for name, default in self._defaults.items():
            if name not in read:
                with suppress(pydantic_core.PydanticSerializationError):  # A default need not be JSON.
                    dumped[name] = pydantic_core.to_jsonable_python(default)
        return dumped

    def _fields(self) -> str:
        return f"its fields are: {', '.join(self._names) or 'none'}"


def _field(parameter: inspect.Parameter, annotation: Any, descriptions: Mapping[str, str]) -> Any:
    """The annotation of one key: optional when the parameter has a default, with its description."""
    default: Any = parameter.default
    field = default if isinstance(default, FieldInfo) else None
    description = _description(annotation)
    if field is not None:
        default = _default_of(field)
        description = field.description if description is None else description
        for constraint in field.metadata:
            annotation = Annotated[annotation, constraint]
    if description is None:
        description = descriptions.get(parameter.name) or f"Parameter {parameter.name}"
    settings: dict[str, Any] = {"description": description}
    if default is _NOTHING:
        return Annotated[annotation, pydantic.Field(**settings)]
    if default is None:
        annotation = Optional[annotation]  # noqa: UP045 - the operand is a value, which `|` need not accept
    if _is_json(default) and (field is None or field.default_factory is None):
        settings["json_schema_extra"] = {"default": default}
    return typing_extensions.NotRequired[Annotated[annotation, pydantic.Field(**settings)]]


def _default_of(field: FieldInfo) -> Any:
    """The default of a parameter that is written as `= Field(...)`."""
    return _NOTHING if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def _annotation(tool_name: str, function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation as an object. Each one is resolved alone: those of injected parameters need not resolve at all."""
    if parameter.annotation is _NOTHING:
        return Any
    holder = type("Holder", (), {"__annotations__": {"it": parameter.annotation}})
    global_names, local_names = _namespaces(function)
    try:
        return typing.get_type_hints(holder, global_names, local_names, include_extras=True)["it"]
    except (NameError, SyntaxError, TypeError, AttributeError) as error:
        raise Invalid(
            "a tool parameter's annotation cannot be resolved; define or import its type where the module can see it",
            tool=tool_name,
            parameter=parameter.name,
            annotation=parameter.annotation,
        ) from error


def _namespaces(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names available to a function's annotations: its module's, and those of its closure."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    enclosed = dict(zip(code.co_freevars, cells, strict=False)) if code is not None else {}
    local_names = {name: cell.cell_contents for name, cell in enclosed.items() if _is_filled(cell)}
    return getattr(function, "__globals__", {}), local_names


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _adapter(tool_name: str, fields: Mapping[str, Any]) -> pydantic.TypeAdapter[Any]:
    # A misspelt optional field must not be ignored silently. A tool without fields has none to misspell, and some
    # models cannot help sending one.
    config = pydantic.ConfigDict(extra="forbid" if fields else "ignore", arbitrary_types_allowed=False)
    dictionary = _dictionary(fields)
    dictionary.__pydantic_config__ = config
    try:
        return pydantic.TypeAdapter(dictionary)
    except PydanticUserError as error:
        raise _no_schema(tool_name, fields) from error


def _dictionary(fields: Mapping[str, Any]) -> Any:
    make: Any = typing_extensions.TypedDict
    return make("ToolInput", dict(fields))


def _no_schema(tool_name: str, fields: Mapping[str, Any]) -> Invalid:
    return Invalid(
        "a tool parameter's type has no JSON schema; use types that JSON can say",
        tool=tool_name,
        parameters=[name for name, annotation in fields.items() if not _has_schema(name, annotation)],
    )


def _has_schema(name: str, annotation: Any) -> bool:
    dictionary = _dictionary({name: annotation})
    try:
        pydantic.TypeAdapter(dictionary).json_schema()
    except PydanticUserError:
        return False
    return True


class _Schema(GenerateJsonSchema):
    """JSON schema without titles that only repeat the keys: a schema's tokens are paid for in every model call."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _json_schema(adapter: pydantic.TypeAdapter[Any]) -> dict[str, object]:
    schema = adapter.json_schema(schema_generator=_Schema)
    schema.pop("title", None)
    schema.pop("additionalProperties", None)
    fields = schema.setdefault("properties", {})
    for name in fields.keys() - schema.get("required", ()):
        fields[name] = _without_null(fields[name])
    for each in fields.values():
        if each.get("additionalProperties") is True:  # as it is without
            del each["additionalProperties"]
    return schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without its choice of null, which a key that may be left out does not need. It is still read."""
    choices: list[dict[str, Any]] = schema.get("anyOf", [])
    others = [choice for choice in choices if choice.get("type") != "null"]
    if len(choices) != 2 or len(others) != 1:
        return schema
    return {**others[0], **{key: value for key, value in schema.items() if key != "anyOf"}}


def _problem(problem: ErrorDetails) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            return f"{path}: field required"
        case "extra_forbidden":
            return f"{path}: no such field"
        case _:
            return f"{path}: {problem['msg']} (got {_excerpt(problem['input'])})"


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_TEXT_MAX else f"{text[:_VALUE_TEXT_MAX]}..."


def _description(annotation: Any) -> str | None:
    """The text in `Annotated[int, "text"]` or `Annotated[int, Field(description="text")]`."""
    for extra in getattr(annotation, "__metadata__", ()):
        if isinstance(extra, str):
            return extra
        if isinstance(extra, FieldInfo) and extra.description:
            return extra.description
    return None


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _copied(value: object) -> object:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in cast("dict[object, object]", value).items()}
    if isinstance(value, list):
        return [_copied(item) for item in cast("list[object]", value)]
    return value
