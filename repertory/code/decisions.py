"""The interface that code is given, and the values that cross between code and tools. Pure."""

from __future__ import annotations

import builtins
import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Json, ToolResult, ToolSpec

_DEPTH_MAX = 3
"""Levels of a schema that a signature spells out; below stands `dict`."""
_BREADTH_MAX = 12
"""Choices, alternatives and fields that a signature spells out."""
_DESCRIPTION_CHARS_MAX = 300
_PARAMETER_CHARS_MAX = 120
_KINDS = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict",
    "array": "list",
}
_WORDS: Mapping[str, Json] = {"True": True, "False": False, "None": None}
_PLAIN = frozenset(("int", "float", "bool", "None", "list", "dict"))
"""The types of returned values that a tool's text is read back as."""
_TAKEN = frozenset(dir(builtins)) | frozenset(keyword.kwlist)


class CodeFunction(Struct, frozen=True):
    """A tool as code sees it."""

    name: str
    """The name in code."""
    tool: str
    """The name of the tool."""
    parameters: tuple[str, ...]
    """The names of its parameters, in the order in which values without a name are given."""
    signature: str
    summary: str
    returns: str = ""
    """The type of what it returns, as a word of Python; empty if it is not known."""


def functions_of(specs: Iterable[ToolSpec], returns: Mapping[str, str]) -> Mapping[str, CodeFunction]:
    """The functions for these tools, by their names in code. Of two tools whose names are the same in code, the first
    one is there. `returns`: the types of what tools return, by their names, as far as they are known.
    """
    found: dict[str, CodeFunction] = {}
    for spec in specs:
        name = code_name(spec["name"])
        if name not in found:
            found[name] = _function(name, spec, returns.get(spec["name"], ""))
    return found


def code_name(tool: str) -> str:
    """The name of a tool in code: a Python name that hides no builtin."""
    name = re.sub(r"\W", "_", tool) or "_"
    if name[0].isdigit():
        name = f"_{name}"
    return f"{name}_" if name in _TAKEN else name


def interface_text(functions: Mapping[str, CodeFunction]) -> str:
    """The functions as a description has them."""
    return "\n".join(f"{each.signature}\n{each.summary}" for each in functions.values())


def _function(name: str, spec: ToolSpec, returns: str) -> CodeFunction:
    schema = _fields(_fields(spec["inputSchema"]).get("json"))
    properties, required = _fields(schema.get("properties")), set(_items(schema.get("required")))
    ordered = sorted(properties, key=lambda each: each not in required)  # Stable: those that must be given come first.
    parts: list[str] = []
    notes: list[str] = []
    for each in ordered:
        about = _fields(properties[each])
        kind = type_text(about, _fields(schema.get("$defs")))
        default = "" if each in required else f" = {about['default']!r}" if "default" in about else " = None"
        parts.append(f"{each}: {kind}{default}")
        note = about.get("description")
        # `@tool` makes up the latter.
        if isinstance(note, str) and note.strip() not in ("", f"Parameter {each}"):
            notes.append(f"    # {each}: {_short(note, _PARAMETER_CHARS_MAX)}")
    signature = f"async def {name}({', '.join(parts)}){f' -> {returns}' if returns else ''}"
    summary = "\n".join((f"    # {_short(spec['description'], _DESCRIPTION_CHARS_MAX)}", *notes))
    return CodeFunction(name, spec["name"], tuple(ordered), signature, summary, returns)


