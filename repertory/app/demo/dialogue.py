"""What is said in the demonstration."""

from __future__ import annotations

from pathlib import Path

from repertory.errors import Invalid, NotFound

DIALOGUE = Path(__file__).parents[3] / "examples/dialogue.txt"
"""The dialogue that comes with the project. It is not part of an installed package."""


def read_dialogue(path: Path = DIALOGUE) -> list[str]:
    """The lines of a dialogue, in order, without comments. Errors: `NotFound`; `Invalid` when nobody says anything."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound("no dialogue there; name one with --dialogue", path=str(path)) from error
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith("#")]
    if not said:
        raise Invalid("the dialogue has no lines", path=str(path))
    return said
