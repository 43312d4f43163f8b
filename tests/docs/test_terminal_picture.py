"""The moving picture of the README is what a terminal shows today.

    REPERTORY_RENEW_PICTURES=1 .venv/bin/python -m pytest -n 0 tests/docs/test_terminal_picture.py

records it anew.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.recording import Recording, svg
from tests.docs.running import environment
from tests.source_tree import ROOT

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

KILLED = ROOT / "docs/pictures/killed-and-resumed.svg"
TITLE = "A conversation goes on after its process was killed"


def test_the_picture_of_a_kill_is_what_a_terminal_shows(tmp_path: Path) -> None:
    recording = Recording(environment(tmp_path))
    try:
        recording.until("$", shown_s=0.6)
        recording.type("repertory chat --offline --session marta")
        recording.until("you>")
        recording.type("My stall is Warm Crumb.")
        recording.until("you>", shown_s=1.6)
        os.kill(_child(recording.shell.pid), signal.SIGKILL)
        recording.until("$", shown_s=1.6)
        recording.type("repertory chat --offline --session marta")
        recording.until("you>", shown_s=1.6)
        recording.type("What is my stall?")
        recording.until("you>", shown_s=2.0)
    finally:
        recording.close()
    last = recording.frames[-1].text
    assert last.count("Warm Crumb") >= 3
    begun = next(number for number, frame in enumerate(recording.frames) if "you>" in frame.text)
    drawn = svg(recording.frames[begun:], TITLE)  # screens that are nearly empty say nothing
    if os.environ.get("REPERTORY_RENEW_PICTURES"):
        KILLED.write_text(drawn, encoding="utf-8")
    kept = KILLED.read_text(encoding="utf-8")
    assert _rows(kept) == _rows(drawn)
    film = ElementTree.fromstring(kept).find(".//*[@id='film']")
    assert film is not None
    screens = list(film)
    assert min(map(len, screens)) >= 4, "each screen has lines"
    height = int(screens[1].attrib["transform"].split()[1][:-1])
    assert film.attrib["transform"] == f"translate(0 -{(len(screens) - 1) * height})", (
        "and the last is where none moves"
    )


def _child(shell: int) -> int:
    """The process that the shell runs in front."""
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def _rows(picture: str) -> set[str]:
    """The rows of text that a picture can show, with numbers left out: they tell times and counts of tokens."""
    texts = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    return {re.sub(r"\d+(\.\d+)?", "0", "".join(text.itertext())).rstrip() for text in texts}
