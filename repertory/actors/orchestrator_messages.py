"""What the orchestrator of a session is asked to do beside running: to say what it is, and to be what it once was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from repertory.actors.agent_messages import AgentMessage
from repertory.core.snapshots.orchestrators import RunFields
from repertory.runtime.message import Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRun(Ask[Mapping[str, object]]):
    """Say what a snapshot says of it and of its nodes, all as of the moment when this is heard. Stops nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun(Ask[None]):
    """Go on from a snapshot; answered when that is durable. Waits for the call that works, not for those that wait."""

    wanted: RunFields
    token: str | None = None
    """What the run is called from now on; None leaves it its name."""


OrchestratorMessage: TypeAlias = AgentMessage | SaveRun | LoadRun
