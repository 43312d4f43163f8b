"""The phases of a turn as ARCHITECTURE.md draws them are those of the turn machine's table."""

from __future__ import annotations

from repertory.core.turn import TRANSITIONS, TurnPhase
from tests.docs.markdown import blocks
from tests.source_tree import ROOT


def _drawn() -> str:
    """The table as a Mermaid diagram: one arrow from a phase to another, with all events that lead there."""
    events: dict[tuple[TurnPhase, TurnPhase], list[str]] = {}
    for (phase, event), (_, leads_to) in TRANSITIONS.items():
        for after in leads_to:
            events.setdefault((phase, after), []).append(event.__name__)
    lines = [f"    {before} --> {after}: {', '.join(names)}" for (before, after), names in events.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {TurnPhase.READY}", *lines, f"    {TurnPhase.OVER} --> [*]", ""])


def test_the_drawing_is_the_table() -> None:
    drawings = [block.text for block in blocks(ROOT / "ARCHITECTURE.md") if block.mark == "turn"]
    assert drawings == [_drawn()], f"draw it so:\n{_drawn()}"