def type_text(schema: Mapping[str, object], defs: Mapping[str, object], depth: int = 0) -> str:
    """The type of a JSON schema, in Python's words. Bounded in depth and breadth: servers of others give schemas."""
    if depth > _DEPTH_MAX:
        return _KINDS.get(str(schema.get("type")), "Any")
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return type_text(_fields(defs.get(reference.rpartition("/")[2])), defs, depth + 1)
    options = _items(schema.get("anyOf")) or _items(schema.get("oneOf"))
    if not options and isinstance(schema.get("type"), list):
        options = [{**schema, "type": each} for each in _items(schema.get("type"))]
    if options:
        names = (type_text(_fields(each), defs, depth + 1) for each in options[:_BREADTH_MAX])
        return " | ".join(dict.fromkeys(names))
    choices = _items(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
    if 0 < len(choices) <= _BREADTH_MAX:
        return f"Literal[{', '.join(map(repr, choices))}]"
    kind = schema.get("type")
    items, properties = _fields(schema.get("items")), _fields(schema.get("properties"))
    if kind == "array":
        return f"list[{type_text(items, defs, depth + 1)}]" if items else "list"
    if kind == "object" and 0 < len(properties) <= _BREADTH_MAX:
        fields = (f"{name!r}: {type_text(_fields(about), defs, depth + 1)}" for name, about in properties.items())
        return f"{{{', '.join(fields)}}}"
    return _KINDS.get(kind, "Any") if isinstance(kind, str) else "Any"


def bound_arguments(function: CodeFunction, args: Sequence[Json], named: Mapping[str, Json]) -> dict[str, Json]:
    """The input of a call. Errors: `Invalid`, in the words that Python has for such a call."""
    if len(args) > len(function.parameters):
        count = len(function.parameters)
        raise Invalid(f"{function.name}() takes {count} positional arguments but {len(args)} were given")
    given = dict(zip(function.parameters, args, strict=False))
    for name in named:
        if name in given:
            raise Invalid(f"{function.name}() got multiple values for argument '{name}'")
    return {**given, **named}


def value_in(result: ToolResult, returns: str) -> Json:
    """The value that code gets for a result that is no error: the JSON of a tool that gives some, else its text.
    `returns`: the type that the tool returns, as `CodeFunction` has it.
    """
    blocks = result["content"]
    if len(blocks) == 1 and "json" in blocks[0]:
        return cast("Json", blocks[0]["json"])
    text = words_of_result(result)
    if len(blocks) != 1 or "text" not in blocks[0]:
        return text
    if returns in _PLAIN:
        return _WORDS[text] if text in _WORDS else _read(text)
    return _read(text) if not returns and text[:1] in ("{", "[") else text


def words_of_result(result: ToolResult) -> str:
    """The words of a result. Pictures and documents are named."""
    parts: list[str] = []
    for block in result["content"]:
        if "text" in block:
            parts.append(str(block["text"]))
        elif "json" in block:
            parts.append(json.dumps(block["json"], ensure_ascii=False))
        else:
            parts.append(f"[{', '.join(block)}: code cannot see it; call the tool directly]")
    return "\n".join(parts)


class CodeOutput:
    """The text that code has printed, up to a bound. What follows is counted."""

    def __init__(self, bytes_max: int) -> None:
        self._room = bytes_max
        self._parts: list[str] = []
        self._omitted = 0

    def add(self, text: str) -> None:
        """Take a piece."""
        size = len(text.encode(errors="replace"))
        if size > self._room:
            part = text.encode(errors="replace")[: self._room].decode(errors="ignore")
            self._omitted += size - len(part.encode())
            text, size = part, self._room
        self._room -= size
        self._parts.append(text)

    def text(self, error: str = "") -> str:
        """The whole text. `error`: the end of code that failed."""
        printed = "".join(self._parts).rstrip("\n")
        if self._omitted:
            printed += f"\n[{self._omitted:,} more bytes were printed and left out: print less]"
        if not error:
            return printed or "(The code has printed nothing.)"
        return f"{printed}\n\n{error}" if printed else error


def _read(text: str) -> Json:
    try:
        return cast("Json", json.loads(text))
    except (ValueError, RecursionError):
        return text


def _short(text: str, chars_max: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= chars_max else f"{line[: chars_max - 3]}..."


def _fields(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _items(value: object) -> list[object]:
    return list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else []
