"""The order book: the outside world of the demonstration, where doing something twice would cost money.

One line per executed order, on disk before the tool returns. The book is not part of the library: it survives the
worker and shows what really happened.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from repertory.backends.ports import Tool, ToolContext
from repertory.backends.tools.decorator import tool

ORDER_TOOL = "place_order"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One line of the book."""

    key: str
    """The idempotency key of the tool call that placed it."""
    tool_use_id: str
    item: str
    receipt: str


def order_tool(book: Path, *, pause_s: float) -> Tool:
    """The tool `place_order` on a book. It waits `pause_s` before and after it writes the order."""

    @tool(name=ORDER_TOOL)
    async def place_order(item: str, tool_context: ToolContext) -> str:
        """Order something from the wholesaler. It is paid for at once.

        Args:
            item: What and how much, such as "13 kilos of rye flour".
        """
        key = tool_context.idempotency_key
        receipt = f"receipt {zlib.crc32(key.encode()):08x} for {item}"
        order = Order(key=key, tool_use_id=tool_context.tool_use["toolUseId"], item=item, receipt=receipt)
        await anyio.sleep(pause_s)
        await anyio.to_thread.run_sync(_write, book, order)
        await anyio.sleep(pause_s)
        return receipt

    return place_order


def read_orders(book: Path) -> Sequence[Order]:
    """Every order in the book, in the order of their placement; empty when there is no book yet."""
    if not book.exists():
        return ()
    return [Order(**json.loads(line)) for line in book.read_text(encoding="utf-8").splitlines()]


def _write(book: Path, order: Order) -> None:
    """Add one line, complete even if this process is killed, and wait until it is on disk."""
    file = os.open(book, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, f"{json.dumps(asdict(order))}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
