"""The form in which the model gets a tool's result or failure, and the check of foreign tools' schemas.

A result holds only what the Converse API accepts in `toolResult.content`: `text`, `json`, `image` and `document`
blocks. A `json` block holds objects only, so lists are sent as JSON text.

Source: Amazon Bedrock API reference, `ToolResultContentBlock`; that `json` takes only objects was seen in practice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from math import isfinite
from typing import cast
from urllib.parse import urljoin

from repertory.core.deferral import Deferral
from repertory.core.limits import DEPTH_MAX, RESULT_BYTES, VALUE_BYTES, Scale, is_too_deep
from repertory.core.messages import Json, ToolResult, ToolSpec, ToolStatus, error_result
from repertory.core.state import plain_value
from repertory.errors import Failed, Invalid, TooLarge

ERROR_TEXT_MAX = 2_000
"""The number of characters of an exception's message that the model gets."""

_DEPTH_MAX = 64
_ITEMS_LOOKED_AT = RESULT_BYTES // VALUE_BYTES
"""The number of items of a collection that are looked at for one that is not JSON."""
_MEDIA = ("image", "document")
_BLOCKS = ("text", "json", *_MEDIA)


_Plain = Callable[[object], object]
"""Converts a value that is not JSON one layer towards JSON."""


def tool_result(tool_use_id: str, value: object, bytes_max: int = RESULT_BYTES) -> ToolResult:
    """A tool result with a copy of `value`, which later changes by the tool do not reach.

    Text, numbers, booleans and None become text; dictionaries, dataclasses and pydantic models become a `json` block;
    anything else becomes JSON text (`state.py` says how dates and the like are written), and an object that is not JSON
    what its own `__str__` says. A `Deferral` becomes its text. An `image` or `document` block is kept, and a dictionary
    with a `status` of "success" or "error" and a list as `content` is a finished result. A returned exception becomes
    an error result, as if raised. Lone surrogates become question marks. Errors: `Failed` with the type and place of
    any other value that is not JSON (NaN, infinities and bytes included): fix the tool. `TooLarge` above `bytes_max`
    (`core/limits.py`), before the value is converted.
    """
    if isinstance(value, BaseException):
        return error_result(tool_use_id, exception_text(value))
    if isinstance(value, Deferral):
        return {"toolUseId": tool_use_id, "status": "success", "content": [{"text": value.text}]}
    scale, items_max = Scale(bytes_max), bytes_max // VALUE_BYTES + 1

    def weighed(value: object) -> object:
        if not scale.put(value):
            raise result_too_large(scale)
        return value

    def plain(value: object) -> object:
        size: object = getattr(value, "size", None)
        # Before `tolist`: a view of one number with a shape of 10^9 costs nothing, and its list costs the process's
        # memory.
        if type(size) is int and size > items_max and hasattr(value, "tolist"):  # an array of a numerical library
            scale.values += size
            raise result_too_large(scale)
        return weighed(plain_value(value, items_max))

    fields = _fields_of(weighed(value))
    content = fields.get("content")
    if fields.get("status") in ("success", "error") and isinstance(content, list):
        blocks = [_checked_block(block, plain) for block in cast("list[object]", content)]
        status: ToolStatus = "error" if fields["status"] == "error" else "success"
        return {"toolUseId": tool_use_id, "status": status, "content": blocks}
    block = _checked_block(fields, plain) if _is_media(fields) else _plain_block(value, plain)
    return {"toolUseId": tool_use_id, "status": "success", "content": [block]}


def late_result(value: object, status: object, bytes_max: int) -> ToolResult:
    """The later result of a tool that has deferred, in the form of `tool_result`, still without its tool use. `status`:
    success or error; a finished result with status `error` stays one. Errors: `Invalid`, `TooLarge`.
    """
    if status not in ("success", "error"):
        raise Invalid("a result has the status 'success' or 'error'", got=status)
    try:
        result = tool_result("later", value, bytes_max)
    except Failed as error:  # Here it is not the tool's mistake but the caller's.
        raise Invalid(str(error)) from error
    return result if status == "success" else {**result, "status": "error"}


