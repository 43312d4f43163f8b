"""Notebooks for the model: texts in the agent's state, so that they outlive restarts and leave the window free."""

from __future__ import annotations

from typing import Any, Literal, cast

from repertory.backends.ports import ToolContext
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.errors import Invalid

NOTEBOOK_BYTES_MAX = 1_048_576
DEFAULT_NOTEBOOK_DESCRIPTION = (
    "Keep notes in named texts that outlive this conversation's window. create makes a notebook or empties one and "
    "writes new_str; list names them; read gives one, or the lines of read_range; clear empties one. write needs a "
    "notebook that is there: new_str alone is added at the end, with old_str it takes its place, with insert_line it "
    "becomes a line of its own after that line."
)
_DEFAULT = "default"
_STATE = "notebooks"


def make_notebook(
    *,
    name: str = "notebook",
    description: str = DEFAULT_NOTEBOOK_DESCRIPTION,
    max_notebook_size_bytes: int = NOTEBOOK_BYTES_MAX,
) -> FunctionTool[Any]:
    """The tool `notebook`. The texts are in the agent's state under `notebooks`, by name, each within the given size.

    Errors: `Invalid` for an empty name, and for a size that is no positive number.
    """
    if not name:
        raise Invalid("name must be a non-empty string")
    if type(max_notebook_size_bytes) is not int or max_notebook_size_bytes < 1:
        raise Invalid("max_notebook_size_bytes must be a positive integer", got=max_notebook_size_bytes)

    @tool(name=name, description=description, effects=False)
    async def notebook_tool(
        mode: Literal["create", "list", "read", "write", "clear"],
        tool_context: ToolContext,
        name: str | None = None,
        new_str: str | None = None,
        old_str: str | None = None,
        insert_line: int | str | None = None,
        read_range: list[int] | None = None,
    ) -> str:
        """Keep notes.

        Args:
            mode: What to do.
            name: Which notebook; "default" when left out.
            new_str: The text to write.
            old_str: Exact text that new_str takes the place of.
            insert_line: The line after which new_str is put: its number (0 for the top, negative from the end), or a
                text in it.
            read_range: First and last line to read, from 1; negative from the end.
        """
        state = tool_context.agent.state
        books = _read(state.get(_STATE))
        which = _DEFAULT if name is None else name
        if mode == "list":
            return _listed(books)
        if mode != "create" and which not in books:
            raise Invalid(f"Notebook '{which}' not found", there_are=sorted(books))
        if mode == "read":
            return _numbered(which, books[which], read_range)
        text, done = _changed(mode, which, books.get(which, ""), new_str, old_str, insert_line)
        size_bytes = len(text.encode())
        if mode != "clear" and size_bytes > max_notebook_size_bytes:
            raise Invalid(
                f"Notebook '{which}' would exceed maximum of {max_notebook_size_bytes} bytes", size_bytes=size_bytes
            )
        state.set(_STATE, {**books, which: text})
        return done

    return notebook_tool


def _read(stored: object) -> dict[str, str]:
    """The texts by name; there is always one. Errors: `Invalid` for state that something else has written."""
    if stored is None or stored == {}:
        return {_DEFAULT: ""}
    if not isinstance(stored, dict):
        raise Invalid("Malformed notebooks state: expected a dict", got=type(stored).__name__)
    books = cast("dict[object, object]", stored)
    if not all(isinstance(part, str) for pair in books.items() for part in pair):
        raise Invalid("Malformed notebooks state: keys and values must be strings")
    return cast("dict[str, str]", books)


def _listed(books: dict[str, str]) -> str:
    lines = [f"- {name}: {f'{len(_lines(text))} lines' if text else 'Empty'}" for name, text in books.items()]
    return "\n".join(["Available notebooks:", *lines])


def _lines(text: str) -> list[str]:
    return text.split("\n")


def _numbered(name: str, text: str, read_range: list[int] | None) -> str:
    if read_range is None:
        return text or f"Notebook '{name}' is empty"
    if len(read_range) != 2:
        raise Invalid("`read_range` must be a list of two integers: `[start, end]`", got=read_range)
    lines = _lines(text)
    first, last = (each if each >= 0 else len(lines) + each + 1 for each in read_range)
    numbers = range(max(first, 1), min(last, len(lines)) + 1)
    if not numbers:
        return f"No lines found in range {read_range}: notebook '{name}' has {len(lines)} line(s)."
    return "\n".join(f"{number}: {lines[number - 1]}" for number in numbers)


def _changed(
    mode: str, name: str, text: str, new: str | None, old: str | None, insert_line: int | str | None
) -> tuple[str, str]:
    """The text after the change, and what to say about it. Errors: `Invalid`."""
    book = f"notebook '{name}'"
    if mode == "clear":
        return "", f"Cleared {book}"
    if mode == "create":
        return new or "", f"Created {book}{' with specified content' if new else ' (empty)'}"
    if new is None:
        raise Invalid("Write operation requires new_str alone, with old_str, or with insert_line")
    if old is not None and insert_line is not None:
        raise Invalid("Write operation is ambiguous: give old_str or insert_line, not both")
    if old is not None:
        if old not in text:
            raise Invalid(f"String '{old}' not found in {book}")
        return text.replace(old, new, 1), f"Replaced text in {book}"
    if insert_line is not None:
        lines = _lines(text)
        at = _after(lines, insert_line, book)
        lines.insert(at, new)
        return "\n".join(lines), f"Inserted text at line {at + 1} in {book}"
    if not new:
        return text, f"No changes made to {book}"
    gap = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{gap}{new}", f"Appended text to {book}"


def _after(lines: list[str], insert_line: object, book: str) -> int:
    """The index behind the line. Errors: `Invalid` for a line that is not there."""
    if isinstance(insert_line, str):
        for number, line in enumerate(lines, 1):
            if insert_line in line:
                return number
        raise Invalid(f"Text '{insert_line}' not found in {book}")
    if not isinstance(insert_line, int) or isinstance(insert_line, bool):
        raise Invalid("`insert_line` must be an integer or string", got=insert_line)
    at = insert_line if insert_line >= 0 else len(lines) + insert_line + 1
    if not 0 <= at <= len(lines) + 1:
        raise Invalid("Line number out of range", got=insert_line, lines=len(lines))
    return at


notebook = make_notebook()
