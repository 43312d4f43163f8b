"""Journals written by released versions are read for ever: same rows, same chain, same conversation.

The files in `tests/golden` were written once, by the release whose version they name, and are never written again.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from repertory.core.journal.codec import decode, dump, encode
from repertory.core.journal.image import Image
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import RecordKind, Row, digest_of, first_link, header_of, link_of

ROOT = Path(__file__).parents[3]
GOLDEN = sorted((ROOT / "tests" / "golden").glob("journal-v*-*.jsonl"))
FORMAT = (ROOT / "docs/reference/formats/journal-format.md").read_text()


def read(path: Path) -> list[Row]:
    rows: list[Row] = []
    for line in path.read_text().splitlines():
        said = json.loads(line)
        salt = bytes.fromhex(said.pop("salt"))
        body = said.pop("body")
        link = bytes.fromhex(said.pop("link"))
        rows.append(Row(**said, link=link, salt=salt, body=body.encode() if salt else bytes.fromhex(body)))
    return rows


def summary(image: Image) -> object:
    """What the expectation files keep of an image."""
    said: dict[str, object] = {
        "last_seq": image.last_seq,
        "message_count": image.message_count,
        "turns": image.turns,
        "shown": [[seq, message] for seq, message in image.shown],
        "manager": image.view.manager,
        "manager_state": image.view.manager_state,
        "hidden": [list(stretch) for stretch in image.view.hidden],
        "state": image.state,
        "open_tools": sorted(image.open_tools),
        "finished_tools": dict(image.finished_tools),
        "interrupts": [interrupt.id for interrupt in image.interrupts],
        "responses": dict(image.responses),
        "nodes": {name: [node.run, node.status, node.result] for name, node in image.nodes.items()},
        "frontier": list(image.frontier),
        "cursors": dict(image.cursors),
        "finished_turns": sorted(image.finished_turns),
    }
    if image.steps:
        said["steps"] = {
            use_id: [
                [key, step.started.lane, None if step.finished is None else step.finished.result]
                for key, step in steps.items()
            ]
            for use_id, steps in image.steps.items()
        }
    if image.timers:
        said["timers"] = {timer.id: [timer.at, timer.prompt, timer.every_s] for timer in image.timers.values()}
        calendars = {one.id: [one.cron, one.tz, one.missed] for one in image.timers.values() if one.cron is not None}
        if calendars:
            said["calendars"] = calendars
    if image.deferred or image.came or image.settled:
        said["deferred"] = {tool.id: [tool.tool, tool.expires_at] for tool in image.deferred.values()}
        said["came"] = {came.id: [came.result, came.starts, came.expired] for came in image.came.values()}
        said["settled"] = list(image.settled)
    if runs := {tool.id: tool.run for tool in image.deferred.values() if tool.run is not None}:
        said["runs"] = {each: [run.input, run.idempotency_key, run.attempt, run.asks] for each, run in runs.items()}
        said["run_steps"] = {each: list(steps) for each, steps in image.run_steps.items()}
    if image.outbox or image.turn_to:
        said["outbox"] = {
            one.id: [one.event, one.to, one.seq, one.tries, one.next_at, one.dead] for one in image.outbox.values()
        }
        said["turn_to"] = list(image.turn_to)
    return json.loads(dump(said))


def test_there_are_golden_files() -> None:
    assert [path.name for path in GOLDEN] == [
        "journal-v1-conversation.jsonl",
        "journal-v1-deferrals.jsonl",
        "journal-v1-deliveries.jsonl",
        "journal-v1-graph.jsonl",
        "journal-v1-rewound.jsonl",
        "journal-v1-schedules.jsonl",
        "journal-v1-spending.jsonl",
        "journal-v1-steps.jsonl",
        "journal-v1-timers.jsonl",
        "journal-v1-tokens.jsonl",
        "journal-v1-window.jsonl",
    ]


def test_the_golden_files_have_every_kind_of_record() -> None:
    assert {row.kind for path in GOLDEN for row in read(path)} == set(RecordKind)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_journal_is_replayed_to_the_same_conversation(path: Path) -> None:
    rows = read(path)
    expected = json.loads(path.with_suffix(".expected.json").read_text())
    whole, opened = restore(rows).fold.image(), restore(rows[rows[-1].low - 1 :]).fold.image()
    if "conversation" in path.stem:  # It is from before answers were stated.
        whole = whole.since(rows[-1].low)
    assert summary(whole) == summary(opened) == expected


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_records_are_written_the_same_way_today(path: Path) -> None:
    for row in read(path):
        if not row.erased:
            assert encode(decode(row.kind, row.version, row.body)) == (row.kind, row.body)


def documented(name: str) -> str:
    """A value of the worked example in the format document."""
    example = FORMAT.partition("### A worked example")[2]
    found = re.search(rf"^{re.escape(name)} += (.+)$", example, re.MULTILINE)
    assert found is not None, name
    return found.group(1)


def test_the_worked_example_of_the_format_document_is_right() -> None:
    salt, body = bytes.fromhex(documented("salt")), documented("body").encode()
    assert documented("previous link") == first_link("support").hex()
    assert documented("previous link") == hashlib.sha256(b"repertory journal\0support").hexdigest()[:32]
    assert documented("digest") == digest_of(salt, body).hex() == hashlib.sha256(salt + body).hexdigest()
    assert documented("header") == header_of(1, 13, 1, 1).hex()
    row = Row("support", 1, 13, 1, 1, bytes.fromhex(documented("link")), salt, body)
    assert row == read(GOLDEN[0])[0]
    assert documented("link") == link_of(first_link("support"), row).hex()
    assert documented("link") == link_of(first_link("support"), row.without_content()).hex()
    joined = documented("previous link") + documented("header") + documented("digest")
    assert documented("link") == hashlib.sha256(bytes.fromhex(joined)).hexdigest()[:32]


def test_the_format_document_numbers_the_kinds_as_the_code_does() -> None:
    documented_kinds = {
        int(number): name for number, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", FORMAT, re.MULTILINE)
    }
    assert documented_kinds == {kind.value: kind.name.lower() for kind in RecordKind}


BODIES = re.findall(r"^### Kind (\d+): (\w+)\n\n```json\n(.+)\n```$", FORMAT, re.MULTILINE)


def test_the_format_document_has_a_body_of_every_kind() -> None:
    assert [(int(kind), name) for kind, name, _ in BODIES] == [(kind.value, kind.name.lower()) for kind in RecordKind]


@pytest.mark.parametrize(("kind", "name", "body"), BODIES, ids=[name for _, name, _ in BODIES])
def test_a_body_of_the_format_document_is_read_and_written_as_it_stands_there(kind: str, name: str, body: str) -> None:
    number = RecordKind(int(kind))
    assert encode(decode(number, 1, body.encode())) == (number, body.encode())
