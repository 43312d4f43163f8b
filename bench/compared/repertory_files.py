"""Repertory with its file session manager, which keeps the documents of strands-agents."""

from __future__ import annotations

from typing import Any

from common import SESSION, main
from repertory_sqlite import Repertory

from repertory import FileSessionManager


class RepertoryFiles(Repertory):
    def session(self) -> Any:
        return FileSessionManager(session_id=SESSION, storage_dir=self.folder / "sessions")


if __name__ == "__main__":
    main(RepertoryFiles)
