"""The marks of the SDK's pausable loop. No agent here makes any: its journal says where a turn continues."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from repertory.errors import SnapshotException

CHECKPOINT_SCHEMA_VERSION = "1.0"
CheckpointPosition: TypeAlias = Literal["after_model", "after_tools"]

_log = logging.getLogger("repertory.strands")


@dataclass(frozen=True)
class Checkpoint:
    """The place in a loop where it paused."""

    position: CheckpointPosition
    cycle_index: int = 0
    """The number of the loop's cycle, from 0."""
    schema_version: str = field(default=CHECKPOINT_SCHEMA_VERSION, init=False)

    def to_dict(self) -> dict[str, Any]:
        """The mark as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkpoint:
        """The mark from its JSON; unknown keys are logged and left out. Errors: `SnapshotException` for another
        version.
        """
        version = data.get("schema_version")
        if version != CHECKPOINT_SCHEMA_VERSION:
            raise SnapshotException(
                f"the checkpoint is not compatible with current version {CHECKPOINT_SCHEMA_VERSION}", version=version
            )
        unknown = sorted(data.keys() - {"position", "cycle_index", "schema_version"})
        if unknown:
            _log.warning("a checkpoint has unknown entries, which are left out: %s", ", ".join(unknown))
        return cls(data["position"], data.get("cycle_index", 0))
