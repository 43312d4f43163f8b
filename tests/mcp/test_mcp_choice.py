"""Which of a server's tools a model sees, under which names. The filters are Strands behaviour, the rest ours."""

from __future__ import annotations

import re
from typing import Any

import pytest
from mcp_types import Tool, ToolAnnotations

from repertory.errors import Invalid
from repertory.mcp.choice import ToolChoice, ToolFilters


def named(name: str, **fields: Any) -> Tool:
    return Tool(name=name, input_schema={"type": "object"}, **fields)


@pytest.mark.parametrize(
    ("filters", "taken"),
    [
        ({}, ["read", "write", "rewrite"]),
        ({"allowed": []}, []),
        ({"allowed": ["read", "wr"]}, ["read"]),
        ({"allowed": [re.compile("wr")]}, ["write"]),
        ({"rejected": ["write"]}, ["read", "rewrite"]),
        ({"allowed": [re.compile(".*write")], "rejected": [lambda tool: tool.name.startswith("re")]}, ["write"]),
    ],
)
def test_filters_go_by_the_servers_names(filters: ToolFilters, taken: list[str]) -> None:
    choice = ToolChoice(filters=filters, prefix="x")
    assert [name for name in ("read", "write", "rewrite") if choice.takes(named(name))] == taken


@pytest.mark.parametrize(
    ("hints", "settings", "flags"),
    [
        (None, {}, (True, False)),
        ({}, {}, (True, False)),
        ({"read_only_hint": True}, {}, (False, False)),
        ({"read_only_hint": False, "idempotent_hint": True}, {}, (True, True)),
        ({"read_only_hint": True}, {"effects": True, "idempotent": True}, (True, True)),
        ({"idempotent_hint": True}, {"effects": False, "idempotent": False}, (False, False)),
    ],
)
def test_a_tool_has_effects_unless_somebody_says_otherwise(
    hints: dict[str, bool] | None, settings: dict[str, bool], flags: tuple[bool, bool]
) -> None:
    annotations = ToolAnnotations(**hints) if hints is not None else None
    offer = ToolChoice(**settings).offer(named("a", annotations=annotations))  # type: ignore[arg-type]
    assert (offer.effects, offer.idempotent) == flags


@pytest.mark.parametrize(
    ("name", "prefix", "ours"),
    [
        ("add", None, "add"),
        ("add", "calc", "calc_add"),
        ("repo/issues.list", None, "repo_issues_list"),
        ("x" * 70, None, "x" * 64),
        ("größe", None, "gr__e"),
    ],
)
def test_names_are_such_that_every_provider_takes_them(name: str, prefix: str | None, ours: str) -> None:
    assert ToolChoice(prefix=prefix).offer(named(name)).spec["name"] == ours


@pytest.mark.parametrize(
    ("fields", "description"),
    [({}, "a"), ({"title": "A tool"}, "A tool"), ({"title": "A tool", "description": "It does."}, "It does.")],
)
def test_a_tool_always_has_a_description(fields: dict[str, str], description: str) -> None:
    offer = ToolChoice(call_timeout_s=3.0).offer(named("a", **fields))
    assert (offer.spec["description"], offer.timeout_s) == (description, 3.0)
    assert offer.spec["inputSchema"] == {"json": {"type": "object"}}


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(Invalid, match="allowed and rejected"):
        ToolChoice(filters={"deny": ["a"]})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(Invalid, match="prefix"):
        ToolChoice(prefix="my tools")
