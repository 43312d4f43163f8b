"""`SECURITY.md`: each line of its tables names the tests that hold it, and these exist."""

from __future__ import annotations

import re

import pytest

from tests.source_tree import ROOT

_, _, DOORS = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("## Who may do what")
LINES = [line for line in DOORS.partition("\n## ")[0].splitlines() if line.startswith("| ")]
ROWS = [line for line in LINES if not line.startswith("| Who |")]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:60])
def test_a_line_names_tests_that_exist(row: str) -> None:
    named = NAMED.findall(row.rstrip(" |").rpartition(" | ")[2])
    assert named, "no test holds this"
    for path, name in named:
        wanted = rf"^ *(?:async )?(?:def|class) {name}\b" if name else r"^(?:async )?def test_"
        assert re.search(wanted, (ROOT / path).read_text("utf-8"), re.MULTILINE), f"{path} has no {name}"


def test_every_campaign_that_is_named_is_registered() -> None:
    from tests.campaigns.campaigns import CAMPAIGNS

    named = re.findall(r"`([\w-]+)`", DOORS.partition("Campaigns use")[2].partition("(`make")[0])
    assert named
    assert CAMPAIGNS.keys() >= set(named)
