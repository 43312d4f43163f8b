"""The search for tools: how often the right one of 300 is found, and what its definitions save.

The questions avoid the names of the tools (`tests/plugins/catalog/services.txt`). Those that are searches are judged;
sentences of people, as which no model searches, are reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from bench.harness import Figure, report
from repertory.core.recall.tool_search import ToolIndex
from repertory.core.tokens import estimate_tokens
from repertory.plugins.tool_search import ToolSearch
from tests.plugins.tool_catalog import Question, read_catalog

FIRST = 5


def recall(index: ToolIndex, asked: Sequence[Question]) -> float:
    return sum(each.tool in index.search(each.text, FIRST) for each in asked) / len(asked)


def figures() -> list[Figure]:
    catalog = read_catalog()
    began = time.perf_counter()
    index = ToolIndex(catalog.specs)
    built_ms = 1e3 * (time.perf_counter() - began)
    durations: list[float] = []
    for each in catalog.asked:
        began = time.perf_counter()
        index.search(each.text, FIRST)
        durations.append(1e6 * (time.perf_counter() - began))
    by_name = {spec["name"]: spec for spec in catalog.specs}
    search = ToolSearch().search_tools.spec
    shares = [
        estimate_tokens([], [search, *(by_name[name] for name in index.search(each.text, FIRST))])
        for each in catalog.asked
    ]
    whole = float(estimate_tokens([], catalog.specs))
    return [
        Figure("searches with the right tool among five", recall(index, catalog.asked), 1.0, 0.95, "", "higher"),
        Figure("sentences with the right tool among five", recall(index, catalog.said), 1.0, None, "", "higher"),
        Figure("definitions behind a search / all", statistics.mean(shares), whole, 0.15, "tokens"),
        Figure("a search among 300 tools", statistics.median(durations), 1.0, None, "us"),
        Figure("the index of 300 tools", built_ms, 1.0, None, "ms"),
    ]


def main() -> int:
    return report(figures())


if __name__ == "__main__":
    raise SystemExit(main())
