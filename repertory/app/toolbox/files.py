"""Text files for the model, below one folder and nowhere else."""

from __future__ import annotations

import os
from typing import Any

from repertory.app.toolbox.folder import Folder
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool


def file_tools(root: str | os.PathLike[str]) -> tuple[FunctionTool[..., Any], ...]:
    """The tools `list_files`, `read_file`, `write_file` and `append_file` on one existing folder.

    Writing twice is as good as once; appending twice is not, and says so. Errors: `Invalid` when `root` is no folder.
    """
    folder = Folder(root)

    @tool(effects=False, idempotent=True)
    def list_files() -> dict[str, object]:
        """List the files that can be read."""
        listing = folder.files()
        return {"files": listing.paths, "more": listing.more}

    @tool(effects=False, idempotent=True)
    def read_file(path: str) -> str:
        """Read a text file.

        Args:
            path: Relative, such as "notes/today.md".
        """
        return folder.read(path)

    @tool(idempotent=True)
    def write_file(path: str, text: str) -> str:
        """Make a text file, or replace all that stands in it. Missing folders are made.

        Args:
            path: Relative, such as "notes/today.md".
            text: The whole new content.
        """
        return f"wrote {folder.write(path, text)} bytes to {path}"

    @tool
    def append_file(path: str, text: str) -> str:
        """Add text to the end of a file, which is made when it is not there.

        Args:
            path: Relative, such as "notes/today.md".
            text: What to add; end it with a line break.
        """
        return f"{path} now has {folder.append(path, text)} bytes"

    return list_files, read_file, write_file, append_file
