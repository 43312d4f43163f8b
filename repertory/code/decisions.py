"""The interface that code is given, and the values that cross between code and tools. Pure."""

from __future__ import annotations

import builtins
import json
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
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
    takes_object: bool = True
    """True if its first parameter may be an object."""


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
    first = type_text(_fields(properties[ordered[0]]), _fields(schema.get("$defs"))) if ordered else "None"
    takes_object = any(word in first for word in ("{", "dict", "Any"))
    return CodeFunction(name, spec["name"], tuple(ordered), signature, summary, returns, takes_object)


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
    """The input of a call. Errors: `Invalid`, in the words that Python has for such a call.

    One object with the names of parameters is the whole input: so some models have learned to call tools in code.
    """
    whole = args[0] if len(args) == 1 and not named and not function.takes_object else None
    if isinstance(whole, dict) and whole and whole.keys() <= set(function.parameters):
        return whole
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

    def omit(self, count: object) -> None:
        """Take over how many bytes were left out, as the one who printed says."""
        if isinstance(count, int) and self._omitted < count < _OMITTED_MAX:
            self._omitted = count

    def text(self, error: str = "", notes: Sequence[str] = ()) -> str:
        """The whole text. `error`: the end of code that failed; `notes`: what the model should know beside it."""
        printed = "".join(self._parts).rstrip("\n")
        if self._omitted:
            printed += f"\n[{self._omitted:,} more bytes were printed and left out: print less]"
        if not printed and not error:
            printed = "(The code has printed nothing. Only what it prints comes back, and async functions need await.)"
        return "\n\n".join(filter(None, (printed, error, *(f"Note: {note}" for note in notes))))

    @property
    def printed(self) -> str:
        """The text so far."""
        return "".join(self._parts)


MODULES = (
    "asyncio (gather, run, sleep), base64, collections, dataclasses, datetime, decimal, functools, hashlib, itertools,"
    " json, math, random, re, time and typing"
)
_AWAIT = "a function was called without await. Write `await name(...)`, and `(await name(...))[0]` to go on with it."
_ADVICE = (
    (r"'coroutine'|coroutine is not JSON|\"coroutine\"", _AWAIT),
    (r"No module named|cannot import name", f"the modules are {MODULES}, with a part of what they have elsewhere."),
    (r"not yet support yield", "there are no generators. Collect the values in a list."),
    (r"not yet support class inheritance", "write classes without bases, and raise ValueError or RuntimeError."),
    (r"not yet support the 'del'", "use `d.pop(key)`, or make a new value without it."),
    (
        r"not yet support async context|module 'asyncio' has no attribute",
        "use `await asyncio.gather(name(...), name(...))`. It runs 16 calls at a time at most, by itself.",
    ),
    (
        r"gather\(\) does not yet support keyword",
        "put try/except around the await of each call, in an async function of its own, and gather these.",
    ),
    (r"not yet support", "this Python is a subset. Write it in a simpler way."),
    (r"must be str, bytes or bytearray, not", "results that are JSON arrive as values, without json.loads."),
    (r"is not here: code reaches", "keep what you need in variables, and print it."),
    (r"module 'sys' has no attribute|TextIOWrapper", "use print, and let the code end by itself."),
    (r"unexpected token `|Got unexpected token", "give plain Python, without anything around it."),
)
"""Words in which code fails, as patterns, and what helps."""
_NAMES_MAX = 30
_OMITTED_MAX = 10**15


def plain_code(code: str) -> str:
    """The code without the fence of Markdown around it."""
    fenced = re.fullmatch(r"\s*```[a-zA-Z0-9]*[ \t]*\n(.*?)\n?\s*```\s*", code, re.DOTALL)
    return code if fenced is None or "```" in fenced[1] else fenced[1]


def notes_for(
    failure: str, printed: str, unused: Sequence[str], ended: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Notes for the model beside what its code has printed, so that the next one is right.

    `unused`: the functions whose calls never began, `ended`: those whose calls have succeeded; `names`: of all.
    """
    notes: list[str] = []
    last = failure.rstrip().rpartition("\n")[2]
    unknown = re.search(r"name '(\w+)' is not defined", last)
    if unknown is not None:
        near = get_close_matches(unknown[1], names, 1)
        known = f"{_named('the functions are', names)} They are called by their names alone."
        notes.append(f"did you mean {near[0]}?" if near else known)
    elif advice := next((each for pattern, each in _ADVICE if re.search(pattern, last)), None):
        notes.append(advice)
    if unused:
        why = "" if failure else ", since nothing awaits them. Write `await`"
        notes.append(_named(f"these calls did not run{why}:", unused))
    elif not notes and "<coroutine " in printed:
        notes.append(_AWAIT)
    if ended and (failure or not printed.strip()):
        notes.append(f"{_named('these calls have succeeded:', ended)} Repeat them for their values alone.")
    return notes


def _named(words: str, names: Sequence[str]) -> str:
    if not names:
        return "there are no functions."
    counts = [name if count == 1 else f"{name} ({count} times)" for name, count in Counter(names).items()]
    more = f" and {len(counts) - _NAMES_MAX:,} more" if len(counts) > _NAMES_MAX else ""
    return f"{words} {', '.join(counts[:_NAMES_MAX])}{more}."


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
