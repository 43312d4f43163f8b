"""The table in README.md is the one that was measured: present, dated, and of the versions that the lock files name."""

from __future__ import annotations

import datetime
import json
import re

from bench.bench_comparison import FOLDER, LIBRARIES, README, RESULTS, renewed

MEASURED = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_table_of_the_readme_shows_the_figures_that_were_measured() -> None:
    text = README.read_text(encoding="utf-8")
    assert renewed(text, MEASURED) == text
    assert [row["title"] for row in MEASURED["rows"]] == [library.title for library in LIBRARIES]
    assert MEASURED["date"] in text


def test_the_figures_have_a_date_and_enough_kills() -> None:
    assert datetime.date(2026, 11, 1) <= datetime.date.fromisoformat(MEASURED["date"])
    assert all(row["kills"] >= 20 and row["cpu_ms"] > 0 for row in MEASURED["rows"])
    assert MEASURED["turns"] >= 250


def test_the_figures_are_of_the_versions_that_the_benchmark_installs() -> None:
    for library, row in zip(LIBRARIES, MEASURED["rows"], strict=True):
        if library.environment is None:
            continue
        locked = (FOLDER / f"{library.environment}-requirements.txt").read_text(encoding="utf-8")
        for name, version in row["versions"].items():
            assert re.search(rf"^{re.escape(name)}=={re.escape(version)} ", locked, re.MULTILINE), (name, version)
