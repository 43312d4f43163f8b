"""`multi_agent.json`: the run of an orchestrator, and our key in it.

    session_<id>/multi_agents/multi_agent_<id>/multi_agent.json           the run, see `core/orchestration/document.py`
    session_<id>/multi_agents/multi_agent_<id>/repertory/rows_<seq>.json  ours: the rows of its journal

Our key `repertory` names the last row that the document shows, and holds a digest of all else: when the digest does not
match, or the key is missing, another program has written it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from repertory.core.journal.restore import Appender, Entropy, restore
from repertory.core.message_tree.documents import FORMAT, OURS
from repertory.core.message_tree.json_files import decoded, parsed, to_file
from repertory.core.message_tree.opening import OpenedTree, needed_of
from repertory.core.orchestration.document import document_of, records_from
from repertory.core.orchestration.run import RUN, Run

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.records import NodeChanged
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """The document, as read."""

    said: Mapping[str, Json]
    """All of it but our key."""
    seq: int | None
    """The last row that it shows; None when another program wrote it last."""
    digest: str
    """The digest of `said`."""


def run_file(run: Run, orchestrator_id: str, seq: int) -> bytes:
    """The document. `seq`: the last row that it shows."""
    said = document_of(run, orchestrator_id)
    ours = {"format": FORMAT, "seq": seq, "digest": _digest(parsed(to_file(said)))}
    return to_file({**said, OURS: ours})


def read_run_file(body: bytes, orchestrator_id: str) -> RunFile:
    """The document from a file, from any program. Errors: `ValueError` when it cannot be read or belongs to another
    orchestrator.
    """
    said = parsed(body)
    ours = said.pop(OURS, None)
    if said.get("id") != orchestrator_id:
        raise ValueError(f"it is about another orchestrator: {said.get('id')!r}")
    digest = _digest(said)
    kept = cast("dict[str, object]", ours) if isinstance(ours, dict) else {}
    known = kept.get("digest") == digest
    return RunFile(
        said=cast("dict[str, Json]", decoded(said)),
        seq=seq if known and isinstance(seq := kept.get("seq"), int) else None,
        digest=digest,
    )


def _digest(said: Mapping[str, object]) -> str:
    """Identifies what we wrote; the order of keys does not matter."""
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


_TAKEN_IN = "document"
"""A key in a run's record: the digest of the document it was made from, so that one document makes one run."""


def open_run(
    names: tuple[str, str], found: Sequence[Row], document: RunFile | None, at: float, entropy: Entropy
) -> OpenedTree:
    """The journal of an orchestrator, with new records for what other programs wrote. `names`: of session and journal.

    Errors: `CorruptJournal` for the rows; `Corrupt` for a malformed document.
    """
    session_id, journal = names
    restored = restore(needed_of(found), session_id=session_id)
    fold = restored.fold
    made: list[Row] = []
    if document is not None and document.seq is None and not _is_taken_in(fold, document):
        appender = Appender(journal, fold, restored.link, entropy)
        records = records_from(document.said, run_of(fold), at=at)
        made = appender.append_all(_marked(record, document) for record in records)
    return OpenedTree(found=found, made=made, files={}, fold=fold)


def run_of(fold: Fold) -> Run:
    """The run in an orchestrator's journal."""
    return Run.of(fold.nodes.values(), fold.frontier, fold.run)


def _is_taken_in(fold: Fold, document: RunFile) -> bool:
    begun = fold.nodes.get(RUN)
    return begun is not None and begun.data.get(_TAKEN_IN) == document.digest


def _marked(record: NodeChanged, document: RunFile) -> NodeChanged:
    if record.node != RUN:
        return record
    return replace(record, data={**record.data, _TAKEN_IN: document.digest})
