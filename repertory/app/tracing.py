"""Spans around what agents do besides turns, for whoever traces with OpenTelemetry; nothing without it."""

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
    # Whoever traces has imported it, wholly: before, another thread may be at it, and some names are missing.
    get_tracer: Any = getattr(sys.modules.get("opentelemetry.trace"), "get_tracer", None)
    if get_tracer is None:
        yield
        return
    with get_tracer(_NAME).start_as_current_span(name, attributes=dict(attributes)):
        yield
