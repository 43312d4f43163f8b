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
    api: Any = sys.modules.get("opentelemetry.trace")  # Whoever traces has imported it.
    if api is None:
        yield
        return
    with api.get_tracer(_NAME).start_as_current_span(name, attributes=dict(attributes)):
        yield
