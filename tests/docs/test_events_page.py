"""The page of events lists the events that there are, with the fields that callbacks may assign."""

from __future__ import annotations

import re

import repertory
from repertory import HookEvent
from tests.docs.markdown import blocks
from tests.source_tree import ROOT

PAGE = ROOT / "docs/reference/events.md"
WIRE = ROOT / "docs/reference/formats/wire.md"


def _rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_hook_event_is_listed_with_what_callbacks_may_assign() -> None:
    listed = {
        re.findall(r"`(\w+)`", row[0])[0]: set(re.findall(r"`(\w+)`", row[2])) for row in _rows() if len(row) == 3
    }
    public = {name: getattr(repertory, name) for name in repertory.__all__ if name.endswith("Event")}
    hooks = {
        name: set(event.writable)
        for name, event in public.items()
        if isinstance(event, type)
        and issubclass(event, HookEvent)
        and event is not HookEvent
        and event.__name__ == name
    }
    assert listed == hooks


def test_every_stream_event_of_the_wire_format_is_listed() -> None:
    listed = {name for row in _rows() if len(row) == 2 for name in re.findall(r"`(\w+)`", row[0])}
    lines = [line for block in blocks(WIRE) if block.language == "jsonl" for line in block.text.splitlines()]
    types = {found for line in lines for found in re.findall(r'^\{"type": "(multiagent_\w+)"', line)}
    keys = {found for line in lines for found in re.findall(r'^\{"(\w+)":', line)} - {"type", "offset"}
    agent_events = {key for key in keys if key in listed or key.startswith(("tool_", "model_"))}
    assert types <= listed
    assert agent_events <= listed
    assert {"data", "message", "result", "event"} <= agent_events
