"""An MCP server with the tools of a folder of notes. The assistant starts it: `python notes_server.py FOLDER`.

It knows nothing of Repertory, and any MCP client can use it. The annotations tell Repertory what to do about a call
that a crash cut off: a tool that only reads, or may be repeated, runs again; for any other one a person is asked.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

READS = ToolAnnotations(read_only_hint=True)
REPEATABLE = ToolAnnotations(read_only_hint=False, idempotent_hint=True)
APPENDS = ToolAnnotations(read_only_hint=False, idempotent_hint=False)


def notes_server(folder: Path) -> MCPServer:
    """The server of one folder, which is created with the first note."""
    server = MCPServer("notes", log_level="WARNING")

    def place_of(path: str) -> Path:
        place = (folder / path).resolve()
        if place.parent != folder.resolve() or place.suffix not in {".txt", ".md"}:
            raise ValueError("a note is a .txt or .md file, directly in the folder of the notes")
        return place

    @server.tool(annotations=READS)
    def list_files() -> str:
        """List the names of all notes."""
        return ", ".join(sorted(place.name for place in folder.glob("*.*"))) or "none yet"

    @server.tool(annotations=READS)
    def read_file(path: str) -> str:
        """Read one note. `path` is its name, such as `shopping.txt`."""
        place = place_of(path)
        if not place.exists():
            raise ValueError(f"there is no note {path}; list_files names those that are there")
        return place.read_text(encoding="utf-8")

    @server.tool(annotations=READS)
    def find_notes(words: str) -> str:
        """Find the lines of notes that hold all of these words."""
        wanted = words.lower().split()
        found = [
            f"{place.name}:{number}: {line}"
            for place in sorted(folder.glob("*.*"))
            for number, line in enumerate(place.read_text(encoding="utf-8").splitlines(), 1)
            if all(word in line.lower() for word in wanted)
        ]
        return "\n".join(found) or "no line has all of these words"

    @server.tool(annotations=REPEATABLE)
    def write_file(path: str, text: str) -> str:
        """Write a note, in the place of the one that has this name."""
        place = place_of(path)
        folder.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text.rstrip()}\n", encoding="utf-8")
        return f"{place.name} has {len(text.splitlines())} lines."

    @server.tool(annotations=APPENDS)
    def append_file(path: str, text: str) -> str:
        """Add lines at the end of a note, which is created when missing."""
        place = place_of(path)
        folder.mkdir(parents=True, exist_ok=True)
        with place.open("a", encoding="utf-8") as file:
            file.write(f"{text.rstrip()}\n")
        return f"{place.name} has {len(place.read_text(encoding='utf-8').splitlines())} lines."

    return server


if __name__ == "__main__":
    notes_server(Path(sys.argv[1])).run()
