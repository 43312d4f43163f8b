"""Documents and records of runs that somebody has edited: read as far as they make sense, refused by a type else."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from msgspec.structs import replace

from repertory.core.journal.codec import decode, encode
from repertory.core.orchestration.document import document_of, records_from
from repertory.core.orchestration.run import Run
from repertory.core.run_results import NodeResult
from repertory.core.snapshots.document import content_digest
from repertory.core.snapshots.portable import PortableSnapshot, read_fields, snapshot_of
from repertory.errors import RepertoryError
from tests.core.test_run_documents import worked
from tests.simulation.hostile_exports import changed

ROUNDS = 600


def used(run: Run) -> None:
    """Everything that is asked of a run that was read."""
    json.dumps(document_of(run, "g"), default=str)
    for result in run.results.values():
        str(result)
        result.to_record()


def test_an_edited_run_is_read_or_refused_by_a_type(rng: random.Random) -> None:
    outcomes: Counter[str] = Counter()
    for _ in range(ROUNDS):
        document = json.loads(json.dumps(document_of(worked(rng, ends=rng.randint(0, 5)), "g"), default=repr))
        try:
            match rng.randrange(3):
                case 0:
                    edited = changed(rng, document)
                    found = records_from(edited if isinstance(edited, dict) else {}, Run(), at=1.0)
                    used(Run.of(found, found[-1].frontier if found else ()))
                case 1:
                    run = Run()
                    for record in records_from(document, Run(), at=1.0):
                        name = rng.choice(["data", "result"])
                        edited = replace(record, **{name: changed(rng, getattr(record, name))})
                        run.apply(decode(*_row(edited)))  # type: ignore[arg-type]
                    used(run)
                case _:
                    for each in document["node_results"].values():
                        edited = changed(rng, each)
                        str(NodeResult.from_dict(edited if isinstance(edited, dict) else {}).to_record())
        except RepertoryError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
    assert outcomes["refused"] > 50, outcomes
    assert outcomes["read"] > 50, outcomes


def _row(record: Any) -> tuple[int, int, bytes]:
    kind, body = encode(record)
    return kind, 1, body


def test_an_edited_snapshot_with_a_fitting_digest_is_read_or_refused_by_a_type(rng: random.Random) -> None:
    fields: dict[str, object] = {
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "state": {"k": [1]},
        "conversation_manager_state": {"__name__": "S", "removed_message_count": 1},
        "interrupt_state": {"interrupts": {}, "context": {}, "activated": False},
        "system_prompt": "be kind",
        "enabled_tools": ["add"],
    }
    outcomes: Counter[str] = Counter()
    for _ in range(ROUNDS):
        document: dict[str, Any] = json.loads(json.dumps(snapshot_of(fields, {}, 5.0)))
        name = rng.choice(["state", "state", "state", "created_at", "metadata", "type", "schema_version"])
        document[name] = changed(rng, document[name])
        try:
            document["sha256"] = content_digest(
                {key: value for key, value in document.items() if key not in ("metadata", "sha256")}
            )
            read_fields(PortableSnapshot.from_dict(document), None)
        except RepertoryError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
    assert outcomes["refused"] > 50, outcomes
    assert outcomes["read"] > 50, outcomes
