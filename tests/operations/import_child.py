"""A process that imports a session and kills itself on the way.

Arguments: kind of place, folder, file, and the crash point at which it dies (none: it does not).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import anyio

from repertory import Sessions
from repertory.app.sessions.sessions import SessionLocation
from repertory.backends.ports import SessionStore
from repertory.testing.crash_points import CrashingSessionStore, CrashPoints
from tests.backends.sessions.log_places import crash_in_system_calls
from tests.operations.operated_places import place_of

OWNER = "dying"


@dataclass(frozen=True)
class DyingPlace:
    """A place whose writer dies."""

    kind: str
    folder: Path
    points: CrashPoints

    @property
    def key(self) -> str:
        return "dying"

    def open_store(self) -> SessionStore:
        if self.kind in ("journal in files", "documents in files"):
            crash_in_system_calls(self.points)
            return place_of(self.kind, self.folder).open_store()
        return CrashingSessionStore(place_of(self.kind, self.folder).open_store(), self.points)


async def run(place: SessionLocation, file: str) -> None:
    await Sessions(place).import_(file)


if __name__ == "__main__":
    _, which, root, path, *rest = sys.argv
    points = CrashPoints(int(rest[0]) if rest else None)
    anyio.run(run, DyingPlace(which, Path(root), points), path)
    print(points.reached_count)
