"""What the schemas of somebody else's tools may ask of us. Our decisions."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.core.tools import SCHEMA_BYTES_MAX, schema_problem, work_of


def nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


HERE: list[Any] = [
    None,
    True,
    {"type": "object"},
    {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a"},
    {"$ref": "#"},
    {"$id": "https://example.com/tool", "properties": {"a": {"$ref": "https://example.com/tool#/$defs/a"}}},
    {"$id": "https://example.com/tool", "$defs": {"a": {"$id": "part"}}, "$ref": "part"},
    {"$id": "https://example.com/tool", "$defs": {"a": {"$id": "part"}}, "$ref": "https://example.com/part#/x"},
    {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    {"$schema": "https://example.com/dialect", "type": "object"},
    {"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}},
]


@pytest.mark.parametrize("schema", HERE, ids=repr)
def test_what_stays_in_its_document_is_borne(schema: Any) -> None:
    assert schema_problem(schema) is None


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize("place", ["http://127.0.0.1/x.json", "https://a/b#/c", "file:///etc/x", "other.json", "//a/x"])
def test_other_documents_are_refused_by_name(keyword: str, place: str) -> None:
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {keyword: place}]}}}
    assert schema_problem(schema) == f"refers to another document, which is not fetched: {place}"


def test_what_is_too_deep_or_too_large_is_refused() -> None:
    assert schema_problem(nested(99)) is None
    assert "levels deep" in str(schema_problem(nested(100)))
    assert "levels deep" in str(schema_problem(nested(50_000)))
    assert "too large" in str(schema_problem({"description": "x" * SCHEMA_BYTES_MAX}))
    assert "too large" in str(schema_problem({"enum": [0] * 5_000}))
    assert "too large" in str(schema_problem("x" * SCHEMA_BYTES_MAX))


REPEATED = {"$defs": {"a": {"type": "string"}}, "anyOf": [{"$ref": "#/$defs/a"}] * 3}
ESCAPED = {"$defs": {"a/b": {"type": "string"}}, "$ref": "#/$defs/a~1b"}


@pytest.mark.parametrize(
    ("schema", "work"),
    [
        (True, 1),
        ({"type": "object", "required": ["a"], "x-note": {}}, 1),
        ({"properties": {"a": {"type": "integer"}, "b": {"items": {"minimum": 1}}}}, 4),
        ({"enum": ["a", "b"]}, 4),
        ({"if": True, "then": {"const": 1}, "else": {"not": True}}, 6),
        (REPEATED, 7),
        (ESCAPED, 2),
    ],
    ids=repr,
)
def test_the_work_of_simple_schemas_is_known(schema: Any, work: int) -> None:
    assert work_of(schema) == work


def test_doubled_references_double_the_work() -> None:
    steps: dict[str, Any] = {"0": True}
    for level in range(60):
        steps[str(level + 1)] = {"allOf": [{"$ref": f"#/$defs/{level}"}] * 2}
    work = work_of({"$defs": steps, "$ref": "#/$defs/60"})
    assert work is not None
    assert work > 2**60


CHAIN = {"$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(2_000)}, "$ref": "#/$defs/0"}


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(a+)+$"},
        {"properties": {"a": {"patternProperties": {"^(a+)+$": True}}}},
        {"uniqueItems": True},
        {"unevaluatedProperties": False},
        {"$dynamicRef": "#a"},
        {"$ref": "#"},
        {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
        {"$ref": "#anchor"},
        {"$ref": "#/nowhere"},
        {"$ref": "#/a%62"},
        {"$id": "https://example.com/", "$ref": "part"},
        {"dependentSchemas": {"a": {"pattern": "x"}}},
        {"keyword of tomorrow": 1},
        {"properties": []},
        {"items": "x"},
        "x",
        CHAIN,
    ],
    ids=lambda schema: repr(schema)[:60],
)
def test_the_work_of_all_others_is_not(schema: Any) -> None:
    assert work_of(schema) is None
