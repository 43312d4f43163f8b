"""Spans around what agents do besides turns, and events of what a turn lacks, for whoever traces with OpenTelemetry;
nothing without it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

AttributeValue: TypeAlias = (
    "str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]"
)
"""What a span can say of something."""
_NAME = "repertory"


@contextmanager
def span(name: str, attributes: Mapping[str, AttributeValue]) -> Generator[None]:
    """A span of that name as the current one, ended with the block; an error in the block is recorded in it."""
    get_tracer = _imported("get_tracer")
    if get_tracer is None:
        yield
        return
    with get_tracer(_NAME).start_as_current_span(name, attributes=dict(attributes)):
        yield


def tell_left_out(name: str, why: str) -> None:
    """Note on the current span, which is the caller's, that something was not told to the model, and why."""
    get_current_span = _imported("get_current_span")
    if get_current_span is not None:
        get_current_span().add_event("repertory.injection.left_out", {"injection": name, "why": why})


def _imported(name: str) -> Any:
    """That function, if whoever traces has imported it, wholly: before, another thread may be at it."""
    return getattr(sys.modules.get("opentelemetry.trace"), name, None)
