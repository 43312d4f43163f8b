"""A tool by which the model reads, makes and edits text files by their absolute paths."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Literal

from repertory.backends.ports import ToolContext
from repertory.backends.sandbox_ports import FILE_BYTES_MAX
from repertory.backends.this_machine import FileAccess, ThisMachine, ToolSandbox, sandbox_for
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.errors import Invalid, NotFound
from repertory.toolbox.files import FilesBelow

DEFAULT_FILE_EDITOR_DESCRIPTION = (
    "View, make and edit text files by their absolute paths. view gives a file with line numbers, or the lines of "
    "view_range, or the entries of a folder; create makes a new file; str_replace replaces a text that is in the file "
    "exactly once; insert puts new_str after the line insert_line, 0 for the top."
)
_AROUND = 4
_DEPTH_MAX = 3


def make_file_editor(
    *,
    sandbox: ToolSandbox | None = None,
    name: str = "file_editor",
    description: str = DEFAULT_FILE_EDITOR_DESCRIPTION,
    root: str | None = None,
) -> FunctionTool[Any]:
    """The tool `file_editor`. `sandbox`: where the files are; None for this machine, with the rights of this process.
    `root`: an absolute path, below which all paths must be. On this machine no link below it is followed; elsewhere
    paths are compared by name.

    Errors: `Invalid` for a root that is no absolute path.
    """
    if root is not None:
        _check_path(root)

    @tool(name=name, description=description)
    async def file_editor_tool(
        command: Literal["view", "create", "str_replace", "insert"],
        path: str,
        tool_context: ToolContext,
        file_text: str | None = None,
        view_range: list[int] | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
    ) -> str:
        """View and edit files.

        Args:
            command: What to do.
            path: An absolute path.
            file_text: The whole text of a new file, for create.
            view_range: First and last line, from 1, for view; -1 for the end of the file.
            old_str: The text to replace, for str_replace.
            new_str: What takes its place, for str_replace and insert.
            insert_line: The line after which new_str is put, for insert.
        """
        file = path.rstrip("/\\") or "/"
        _check_path(file)
        if root is not None and not PurePosixPath(file).is_relative_to(root):
            raise Invalid("the path is not below the folder that may be edited", path=file, folder=root)
        runner = sandbox_for(sandbox, tool_context.agent)
        files: FileAccess = FilesBelow(root) if root is not None and isinstance(runner, ThisMachine) else runner
        if command == "view":
            return await _view(files, file, view_range)
        if command == "create":
            return await _create(files, file, file_text)
        if command == "str_replace":
            if old_str is None:
                raise Invalid("Parameter `old_str` is required for command: str_replace")
            edited, at, lines = _replaced(await _text(files, file), old_str, new_str or "", file)
        elif insert_line is None or new_str is None:
            raise Invalid("Parameters `insert_line` and `new_str` are required for command: insert")
        else:
            edited, at, lines = _inserted(await _text(files, file), insert_line, new_str)
        await files.write_text(file, edited)
        first = max(0, at - _AROUND)
        around = "\n".join(edited.split("\n")[first : at + lines + _AROUND])
        seen = numbered(around, f"a snippet of {file}", first + 1)
        return f"The file {file} has been edited. {seen}Look whether it is as you want it, and edit it again if not."

    return file_editor_tool


def _check_path(path: str) -> None:
    if not path.startswith("/"):
        raise Invalid(f"The path {path} is not an absolute path, it should start with `/`. Maybe you meant /{path}?")
    if ".." in path.replace("\\", "/").split("/"):
        raise Invalid("Invalid path: path traversal is not allowed", path=path)


async def _kind(files: FileAccess, path: str) -> Literal["folder", "file"] | None:
    """The kind of the file or folder at this path; None for nothing."""
    if path == "/":
        return "folder"
    target = PurePosixPath(path)
    try:
        entries = await files.list_files(str(target.parent))
    except (FileNotFoundError, NotFound):
        return None
    found = next((entry for entry in entries if entry.name == target.name), None)
    return None if found is None else "folder" if found.is_dir else "file"


async def _text(files: FileAccess, path: str) -> str:
    """The text of a file. Errors: `Invalid` when there is no such file."""
    kind = await _kind(files, path)
    if kind is None:
        raise Invalid(f"The path {path} does not exist. Please provide a valid path.")
    if kind == "folder":
        raise Invalid(f"The path {path} is a directory and only the `view` command can be used on directories")
    text = await files.read_text(path)
    if len(text.encode()) > FILE_BYTES_MAX:
        raise Invalid(f"File size exceeds maximum allowed size ({FILE_BYTES_MAX} bytes)", path=path)
    return text


async def _view(files: FileAccess, path: str, view_range: list[int] | None) -> str:
    if await _kind(files, path) == "folder":
        if view_range:
            raise Invalid("The `view_range` parameter is not allowed when `path` points to a directory.")
        entries = "\n".join(await _below(files, path, "", _DEPTH_MAX))
        return f"The files and folders in {path}, up to {_DEPTH_MAX} levels deep, without hidden ones:\n{entries}\n"
    lines = (await _text(files, path)).split("\n")
    if not view_range:
        return numbered("\n".join(lines), path)
    first, last = _checked_range(view_range, len(lines))
    return numbered("\n".join(lines[first - 1 : last]), path, first)


def _checked_range(view_range: list[int], lines: int) -> tuple[int, int]:
    where = f"Invalid `view_range`: {view_range}."
    if len(view_range) != 2:
        raise Invalid(f"{where} It is a list of two lines")
    first, last = view_range
    if not 1 <= first <= lines:
        raise Invalid(f"{where} Its first element `{first}` should be within the range of lines: [1, {lines}]")
    if last == -1:
        return first, lines
    if last > lines:
        raise Invalid(f"{where} Its second element `{last}` should be smaller than the number of lines: `{lines}`")
    if last < first:
        raise Invalid(f"{where} Its second element `{last}` should be larger or equal than its first `{first}`")
    return first, last


async def _below(files: FileAccess, folder: str, prefix: str, depth: int) -> list[str]:
    found: list[str] = []
    try:
        entries = await files.list_files(folder)
    except (OSError, NotFound):
        return found
    for entry in entries:
        if not entry.name.startswith("."):
            name = f"{prefix}{entry.name}"
            found.append(f"{name}/" if entry.is_dir else name)
            if entry.is_dir and depth > 1:
                found += await _below(files, f"{folder.rstrip('/')}/{entry.name}", f"{name}/", depth - 1)
    return found


async def _create(files: FileAccess, path: str, text: str | None) -> str:
    if text is None:
        raise Invalid("Parameter `file_text` is required for command: create")
    if await _kind(files, path) is not None:
        raise Invalid(f"File already exists at: {path}. Cannot overwrite files using command `create`.")
    await files.write_text(path, text)
    return f"File created successfully at: {path}"


# Edits: the new text, the index of the first changed line, and the number of changed lines.


def _replaced(text: str, old: str, new: str, path: str) -> tuple[str, int, int]:
    """Replace a text. Errors: `Invalid` unless the old text is there exactly once."""
    if not old:
        raise Invalid("No replacement was performed, old_str must not be empty.")
    times = text.count(old)
    if times == 0:
        raise Invalid(f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
    if times > 1:
        lines = [number for number, line in enumerate(text.split("\n"), 1) if old in line]
        raise Invalid(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines {lines}. "
            "Please ensure it is unique"
        )
    before = text.partition(old)[0]
    return text.replace(old, new, 1), before.count("\n"), new.count("\n") + 1


def _inserted(text: str, after: int, new: str) -> tuple[str, int, int]:
    """Insert a text. Errors: `Invalid` for a line that is not there."""
    lines, added = text.split("\n"), new.split("\n")
    if not 0 <= after <= len(lines):
        raise Invalid(
            f"Invalid `insert_line` parameter: {after}. It should be within the range of lines: [0, {len(lines)}]"
        )
    if not text:
        return new, 0, len(added)
    return "\n".join([*lines[:after], *added, *lines[after:]]), after, len(added)


def numbered(text: str, source: str, first: int = 1) -> str:
    """The text with the numbers of its lines."""
    lines = text.expandtabs(8).split("\n") if "\t" in text else text.split("\n")
    body = "\n".join(f"{number:>6}  {line}" for number, line in enumerate(lines, first))
    return f"Here's the result of running `cat -n` on {source}:\n{body}\n"


file_editor = make_file_editor()
