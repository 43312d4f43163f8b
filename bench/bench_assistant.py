"""What a task costs in tokens with `assistant`, beside `strands-harness` on its SDK doing the same, and from how many
tools on a search for them pays.

`compared/assistant_task.py` has the tasks. Without the environment of `make peers` the package is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.compared.assistant_task import Scripted
from bench.harness import Figure, report
from repertory import Model, assistant
from repertory.plugins.assistant import SEARCHED_FROM
from tests.plugins.tool_catalog import read_catalog

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "tests" / "peers" / "strands"
SCENARIOS = {
    "first": ("prompt and definitions, before the first word", 0.5),
    "task": ("12 steps: find, change, test", 0.75),
    "conversation": ("40 turns with a look-up each", 1.0),
    "small_window": ("the same in a window of 16,000", 1.0),
}
STEPS = 10
CACHED = 0.1
"""The price of a token that the service has in its cache."""


def total(side: str, scenario: str) -> float:
    """The tokens of all requests of a scenario."""
    ours = side == "assistant"
    python = sys.executable if ours else str(PEERS / "bin" / "python")
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(ROOT / "bench" / "compared" / "assistant_task.py"), side, scenario, f"{folder}/work"]
        settings = {**os.environ, "PYTHONPATH": str(ROOT) if ours else "", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, capture_output=True, text=True, env=settings, timeout=120, check=False)
    if done.returncode:
        sys.exit(f"{side} {scenario}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["total"]


def common(one: str, other: str) -> str:
    """The beginning that both have."""
    most = min(len(one), len(other))
    return one[: next((at for at in range(most) if one[at] != other[at]), most)]


class Counting(Scripted):
    """Counts what the service has to read anew, where the definitions of tools are the beginning of a request."""

    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__(steps)
        self.paid, self._before = 0.0, ""

    async def stream(self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any) -> Any:
        whole = json.dumps([list(tool_specs or ()), system_prompt, list(messages)], default=str)
        same = len(common(whole, self._before)) // 4
        self.paid, self._before = self.paid + len(whole) // 4 - (1 - CACHED) * same, whole
        async for event in super().stream(messages, tool_specs, system_prompt, **options):
            yield event


class CatalogTool:
    """A tool of the catalog, which answers in a sentence or two."""

    effects, idempotent, timeout_s = False, True, None

    def __init__(self, spec: Any) -> None:
        self.name, self.spec = spec["name"], spec

    async def run(self, tool_use: Any, context: object) -> Any:
        text = "Done: " + "what was asked for is there now. " * 8
        return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": text}]}


def with_tools(number: int, *, searched: bool) -> tuple[float, float]:
    """The tokens of a task of ten steps with two of so many tools: all that are sent, and those paid for in full."""
    catalog = read_catalog()
    wanted = list({each.tool: each for each in catalog.asked}.values())[:2]
    specs = {spec["name"]: spec for spec in catalog.specs}
    names = [each.tool for each in wanted]
    names += [name for name in specs if name not in names][: number - 2]

    tools: list[Any] = [CatalogTool(specs[name]) for name in names]
    searches = [[("search_tools", {"query": each.text})] for each in wanted] if searched else []
    work = [[(names[at % 2], {})] for at in range(STEPS - 1)]
    model: Any = type("ScriptedModel", (Counting, Model), {"context_window_limit": None})([*searches, *work, "Done."])
    agent = assistant(model, tools=tools, tool_search=searched, callback_handler=None)
    assert agent("Do it.").stop_reason == "end_turn"
    return sum(model.sizes), model.paid


def figures() -> list[Figure]:
    compared = (PEERS / "bin" / "python").exists()
    if not compared:
        print("NOT COMPARED with strands-harness: `make peers` installs it")
    found: list[Figure] = []
    for scenario, (title, bar) in SCENARIOS.items():
        here = total("assistant", scenario)
        found.append(
            Figure(title, here, total("harness", scenario) if compared else 1.0, bar if compared else None, "tokens")
        )
        if compared:
            found.append(Figure(f"{title}, its tools alone", here, total("lean", scenario), None, "tokens"))
    for number in (10, SEARCHED_FROM, 30, 50, 100):
        (sent, paid), (sent_all, paid_all) = (with_tools(number, searched=searched) for searched in (True, False))
        found.append(Figure(f"{number} tools: searched / all shown", sent, sent_all, None, "tokens"))
        found.append(Figure(f"{number} tools: the same, as a cache prices it", paid, paid_all, None, "tokens"))
    return found


def main() -> int:
    return report(figures())


if __name__ == "__main__":
    raise SystemExit(main())
