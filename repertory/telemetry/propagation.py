"""Traces on their way from one process to the next, as W3C Trace Context: a `traceparent`, and what else the program's
propagator writes.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import context as contexts
from opentelemetry import propagate, trace

_VERSION, _PARTS = "00", 4


def carried(context: contexts.Context | None = None) -> dict[str, str]:
    """The trace of that context, or the current one, as headers, by the program's propagator; empty without one."""
    headers: dict[str, str] = {}
    propagate.inject(headers, context)
    return headers


def continue_from(headers: Mapping[str, str]) -> None:
    """Make the trace of these headers the current one, in the running context. Unreadable ones are left out."""
    contexts.attach(propagate.extract({**headers}))


def as_traceparent(span: trace.SpanContext) -> str | None:
    """The span's context in one line; None for one that nobody could find."""
    if not span.is_valid:
        return None
    return f"{_VERSION}-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def from_traceparent(line: str) -> trace.SpanContext | None:
    """The span's context; None for what is none, since journals outlive formats."""
    parts = line.split("-")
    if len(parts) < _PARTS:
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:_PARTS])
    except ValueError:
        return None
    found = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags & 0xFF))
    return found if found.is_valid else None
