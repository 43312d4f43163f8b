"""Loading what builds schemas, at the moment when a first schema is needed.

The library takes some 70 ms and reads files, so code that runs on an event loop awaits `load_schema_library` first; the
import then happens in a worker thread.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import anyio.to_thread

if TYPE_CHECKING:
    from repertory.backends.tools.input_schema import InputSchema


@functools.cache
def schema_class() -> type[InputSchema]:
    """`InputSchema`, imported at the first call. Blocks while it loads."""
    from repertory.backends.tools.input_schema import InputSchema

    InputSchema("warm_up", schema_class, (), {})  # the library looks for its plugins on disk at the first schema
    return InputSchema


async def load_schema_library() -> None:
    """Have the library loaded without holding the event loop up. Costs nothing when it is there already."""
    if not schema_class.cache_info().currsize:
        await anyio.to_thread.run_sync(schema_class)
