"""Programs of the kinds that models write: they work, or the model is told what does.

Kinds from public examples: Cloudflare's code mode, smolagents, programmatic tool calling, the tests of pydantic-monty,
November 2026.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from repertory import CodeMode, tool
from tests.code.coders import printed

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def programs() -> dict[str, tuple[str, list[str]]]:
    """The code of each, and what the model must be told."""
    found: dict[str, tuple[str, list[str]]] = {}
    for block in (Path(__file__).parent / "programs.txt").read_text().split("=== ")[1:]:
        name, _, rest = block.partition("\n")
        code, _, wanted = rest.partition("-> ")
        found[name] = code, [each.strip() for each in wanted.split("-> ")]
    return found


PROGRAMS = programs()


@tool
async def weather(city: str) -> dict[str, Any]:
    """The weather in a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "warmth": 10}


@tool
async def expenses(who: str, quarter: str = "Q3") -> list[dict[str, Any]]:
    """What somebody has spent."""
    number = int(who[1:])
    return [
        {"amount": 100 * number + day, "category": ("meals", "travel")[day % 2], "day": day, "quarter": quarter}
        for day in (0, 1, 2, 3)
    ]


@tool
async def team(department: str) -> str:
    """The people of a department."""
    return json.dumps([{"name": "Ann", "in": department}])


@tool
async def search(query: str) -> str:
    """Search the web."""
    return f"found {query}"


@tool
def store(record: dict[str, int]) -> str:
    """Store a record."""
    return f"stored {json.dumps(record)}"


@tool
async def listing(page: int) -> list[str]:
    """A page of names."""
    return [f"item {3 * page + number}" for number in range(3)] if page < 2 else []


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_works_or_the_model_is_told_what_does(name: str) -> None:
    code, wanted = PROGRAMS[name]
    plugin = CodeMode(cpu_s=5, timeout_s=60, output_bytes=2_000)
    text = await printed(code, weather, expenses, team, search, store, listing, plugin=plugin)
    for each in wanted:
        assert each in text, text
    assert len(text) < 4_000


async def test_a_call_that_nothing_awaits_has_no_effect() -> None:
    done: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send."""
        done.append(to)
        return "sent"

    await printed("send('a')\nprint(send('b'))", send)
    assert done == []
    await printed("late = send('c')\nprint(await send('d'))\nprint(await late)", send)
    assert sorted(done) == ["c", "d"]
