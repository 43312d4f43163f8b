"""`multi_agent.json`: how far an orchestrator is, and what in it is ours.

    session_<id>/multi_agents/multi_agent_<id>/multi_agent.json           the run, see `core/orchestration/document.py`
    session_<id>/multi_agents/multi_agent_<id>/repertory/rows_<seq>.json  ours: the rows of its journal

Our key in it, `repertory`, names the last row that it shows, and has a digest of all else: when that is another one, or
the key is not there, somebody else has written it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from repertory.core.message_tree.documents import FORMAT, OURS
from repertory.core.message_tree.spelling import decoded, parsed, spelled
from repertory.core.orchestration.document import document_of

if TYPE_CHECKING:
    from repertory.core.messages import Json
    from repertory.core.orchestration.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """The document as it was found."""

    said: Mapping[str, Json]
    """All of it but what is ours."""
    seq: int | None
    """The last row that it shows; None when somebody else has written it last."""
    digest: str
    """Of what it says."""


def run_file(run: Run, orchestrator_id: str, seq: int) -> bytes:
    """The document. `seq`: the last row that it shows."""
    said = document_of(run, orchestrator_id)
    ours = {"format": FORMAT, "seq": seq, "digest": _digest(parsed(spelled(said)))}
    return spelled({**said, OURS: ours})


def read_run_file(body: bytes, orchestrator_id: str) -> RunFile:
    """The document again, whoever wrote it. Errors: `ValueError` for what cannot be read, or is about another
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
    """By which we know what we have written, in whatever order its keys stand."""
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]
