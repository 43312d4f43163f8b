"""The SDK's functions for specs and schemas of tools: checking them, completing them, making them from types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

from pydantic import BaseModel

from repertory.backends.ports import ToolContext
from repertory.backends.sdk_members import SdkMembers
from repertory.backends.tools.structured_output import PydanticSchema
from repertory.core.messages import ToolResult, ToolSpec, ToolUse, error_result
from repertory.core.tools import exception_text
from repertory.errors import Invalid

NAME_CHARS_MAX = 64
SCHEMA_DEPTH_MAX = 64
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_COMPOSED = ("anyOf", "oneOf", "allOf", "not")


class InvalidToolUseName(Invalid):
    """The model called a tool by a name that no tool can have."""


def validate_tool_use_name(tool: ToolUse) -> None:
    """Check a name. Errors: `InvalidToolUseName` for none, other characters than `a-z A-Z 0-9 _ -`, or more than 64."""
    name: object = tool.get("name")
    if not name:
        raise InvalidToolUseName("tool name missing", use=tool)
    if not _NAME.fullmatch(str(name)):
        raise InvalidToolUseName("invalid tool name pattern: letters, digits, _ and - are allowed", name=name)
    if len(str(name)) > NAME_CHARS_MAX:
        raise InvalidToolUseName("invalid tool name length", name=name, characters_max=NAME_CHARS_MAX)


def validate_tool_use(tool: ToolUse) -> None:
    """Check the name in a tool use. Errors: those of `validate_tool_use_name`."""
    validate_tool_use_name(tool)


def normalize_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an object's schema in which every property has a type and a description, and every object its
    `properties` and `required`.

    Errors: `Invalid` for more than 64 levels.
    """
    _check_depth(schema, 0)
    return _whole(schema)


def _check_depth(schema: object, depth: int) -> None:
    if depth > SCHEMA_DEPTH_MAX:
        raise Invalid(f"the schema's nesting exceeds {SCHEMA_DEPTH_MAX} levels")
    inside = _fields(_fields(schema).get("properties"))
    for each in inside.values():
        _check_depth(each, depth + 1)


def _whole(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = _fields(schema.get("properties"))
    return {
        **deepcopy(dict(schema)),
        "type": schema.get("type", "object"),
        "properties": {name: _property(name, each) for name, each in properties.items()},
        "required": list(schema.get("required", ())),
    }


def _property(name: str, given: object) -> dict[str, Any]:
    schema = _fields(given)
    if "$ref" in schema:
        return schema
    if schema.get("type") == "object" and "properties" in schema:
        return _whole(schema)
    whole = {**schema, "description": schema.get("description", f"Property {name}")}
    if not any(word in schema for word in (*_COMPOSED, "type")):
        whole["type"] = "string"
    return whole


def normalize_tool_spec(tool_spec: ToolSpec) -> ToolSpec:
    """A copy of a tool spec whose schema is complete, and inside `{"json": ...}`. Errors: as `normalize_schema`."""
    spec = deepcopy(tool_spec)
    given = _fields(spec.get("inputSchema"))
    if given:
        inner = given.get("json")
        spec["inputSchema"] = cast(
            "Any",
            {"json": normalize_schema(given)} if inner is None else {**given, "json": normalize_schema(_fields(inner))},
        )
    return spec


def _fields(value: object) -> dict[str, Any]:
    return dict(cast("dict[str, Any]", value)) if isinstance(value, Mapping) else {}


# ------------------------------------------------------------------------------------------------- structured output


def convert_pydantic_to_tool_spec(model: type[BaseModel], description: str | None = None) -> ToolSpec:
    """The tool spec by which a model fills in this type: without references, and with null for what may be left out.

    Errors: `Invalid` for a type that contains itself.
    """
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    whole = _plain(schema, definitions, ())
    for name, each in whole.get("properties", {}).items():
        if each.get("type") == "object" and "properties" in each:
            whole["properties"][name] = _described(each)
    return {
        "name": model.__name__,
        "description": description or str(schema.get("description") or f"{model.__name__} structured output tool"),
        "inputSchema": {"json": whole},
    }


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """An object's schema below the top: its field's description says what it is."""
    basic = {key: schema[key] for key in ("type", "properties", "required") if key in schema}
    return {**basic, "description": schema.get("description", "")}


def _plain(schema: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_plain(each, definitions, inside) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    reference = fields.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in inside:
            raise Invalid("Circular reference detected and not supported", of=name)
        beside = {key: each for key, each in fields.items() if key != "$ref"}
        return {**_plain(definitions[name], definitions, (*inside, name)), **_plain(beside, definitions, inside)}
    found = {key: _plain(each, definitions, inside) for key, each in fields.items()}
    properties = _fields(found.get("properties"))
    if properties:
        required = found.get("required", ())
        found["properties"] = {
            name: _nullable(each, optional=name not in required) for name, each in properties.items()
        }
    return found


def _nullable(schema: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    """A property in which a choice between null and something else is that with null among its types."""
    choices = cast("list[dict[str, Any]]", schema.get("anyOf", []))
    others = [each for each in choices if each.get("type") != "null"]
    if len(others) == 1 and len(choices) == 2 and not _is_closed(others[0]):
        described = {key: schema[key] for key in ("description",) if key in schema}
        return {**others[0], **described, "type": [others[0].get("type"), "null"]}
    kind = schema.get("type")
    if optional and isinstance(kind, str) and kind != "null" and not _is_closed(schema):
        return {**schema, "type": [kind, "null"]}
    return schema


def _is_closed(schema: Mapping[str, Any]) -> bool:
    return "enum" in schema or "const" in schema


class StructuredOutputTool(SdkMembers):
    """The tool by which a model gives a value of a type: `Agent(structured_output_model=...)` has one of its own."""

    tool_type = "structured_output"
    effects = False
    idempotent = True
    timeout_s: float | None = None

    def __init__(self, structured_output_model: type[BaseModel]) -> None:
        self._structured_output_model = structured_output_model
        self._schema = PydanticSchema(structured_output_model)
        self.name = structured_output_model.__name__
        made = convert_pydantic_to_tool_spec(structured_output_model)
        about = f"Gives the final result. Call it last, and once. {made['description']}"
        self.spec: ToolSpec = {**made, "description": about}

    @property
    def structured_output_model(self) -> type[BaseModel]:
        """The type."""
        return self._structured_output_model

    def _take_spec(self, spec: ToolSpec) -> None:
        self.spec = spec

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """Say whether the input is such a value; the result of one is its JSON text."""
        try:
            _, text = self._schema.read(tool_use["input"])
        except Invalid as error:
            if context.on_exception is not None:
                context.on_exception(error)
            return error_result(tool_use["toolUseId"], exception_text(error))
        return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": text}]}
