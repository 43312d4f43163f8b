"""Each line of JSON of docs/reference/formats/wire.md is read and written as it stands there.

Every kind of event has one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef, get_args

import pytest

from repertory import (
    AgentResult,
    AgentStreamEvent,
    error_from_json,
    error_to_json,
    errors,
    event_from_json,
    event_to_json,
)
from repertory.core.error_json import ERRORS_MAX
from repertory.core.json_fields import NESTING_MAX, TEXT_MAX
from repertory.core.stream_events import StepEvent
from tests.docs.markdown import blocks
from tests.source_tree import PACKAGE, ROOT

Forbidden = ForwardRef("Never", module="repertory.core.stream_events")
PAGE = ROOT / "docs/reference/formats/wire.md"
LINES: list[dict[str, Any]] = [
    json.loads(line) for block in blocks(PAGE) if block.language == "jsonl" for line in block.text.splitlines()
]


def _kind(line: Mapping[str, Any]) -> str:
    return str(line.get("type", next(iter(line))))


def _again(line: Mapping[str, Any]) -> Any:
    if "group" in line:
        return error_to_json(error_from_json(line))
    again: Callable[[Any], Any] = (
        (lambda data: AgentResult.from_dict(data).to_dict())
        if line.get("type") == "agent_result"
        else (lambda data: event_to_json(event_from_json(data)))
    )
    return again(line)


@pytest.mark.parametrize("line", LINES, ids=lambda line: _kind(line))
def test_a_line_is_read_and_written_as_it_stands_there(line: dict[str, Any]) -> None:
    assert json.dumps(_again(line)) == json.dumps(line)


def test_every_kind_of_event_has_a_line() -> None:
    shapes = (PACKAGE / "core/stream_events.py").read_text()
    kinds = [kind for kind in get_args(AgentStreamEvent) if kind is not StepEvent]
    keys = {key for kind in kinds for key, of in kind.__annotations__.items() if of != Forbidden}
    of_agents = keys - {"delta", "offset", "reasoningText"}
    of_runs = set(re.findall(r'Literal\["(multiagent_\w+)"', shapes))
    assert len(of_agents) >= 10
    assert len(of_runs) >= 7
    assert of_agents | of_runs <= {_kind(line) for line in LINES}


def test_the_bounds_are_those_of_the_code() -> None:
    text = " ".join(PAGE.read_text().split())
    for said in (f"{NESTING_MAX} levels", f"{TEXT_MAX:,} characters", f"most {ERRORS_MAX} errors"):
        assert said in text, said


def test_every_group_of_errors_is_explained() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    groups = {error_to_json(vars(errors)[name]("x"))["group"] for name in errors.__all__}
    assert set(named) == groups
