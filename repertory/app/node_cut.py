"""What the nodes of an orchestrator are at one moment, read while they go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping

import anyio

from repertory.errors import RepertoryError


class NodeCut:
    """Reads every node once. Whoever is about to begin something in one has it read first."""

    def __init__(
        self, nodes: Collection[str], read: Callable[[str], Awaitable[object]], done: Callable[[NodeCut], None]
    ) -> None:
        """`read` gives what a node is now, None when it has done nothing yet; `done` is called when all are read."""
        self._nodes = nodes
        self._read_one = read
        self._done = done
        self._locks: dict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._found: dict[str, object] = {}
        self._error: RepertoryError | None = None

    async def read(self) -> Mapping[str, object]:
        """What each node is that has done anything. Errors: what reading one met."""
        try:
            async with anyio.create_task_group() as group:
                for node in self._nodes:
                    group.start_soon(self.keep, node)
        finally:
            self._done(self)
        if self._error is not None:
            raise self._error
        return {node: self._found[node] for node in self._nodes if self._found[node] is not None}

    async def keep(self, node: str) -> None:
        """Have it read by now. An error is for whoever wants to know what the nodes are: the node may begin."""
        async with self._locks[node]:
            if node not in self._found:
                try:
                    self._found[node] = await self._read_one(node)
                except RepertoryError as error:
                    self._found[node], self._error = None, error
