"""Tools by which the model lists, searches, reads and edits the text files of one folder, in few tokens.

Every answer is bounded, so that none of them has to be moved out of the conversation, and says how to get the rest.
What begins with a dot is out of reach: secrets (`.env`), hooks that git would run, and what Repertory itself keeps.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.backends.tools.line_search import is_plain, search_lines
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid, NotFound, RepertoryError
from repertory.toolbox.files import Folder

ANSWER_CHARS = 5_000
"""The most characters of an answer: some 1,250 tokens, below the size at which results are moved out of the window."""
PATHS_MAX = 5_000
"""The most files that a search looks at."""
LINE_CHARS = 400
"""A match in a longer line is given by the line's beginning."""
_SEARCHED_CHARS = 8_000_000


def workspace_tools(root: str | os.PathLike[str]) -> tuple[FunctionTool[Any], ...]:
    """The tools `list_files`, `search_files`, `read_file`, `edit_file` and `write_file` on one folder.

    Paths are relative to it. No link is followed, and names that begin with a dot are out of reach. Each tool may run
    again after a crash: an edit that has been made already is recognised. A root that is no folder is an error of each
    call.
    """
    files = Workspace(root)

    @tool(effects=False, idempotent=True)
    async def list_files(pattern: str = "*") -> str:
        """List the paths of the files.

        Args:
            pattern: Only these, such as "src/*.py"; * also matches slashes.
        """
        return await run_in_thread(lambda: files.listing(pattern))

    @tool(effects=False, idempotent=True)
    async def search_files(text: str, pattern: str = "*") -> str:
        """Find the lines with a text in all files: path, line number and line of each.

        Args:
            text: A plain text or a regular expression.
            pattern: Only in files with these paths, such as "*.md".
        """
        return await files.matches(text, pattern)

    @tool(effects=False, idempotent=True)
    async def read_file(path: str, first_line: int = 1, lines: int | None = None) -> str:
        """Read a text file, or a part of a long one.

        Args:
            path: As list_files gives it.
            first_line: Where to begin, from 1.
            lines: How many lines; as many as fit without it.
        """
        return await run_in_thread(lambda: files.part(path, first_line, lines))

    @tool(idempotent=True)
    async def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text that stands in the file exactly once.

        Args:
            path: As list_files gives it.
            old: The text as it stands there, with enough around it to be unique.
            new: What takes its place.
        """
        return await run_in_thread(lambda: files.edit(path, old, new))

    @tool(idempotent=True)
    async def write_file(path: str, text: str) -> str:
        """Make a file, or replace all of it; to change a part, use edit_file.

        Args:
            path: Relative to the folder; missing folders are made.
            text: The whole content.
        """
        return await run_in_thread(lambda: files.write(path, text))

    return list_files, search_files, read_file, edit_file, write_file


class Workspace:
    """The text files of a folder, as the tools give them. Errors: those of `Folder`; `Invalid` for a hidden path.

    `root`: looked up when it is first used, so that this may be made inside an event loop.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = root

    @cached_property
    def folder(self) -> Folder:
        """The folder. Errors: `Invalid` when there is none."""
        return Folder(self._root)

    def paths(self, pattern: str = "*") -> list[str]:
        """The paths that match, by name within each folder, `PATHS_MAX` at most."""
        found: list[str] = []
        folders = ["."]
        while folders and len(found) < PATHS_MAX:
            here = folders.pop()
            prefix = "" if here == "." else f"{here}/"
            below: list[str] = []
            for entry in self._entries(here):
                path = f"{prefix}{entry[0]}"
                if entry[1]:
                    below.append(path)
                elif fnmatch(path, pattern):
                    found.append(path)
            folders += reversed(below)
        return found[:PATHS_MAX]

    def _entries(self, folder: str) -> list[tuple[str, bool]]:
        try:
            entries = self.folder.entries(folder)
        except (RepertoryError, OSError):  # It is gone by now, or may not be read.
            return []
        return [(each.name, bool(each.is_dir)) for each in entries if not each.name.startswith(".")]

    def listing(self, pattern: str) -> str:
        """The paths, one a line."""
        found = self.paths(pattern)
        return _bounded(found, "give a narrower pattern") if found else "No files."

    def part(self, path: str, first_line: int, most: int | None = None) -> str:
        """The lines of a file from one on: as many as there is room for, and `most` at most."""
        lines = self.text(path).split("\n")
        if not 1 <= first_line <= len(lines):
            raise Invalid("the file has no such line", lines=len(lines), first_line=first_line)
        if most is not None and most < 1:
            raise Invalid("lines is a positive number", lines=most)
        taken, size = 0, 0
        for line in lines[first_line - 1 :][:most]:
            if taken and size + len(line) > ANSWER_CHARS:
                break
            taken, size = taken + 1, size + len(line) + 1
        last = first_line + taken - 1
        text = "\n".join(lines[first_line - 1 : last])
        if len(text) > 2 * ANSWER_CHARS:
            text = (
                f"{text[: 2 * ANSWER_CHARS]}\n[this line has {len(text):,} characters; search_files finds parts of it]"
            )
        if last == len(lines):
            return text
        return f"{text}\n[lines {first_line}-{last} of {len(lines)}; go on with first_line={last + 1}]"

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text. Errors: also `NotFound` when it is not there, `Invalid` when it is there several times."""
        if not old or old == new:
            raise Invalid("old is the text that new replaces, and differs from it")
        text = self.text(path)
        if _is_made(text, old, new):
            return f"{path} reads so already."
        times = text.count(old)
        if times == 0:
            raise NotFound("the file does not have this text; read it, and copy the text as it stands", path=path)
        edited = text.replace(old, new)
        # A run that a crash cuts off is made again: an edit that would then be made twice is none for this tool.
        if times > 1 or (edited.count(old) == 1 and not _is_made(edited, old, new)):
            raise Invalid("this text is not unique enough; give more of what is around it", path=path, times=times)
        self.folder.write(_visible(path), edited)
        return f"Edited {path}, line {text[: text.index(old)].count(chr(10)) + 1}."

    def write(self, path: str, text: str) -> str:
        """Make or replace a file."""
        return f"Wrote {self.folder.write(_visible(path), text)} bytes to {path}."

    async def matches(self, text: str, pattern: str) -> str:
        """The matching lines of all files, with their places."""
        lines, spots, whole = await run_in_thread(lambda: self._all_lines(pattern))
        if is_plain(text):
            found: Sequence[int] = [at for at, line in enumerate(lines) if text in line]
        else:
            found = await search_lines(text, lines)
        found_lines = [f"{spots[at]}: {lines[at].strip()[:LINE_CHARS]}" for at in found]
        note = "" if whole else "\n[not all files were searched; give a pattern]"
        return (_bounded(found_lines, "search for more, or give a pattern") if found_lines else "Nothing found.") + note

    def _all_lines(self, pattern: str) -> tuple[list[str], list[str], bool]:
        lines: list[str] = []
        spots: list[str] = []
        room = _SEARCHED_CHARS
        paths = self.paths(pattern)
        for path in paths:
            try:
                text = self.folder.read(path)
            except (RepertoryError, OSError):  # No text, too large, or a link.
                continue
            room -= len(text)
            if room < 0:
                return lines, spots, False
            for number, line in enumerate(text.split("\n"), 1):
                lines.append(line)
                spots.append(f"{path}:{number}")
        return lines, spots, len(paths) < PATHS_MAX

    def text(self, path: str) -> str:
        """A whole file."""
        return self.folder.read(_visible(path))


def _visible(path: str) -> str:
    """The path. Errors: `Invalid` for one of which a part begins with a dot."""
    if any(part.startswith(".") and part != "." for part in path.split("/")):
        raise Invalid("names that begin with a dot are out of reach", path=path)
    return path


def _is_made(text: str, old: str, new: str) -> bool:
    """True if the edit seems to have been made: the new text is there, and the old one at most inside of it."""
    return bool(new) and text.count(new) == 1 and text.count(old) == new.count(old)


def _bounded(lines: Sequence[str], how: str) -> str:
    size = 0
    for at, line in enumerate(lines):
        size += len(line) + 1
        if size > ANSWER_CHARS and at:
            return "\n".join([*lines[:at], f"[{len(lines) - at} more; {how}]"])
    return "\n".join(lines)