def check_result_size(result: ToolResult, bytes_max: int) -> ToolResult:
    """The same result. Errors: `TooLarge` when it weighs more than `bytes_max` (`core/limits.py`)."""
    scale = Scale(bytes_max)
    if not scale.put(result["content"]):
        raise result_too_large(scale)
    return result


def result_too_large(scale: Scale) -> TooLarge:
    """The error that the model gets in place of the result. The tool has run: its effect needs no second run."""
    return scale.refusal(
        "the tool ran, but its result is too large to be shown; ask for less of it (a part, a page, a filter)",
        "limits['result_bytes']",
    )


def exception_text(error: BaseException) -> str:
    """The text of an exception for the model: `Error: ZeroDivisionError - division by zero`.

    For a group: its members. The message is cut after `ERROR_TEXT_MAX` characters.
    """
    text = "; ".join(_one_exception(leaf) for leaf in _leaves(error))
    if len(text) > ERROR_TEXT_MAX:
        text = f"{text[:ERROR_TEXT_MAX]}... [{len(text) - ERROR_TEXT_MAX} characters left out]"
    return _utf8(f"Error: {text}")


def timeout_text(tool_name: str, timeout_s: float, *, effects: bool) -> str:
    """The text for the model of a tool that timed out. A synchronous tool runs on, so its effect may still come."""
    text = f"Error: TimeoutError - {tool_name} did not finish within {timeout_s:g} s"
    return f"{text}; it may or may not take effect" if effects else text


def _fields_of(value: object) -> dict[object, object]:
    return cast("dict[object, object]", value) if isinstance(value, dict) else {}


def _plain_block(value: object, plain: _Plain) -> dict[str, object]:
    # Before `int`: the `str()` of a member that is an `int` too is the name of its class and its own.
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return {"text": _utf8(str.__str__(value))}
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value)):
        return {"text": str(value)}
    try:
        return _json_block(value, plain)
    except Failed:
        if not _tells_itself(value):
            raise
        return {"text": _utf8(str(value))}


def _tells_itself(value: object) -> bool:
    """True if the value's class defines its text, and no form in JSON."""
    kind = type(value)
    if hasattr(kind, "model_dump") or isinstance(value, bytes | bytearray | memoryview | type):
        return False
    return kind.__str__ is not object.__str__


def _json_block(value: object, plain: _Plain) -> dict[str, object]:
    text = _dumped(value, plain)
    # Parsed back rather than converted by hand: so it is certainly a copy, and certainly JSON, with tuples as lists and
    # keys as texts, as a restart would read it.
    parsed: object = json.loads(text)
    if is_too_deep(parsed):
        raise Failed("a tool result is nested too deeply", depth_max=DEPTH_MAX)
    # A date or a path became a text: without the quotes of JSON, which the model would copy into its next call.
    if isinstance(parsed, str):
        return {"text": parsed}
    return {"json": parsed} if isinstance(parsed, dict) else {"text": text}


def _checked_block(block: object, plain: _Plain) -> dict[str, object]:
    """A copy of one content block that the tool built itself."""
    fields = _fields_of(block)
    kinds = [key for key in fields if key in _BLOCKS] if len(fields) > 1 else list(fields)
    if len(kinds) != 1:
        raise Failed("a tool result's content is a list of blocks with one key each", keys=list(fields))
    kind, value = kinds[0], fields[kinds[0]]
    value_type = _type_name(value)
    if kind == "text" and isinstance(value, str):
        return {"text": _utf8(value)}
    if kind == "json":
        return _json_block(value, plain)
    if kind in _MEDIA and isinstance(value, dict):
        return {str(kind): _media_copy(cast("dict[object, object]", value), str(kind), 0, plain)}
    raise Failed("a tool result's block is text, json, image or document", got=kind, value=value_type)


def _is_media(fields: Mapping[object, object]) -> bool:
    if len(fields) != 1:
        return False
    ((kind, value),) = fields.items()
    return kind in _MEDIA and isinstance(value, dict) and "source" in value


