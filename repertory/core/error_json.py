"""Errors as JSON, and back: the group that says what the caller does next, the class, the text, and what it carries.

    {"group", "type", "text"}                            of every error
    {"fields", "args", "notes"}                          when there are any
    {"retry_after_s", "stdout", "stderr", "request_state", "errors", "result"}   of the classes that have them
    {"cause": ERROR} or {"context": ERROR}               what a traceback shows above it

`type` is the nearest public class of `repertory.errors`, or a class of Python's from a closed list; any other error is
`Failed`, and its text begins with the name of its class. Nothing is imported or called by a name in the data.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from repertory.core.json_fields import (
    OMITTED,
    as_text,
    json_list,
    json_number,
    json_object,
    json_or,
    json_texts,
    leave_out,
    tried,
)
from repertory.errors import (
    CLASSES,
    AggregateMemoryError,
    CommandTimeout,
    Conflict,
    Corrupt,
    EventLoopException,
    Failed,
    Gone,
    Invalid,
    LimitReached,
    NodeFailed,
    RepertoryError,
    Retryable,
    Throttled,
)

if TYPE_CHECKING:
    from repertory.core.messages import Json

ERRORS_MAX = 32
"""Errors in one document: causes, contexts, and the members of groups."""
CUT: Final = "further errors were left out"
"""The text of the error in the place of those beyond `ERRORS_MAX`."""
_GROUPS = (Invalid, Retryable, Conflict, Gone, LimitReached, Corrupt, Failed)
"""The groups of errors. An error of two groups counts as one of the first."""
_PYTHONS: Mapping[str, type[Exception]] = {
    name: vars(builtins)[name]
    for name in (
        *("ArithmeticError", "AssertionError", "AttributeError", "BlockingIOError", "BrokenPipeError", "BufferError"),
        *("ChildProcessError", "ConnectionAbortedError", "ConnectionError", "ConnectionRefusedError", "EOFError"),
        *("ConnectionResetError", "Exception", "FileExistsError", "FileNotFoundError", "FloatingPointError"),
        *("ImportError", "IndexError", "InterruptedError", "IsADirectoryError", "KeyError", "LookupError"),
        *("MemoryError", "ModuleNotFoundError", "NameError", "NotADirectoryError", "NotImplementedError", "OSError"),
        *("OverflowError", "PermissionError", "ProcessLookupError", "RecursionError", "ReferenceError"),
        *("RuntimeError", "SystemError", "TimeoutError", "TypeError", "UnboundLocalError", "ValueError"),
        "ZeroDivisionError",
    )
}
_GROUP_OF_ERRORS = "ExceptionGroup"

WriteResult: TypeAlias = "Callable[[object], Json]"
"""The JSON of the `result` that an error carries; None for what is no result of a run."""
ReadResult: TypeAlias = "Callable[[Mapping[str, Json]], object]"


def error_fields(error: BaseException, write_result: WriteResult) -> dict[str, Json]:
    """The fields of an error. Never fails, whatever the error is; bytes stay bytes."""
    return _Writer(write_result).write(error)


class _Writer:
    """Writes an error and those behind it, each one once."""

    def __init__(self, write_result: WriteResult) -> None:
        self._write_result = write_result
        self._remaining = ERRORS_MAX
        self._seen: set[int] = set()

    def write(self, error: BaseException) -> dict[str, Json]:
        self._remaining -= 1
        self._seen.add(id(error))
        fields = self._itself(error)
        notes = getattr(error, "__notes__", None)
        if isinstance(notes, list | tuple):
            fields["notes"] = [as_text(note, str, None) for note in cast("Sequence[object]", notes)]
        suppressed = error.__cause__ is not None or error.__suppress_context__
        name, behind = ("cause", error.__cause__) if suppressed else ("context", error.__context__)
        # `raise error from error`, and contexts set by hand, make circles; `traceback` guards itself in the same way.
        if behind is not None and id(behind) not in self._seen:
            fields[name] = self.write(behind) if self._remaining > 0 else _cut()
        return fields

    def _itself(self, error: BaseException) -> dict[str, Json]:
        if isinstance(error, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", error)
            return {**_head(Failed, _GROUP_OF_ERRORS, str(group.message)), "errors": self._members(group.exceptions)}
        text = as_text(error, str, None)
        if isinstance(error, RepertoryError):
            # By identity, and not by name: a class of somebody's own that is called `Invalid` must not be read back as
            # ours.
            kind = next(each for each in type(error).__mro__ if CLASSES.get(each.__name__) is each)
            group = next((each for each in _GROUPS if issubclass(kind, each)), Failed)
            return {**_head(group, error.type_name or kind.__name__, text), **self._carried(error)}
        if _PYTHONS.get(type(error).__name__) is type(error):
            fields = _head(Failed, type(error).__name__, text)
            arguments = _arguments(cast("Exception", error))
            return {**fields, "args": arguments} if arguments not in ([], [text]) else fields
        name = type(error).__name__
        return _head(Failed, Failed.__name__, f"{name}: {text}" if text else name)

    def _carried(self, error: RepertoryError) -> dict[str, Json]:
        """The fields of an error besides its text."""
        given = cast("object", getattr(error, "fields", None))
        carried: dict[str, object] = {"fields": given if isinstance(given, dict) else None}
        match error:
            case Throttled():
                carried["retry_after_s"] = _seconds(error.retry_after_s)
            case CommandTimeout():
                carried |= {name: _as_text(getattr(error, name)) for name in ("stdout", "stderr")}
            case EventLoopException():
                carried["request_state"] = error.request_state
            case AggregateMemoryError():
                carried["errors"] = self._members(error.errors)
            case NodeFailed():
                written = tried(self._write_result, error.result)
                carried["result"] = None if written is OMITTED else json_or(written, leave_out)
            case _:
                pass
        fields = {name: as_fields(value) for name, value in carried.items()}
        return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}

    def _members(self, members: Sequence[object]) -> list[Json]:
        written: list[Json] = []
        for member in members:
            if self._remaining <= 0:
                return [*written, _cut()]
            written.append(self.write(member if isinstance(member, BaseException) else Failed(as_text(member))))
        return written


def _seconds(value: object) -> float | None:
    right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return cast("float", value) if right else None


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else as_text(value, str, None)


def _head(group: type[RepertoryError], name: str, text: str) -> dict[str, Json]:
    return {"group": group.__name__, "type": name, "text": text}


def _cut() -> Json:
    return _head(Failed, Failed.__name__, CUT)


def as_fields(value: object) -> Json:
    """The value as JSON; what JSON cannot hold is its `repr`, shortened."""
    return cast("Json", json_or(value, lambda other, _: as_text(other)))


def _arguments(error: Exception) -> Json:
    """The constructor's arguments, if the error can be made of them again: texts and numbers."""
    given: tuple[object, ...] = error.args
    if isinstance(error, OSError) and cast("object", error.filename) is not None:
        given = (*given[:2], cast("object", error.filename))
    plain = all(each is None or type(each) in (str, int, float, bool) for each in given)
    return as_fields([*given]) if plain else []


