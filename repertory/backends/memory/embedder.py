"""What makes vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Embedder(Protocol):
    """Makes vectors of texts: texts that mean the same have vectors that point the same way.

    It is asked from several event loops. When it has an `aclose`, that is called in a loop that has no more use for it.
    """

    @property
    def name(self) -> str:
        """Of the model that makes them. Vectors of different names are never compared."""
        ...

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text, in order. Errors: whatever it likes; the texts are tried again later."""
        ...