def _media_copy(value: object, path: str, depth: int, plain: _Plain) -> object:
    """A deep copy of a block that may hold bytes. Errors: `Failed` for anything that is neither bytes nor JSON."""
    if depth > _DEPTH_MAX:
        raise Failed("a tool result's block is nested too deeply", place=path)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(cast("bytes", value))
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {_utf8(str(key)): _media_copy(item, f"{path}[{key!r}]", depth + 1, plain) for key, item in items}
    if isinstance(value, list | tuple):
        return [_media_copy(item, path, depth + 1, plain) for item in cast("list[object]", value)]
    return cast("Json", json.loads(_dumped(value, plain)))


def _dumped(value: object, plain: _Plain) -> str:
    try:
        return _utf8(json.dumps(value, allow_nan=False, ensure_ascii=False, default=plain))
    except (TypeError, ValueError, RecursionError) as error:
        # `json` names neither the place nor the value. The search is made only now that it has failed.
        culprit, path = _culprit(value, "result", 0) or (value, "result")
        message = "a tool returns text or JSON values"
        if isinstance(culprit, float):
            raise Failed(f"{message}; NaN and infinities are not JSON", place=path, value=culprit) from error
        kind = _type_name(culprit)
        if kind in ("bytes", "bytearray", "memoryview"):
            message = f"{message}; bytes travel in an image or document block"
        raise Failed(message, place=path, got=kind) from error


def _culprit(value: object, path: str, depth: int) -> tuple[object, str] | None:
    """The first value inside `value` that is not JSON, and its path; None when there is none."""
    if value is None or isinstance(value, str | int) or depth == _DEPTH_MAX:
        return None
    if isinstance(value, float):
        return None if isfinite(value) else (value, path)
    if isinstance(value, dict):
        fields = cast("dict[object, object]", value)
        for key in fields:
            if not (key is None or isinstance(key, str | int | float)):
                return key, f"a key of {path}"
        return _first(_culprit(item, f"{path}[{key!r}]", depth + 1) for key, item in fields.items())
    if isinstance(value, list | tuple):
        items = enumerate(cast("list[object]", value))
        return _first(_culprit(item, f"{path}[{index}]", depth + 1) for index, item in items)
    try:
        return _culprit(plain_value(value, _ITEMS_LOOKED_AT), path, depth + 1)
    except (TypeError, ValueError):
        return value, path


def _first(found: Iterable[tuple[object, str] | None]) -> tuple[object, str] | None:
    return next((one for one in found if one is not None), None)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return [leaf for member in members for leaf in _leaves(member)]
    return [error]


def _one_exception(error: BaseException) -> str:
    message = str(error)
    return f"{_type_name(error)} - {message}" if message else _type_name(error)


def _type_name(value: object) -> str:
    return type(value).__name__