def error_in(data: object, read_result: ReadResult) -> Exception:
    """The error with these fields. Unknown keys are passed over.

    Errors: `KeyError`, `TypeError` or `ValueError` for anything else, and what `read_result` raises.
    """
    fields = json_object(data)
    error = _made(fields, read_result)
    for note in json_texts(fields.get("notes") or []):
        error.add_note(note)
    if fields.get("cause") is not None:
        error.__cause__ = error_in(fields["cause"], read_result)
    elif fields.get("context") is not None:
        error.__context__ = error_in(fields["context"], read_result)
    return error


def _made(fields: Mapping[str, Json], read_result: ReadResult) -> Exception:
    name, text = _text(fields["type"]), _text(fields["text"])
    if name == _GROUP_OF_ERRORS:
        return ExceptionGroup(text, [error_in(each, read_result) for each in json_list(fields["errors"])])
    if name in _PYTHONS:
        return _of_python(_PYTHONS[name], text, json_list(fields.get("args") or []))
    group = next((each for each in _GROUPS if each.__name__ == fields["group"]), Failed)
    error = CLASSES.get(name, group)(text)
    if name not in CLASSES:
        error.type_name = name
    carried: dict[str, object] = {**json_object(fields.get("fields") or {})}
    error.fields = carried
    _restore(error, fields, read_result)
    return error


def _restore(error: RepertoryError, fields: Mapping[str, Json], read_result: ReadResult) -> None:
    match error:
        case Throttled():
            wait_s = fields.get("retry_after_s")
            error.retry_after_s = None if wait_s is None else json_number(wait_s)
        case CommandTimeout():
            error.stdout, error.stderr = _text(fields.get("stdout", "")), _text(fields.get("stderr", ""))
        case EventLoopException():
            error.request_state = fields.get("request_state", {})
        case AggregateMemoryError():
            error.errors = tuple(error_in(each, read_result) for each in json_list(fields.get("errors") or []))
        case NodeFailed() if fields.get("result") is not None:
            error.result = read_result(json_object(fields["result"]))
        case _:
            pass


class _Key(str):
    """The text of a `KeyError`, which shows its key as `repr` does."""

    __slots__ = ()
    __repr__ = str.__str__


def _of_python(kind: type[Exception], text: str, arguments: Sequence[Json]) -> Exception:
    """An error of Python's that reads like the original: of its arguments if they say the same, else of its text."""
    if arguments:
        error = kind(*arguments)
        # `OSError(2, ...)` makes a `FileNotFoundError` of itself, and a class may show its arguments in another way:
        # then the text is what counts, under the class that the document names.
        if type(error) is kind and as_text(error, str, None) == text:
            return error
    if not text:
        return kind()
    return kind(_Key(text)) if kind is KeyError else kind(text)


def _text(value: Json) -> str:
    """The value as a text. Errors: `TypeError`."""
    if not isinstance(value, str):
        raise TypeError(value)
    return value
