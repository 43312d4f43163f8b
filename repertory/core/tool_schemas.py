"""What the JSON schemas of tools that somebody else runs may ask of us.

A schema can compute. A pattern may take for ever (`^(a+)+$`), references may double the work with each level, and a
reference to another document asks for it to be fetched, from wherever the server says.
"""

from __future__ import annotations

import sys
from typing import cast
from urllib.parse import urljoin

from repertory.core.depth import DEPTH_MAX, is_too_deep
from repertory.core.sizes import VALUE_BYTES, Scale

SCHEMA_BYTES_MAX = 1024 * 1024
"""How much a schema may weigh (`core/sizes.py`)."""

_METASCHEMAS = ("https://json-schema.org/draft/", "http://json-schema.org/draft-")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ONE = frozenset(("additionalProperties", "contains", "if", "then", "else", "not", "propertyNames", "additionalItems"))
"""Keywords that hold one schema. Each of these keywords looks once at each value that it applies to."""
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


def refusal(schema: object) -> str | None:
    """Why a tool's schema, or its description, is not borne, whatever it is for; None when it is.

    It is too large or too deep, or it refers to another document, which is never fetched.
    """
    if is_too_deep(schema):
        return f"is nested more than {DEPTH_MAX} levels deep"
    scale = Scale(SCHEMA_BYTES_MAX)
    if not scale.put(schema):
        return f"is too large: {scale.weight:,} bytes or more, counting {VALUE_BYTES} for each value"
    elsewhere = _foreign_reference(schema)
    return None if elsewhere is None else f"refers to another document, which is not fetched: {elsewhere[:200]}"


def _foreign_reference(schema: object) -> str | None:
    """The first reference to a document that is neither this one nor a part of it that has a name."""
    named: list[str] = []
    references: list[str] = []
    left = [schema]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += cast("list[object]", node)
        elif isinstance(node, dict):
            fields = cast("dict[object, object]", node)
            named += [said for key in ("$id", "id") if isinstance(said := fields.get(key), str)]
            references += [said for key in _REFERENCES if isinstance(said := fields.get(key), str)]
            left += fields.values()
    root = named[0] if named else ""
    known = {*named, *(urljoin(root, name) for name in named)}
    for reference in references:
        document = reference.partition("#")[0]
        if document and not document.startswith(_METASCHEMAS):
            places = {document, urljoin(root, document)}
            if places.isdisjoint({name.partition("#")[0] for name in known}):
                return reference
    return None


def work_of(schema: object) -> int | None:
    """How many schemas a value may have to be held against, references followed; None when that has no known bound.

    Patterns, references that come back to themselves, and keywords that compare values with each other have none.
    """
    try:
        return _Work(schema).of(schema)
    except RecursionError:
        return None


class _Work:
    """Adds up one document."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._known: dict[str, int | None] = {}

    def of(self, schema: object) -> int | None:
        if isinstance(schema, bool):
            return 1
        if not isinstance(schema, dict):
            return None
        work = 1
        for key, said in cast("dict[str, object]", schema).items():
            more = self._of_keyword(key, said)
            if more is None:
                return None
            work += more
        return work

    def _of_keyword(self, key: str, said: object) -> int | None:
        match key, said:
            case (("enum" | "const"), _):
                return _values_in(said)
            case _, _ if key in _SIMPLE or key.startswith("x-"):
                return 0
            case "$ref", str():
                return self._of_reference(said)
            case "properties", dict():
                return self._of_all(list(cast("dict[str, object]", said).values()))
            case "items", list():
                return self._of_all(cast("list[object]", said))
            case _, list() if key in _MANY:
                return self._of_all(cast("list[object]", said))
            case _, _ if key in _ONE or key == "items":
                return self.of(said)
            case _:
                return None

    def _of_all(self, schemas: list[object]) -> int | None:
        works = [self.of(schema) for schema in schemas]
        return None if None in works else sum(cast("list[int]", works))

    def _of_reference(self, reference: str) -> int | None:
        if reference not in self._known:
            self._known[reference] = None  # What comes back to itself has no known bound.
            self._known[reference] = self.of(self._target(reference))
        return self._known[reference]

    def _target(self, reference: str) -> object:
        """What a pointer into the document points at; None when that cannot be said so simply."""
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
