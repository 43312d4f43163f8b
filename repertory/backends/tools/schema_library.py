"""Loads the schema library when the first schema is needed.

The library takes some 70 ms and reads files, so code on an event loop awaits `load_schema_library` first; the import
then runs in a worker thread.
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
    """Load the library without blocking the event loop. Costs nothing when it is loaded."""
    if not schema_class.cache_info().currsize:
        await anyio.to_thread.run_sync(schema_class)
