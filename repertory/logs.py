"""Log lines in one form: `what happened key='value'`, with each value as a field of the record besides.

    note(_log, WARNING, "tool failed", error, tool=name, tool_use=use_id)

Nothing that people said, that a tool was given or has returned, and no credential gets into a line: an exception is
told by its class, by our own message if it is one of ours, and by the place where it was raised. Its traceback is a
line of its own at DEBUG, and has the classes and places, without the texts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from repertory.errors import RepertoryError

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

Log: TypeAlias = "logging.Logger | logging.LoggerAdapter[logging.Logger]"

IDS: ContextVar[Mapping[str, str]] = ContextVar("repertory_log_ids", default=MappingProxyType({}))
"""The session and agent of the turn that the running code works for."""
FIELDS = {"session": "session_id", "agent": "agent_id", "tool_use": "tool_use_id"}
"""The short names of fields in a line, each with the name of the record's field."""
_LOGGABLE = frozenset(
    {
        *("actor", "agent", "bucket", "code", "file", "folder", "key_id", "limit", "method", "model", "node"),
        *(
            "orchestrator",
            "owner",
            "peer",
            "phase",
            "place",
            "server",
            "service",
            "session",
            "status",
            "store",
            "stores",
        ),
        *("tool", "who"),
    }
)
"""Fields of our errors that a line may tell. Others may hold what a program, a model or a service has said."""
_CAUSES_MAX = 8
_TAKEN = frozenset(vars(logging.makeLogRecord({})))
"""Names that a record has already."""


class ActorLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records carry the actor's path, beside the fields of their own."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class TurnIds(logging.Filter):
    """A filter for a handler: gives every record, also those of your tools and hooks, the `session_id` and `agent_id`
    of the turn in which it is written; empty outside of turns.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record through."""
        ids = IDS.get()
        for name in ("session", "agent"):
            if not hasattr(record, FIELDS[name]):
                setattr(record, FIELDS[name], ids.get(name, ""))
        return True


def note(logger: Log, level: int, what: str, error: BaseException | None = None, /, **fields: object) -> None:
    """Write one line; the traceback of `error`, if there is one, is another at DEBUG. Fields that are None are left
    out. Ids: `session`, `agent`, `tool_use`, `token`; the first two are those of the running turn, unless given.
    """
    if not logger.isEnabledFor(level):
        return
    pairs: dict[str, object] = {name: value for name, value in fields.items() if value is not None}
    pairs = {**pairs, **{name: value for name, value in IDS.get().items() if name not in pairs}}
    if error is not None:
        pairs |= _error_fields(error)
    extra = {_field(name): value for name, value in pairs.items()}
    line = what.replace("%", "%%") + "".join(f" {name}=%r" for name in pairs)
    logger.log(level, line, *pairs.values(), extra=extra, stacklevel=2)
    if error is not None and level > DEBUG and logger.isEnabledFor(DEBUG):
        text = f"{what}, here"
        logger.debug(text, exc_info=without_texts(error), extra=extra, stacklevel=2)
    elif error is not None and level == DEBUG:
        logger.debug("the traceback", exc_info=without_texts(error), extra=extra, stacklevel=2)


def without_texts(error: BaseException, depth: int = 0) -> BaseException:
    """An error whose traceback is the same but for what errors say: addresses, inputs, words of people."""
    kind = type(error)
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        made: BaseException = BaseExceptionGroup("", [without_texts(each, depth + 1) for each in inner])
    else:
        named = type(kind.__name__, (Exception,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
        made = named(loggable_text(error)) if isinstance(error, RepertoryError) else named()
    with suppress(Exception):  # An exception of others may refuse to show its parts.
        made.__traceback__ = error.__traceback__
        if depth < _CAUSES_MAX:
            made.__cause__ = error.__cause__ and without_texts(error.__cause__, depth + 1)
            made.__context__ = error.__context__ and without_texts(error.__context__, depth + 1)
        made.__suppress_context__ = error.__suppress_context__
    return made


def _field(name: str) -> str:
    name = FIELDS.get(name, name)
    return f"{name}_" if name in _TAKEN or name in ("message", "asctime") else name


def _error_fields(error: BaseException) -> Mapping[str, object]:
    """The class of an error, our message, the class of its cause, and the line that raised it."""
    found: dict[str, object] = {"error": type(error).__name__}
    if isinstance(error, RepertoryError):
        found["cause"] = loggable_text(error)
    with suppress(Exception):  # As above.
        behind = error.__cause__
        if behind is not None:
            found["behind"] = type(behind).__name__
        trace = (behind or error).__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is not None:
            found["at"] = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return found


def loggable_text(error: BaseException) -> str:
    """The text about an error that a line may hold: the message of one of ours, without fields that may quote others;
    the class of any other.
    """
    if not isinstance(error, RepertoryError):
        return type(error).__name__
    all_fields = "".join(f" {name}={value!r}" for name, value in error.fields.items())
    may = "".join(f" {name}={value!r}" for name, value in error.fields.items() if _is_loggable(name, value))
    return str(error).removesuffix(all_fields) + may


def _is_loggable(name: str, value: object) -> bool:
    return name in _LOGGABLE or isinstance(value, bool | int | float)