def _utf8(text: str) -> str:
    """The same text with lone surrogates replaced: they can be neither stored nor sent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def normal_spec(spec: ToolSpec) -> ToolSpec:
    """A tool spec with its schema inside `{"json": ...}`, as models want it."""
    schema = _fields_of(spec.get("inputSchema"))
    inner = cast("dict[str, object]", _fields_of(schema.get("json", schema)))
    return {
        "name": spec["name"],
        "description": spec.get("description") or spec["name"],
        "inputSchema": {"json": {"type": "object", "properties": {}, **inner}},
    }


# Checking the JSON schemas of foreign tools.
#
# A schema can cost time: a pattern may take for ever (`^(a+)+$`), references may double the work with each level, and a
# reference to another document makes the checker fetch it, from wherever the server says.

SCHEMA_BYTES_MAX = 1024 * 1024
"""The largest weight of a schema (`core/limits.py`)."""

_METASCHEMAS = ("https://json-schema.org/draft/", "http://json-schema.org/draft-")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ONE = frozenset(("additionalProperties", "contains", "if", "then", "else", "not", "propertyNames", "additionalItems"))
"""Keywords that hold one schema, which is applied once to each value that the keyword covers."""
_MANY = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SIMPLE = frozenset(
    (
        *("type", "enum", "const", "required", "multipleOf", "minimum", "maximum", "exclusiveMinimum"),
        *("exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minContains", "maxContains", "dependentRequired", "format", "title", "description", "default", "examples"),
        *("deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "$schema", "$comment"),
        *("$defs", "definitions"),
    )
)


def schema_problem(schema: object) -> str | None:
    """The reason to refuse a tool's schema or description: too large, too deep, or referring to another document, which
    is never fetched. None when it is accepted.
    """
    if is_too_deep(schema):
        return f"is nested more than {DEPTH_MAX} levels deep"
    scale = Scale(SCHEMA_BYTES_MAX)
    if not scale.put(schema):
        return f"is too large: {scale.weight:,} bytes or more, counting {VALUE_BYTES} for each value"
    elsewhere = _foreign_reference(schema)
    return None if elsewhere is None else f"refers to another document, which is not fetched: {elsewhere[:200]}"


def _foreign_reference(schema: object) -> str | None:
    """The first reference to a document other than this one and its named parts."""
    named: list[str] = []
    references: list[str] = []
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += cast("list[object]", node)
        elif isinstance(node, dict):
            fields = cast("dict[object, object]", node)
            named += [text for key in ("$id", "id") if isinstance(text := fields.get(key), str)]
            references += [text for key in _REFERENCES if isinstance(text := fields.get(key), str)]
            pending += fields.values()
    root = named[0] if named else ""
    # A reference may spell a part of this document by its `$id` as written, or resolved against that of the root.
    known = {*named, *(urljoin(root, name) for name in named)}
    for reference in references:
        document = reference.partition("#")[0]
        if document and not document.startswith(_METASCHEMAS):
            places = {document, urljoin(root, document)}
            if places.isdisjoint({name.partition("#")[0] for name in known}):
                return reference
    return None


def work_of(schema: object) -> int | None:
    """An upper bound on the schema checks for one value, with references followed; None when there is no known bound.

    Patterns, recursive references, and keywords that compare values with each other have no bound.
    """
    try:
        return _Work(schema).of(schema)
    except RecursionError:
        return None


class _Work:
    def __init__(self, root: object) -> None:
        self._root = root
        self._known: dict[str, int | None] = {}

    def of(self, schema: object) -> int | None:
        if isinstance(schema, bool):
            return 1
        if not isinstance(schema, dict):
            return None
        work = 1
        for key, value in cast("dict[str, object]", schema).items():
            more = self._of_keyword(key, value)
            if more is None:
                return None
            work += more
        return work

    def _of_keyword(self, key: str, value: object) -> int | None:
        match key, value:
            case (("enum" | "const"), _):
                return _values_in(value)
            case _, _ if key in _SIMPLE or key.startswith("x-"):
                return 0
            case "$ref", str():
                return self._of_reference(value)
            case "properties", dict():
                return self._of_all(list(cast("dict[str, object]", value).values()))
            case "items", list():
                return self._of_all(cast("list[object]", value))
            case _, list() if key in _MANY:
                return self._of_all(cast("list[object]", value))
            case _, _ if key in _ONE or key == "items":
                return self.of(value)
            case _:
                return None

    def _of_all(self, schemas: list[object]) -> int | None:
        works = [self.of(schema) for schema in schemas]
        return None if None in works else sum(cast("list[int]", works))

    def _of_reference(self, reference: str) -> int | None:
        if reference not in self._known:
            self._known[reference] = None  # A recursive reference has no known bound.
            self._known[reference] = self.of(self._target(reference))
        return self._known[reference]

    def _target(self, reference: str) -> object:
        """The target of a plain pointer into the document; None for other references."""
        start, _, pointer = reference.partition("#")
        if start or (pointer and not pointer.startswith("/")) or "%" in pointer:
            return None
        node = self._root
        for part in pointer.split("/")[1:]:
            if not isinstance(node, dict):
                return None
            node = cast("dict[str, object]", node).get(part.replace("~1", "/").replace("~0", "~"))
        return node


def _values_in(value: object) -> int:
    scale = Scale(sys.maxsize)
    scale.put(value)
    return scale.values + scale.bytes // 1024
