"""Vectors of texts by OpenAI's service, and by every server that speaks its protocol, through Embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repertory.backends.models.sdk_client import ClientSettings, Service, sdk_clients
from repertory.backends.models.sdk_stream import ask
from repertory.errors import Invalid, ModelFailed

DEFAULT_MODEL_ID = "text-embedding-3-small"
DEFAULT_DIMENSIONS = 1536
_SERVICE = Service(
    name="OpenAI",
    model="OpenAIEmbedder",
    package="openai",
    client="AsyncOpenAI",
    root_error="OpenAIError",
    resource="embeddings",
    key_variable="OPENAI_API_KEY",
    url_variable="OPENAI_BASE_URL",
    keyless=True,
)


class OpenAIEmbedder:
    """An `Embedder` behind the Embeddings API. Building one connects to nothing.

    May be used from several event loops; each has its own connections, released by `aclose` in that loop. Errors:
    `Throttled` and `Unavailable` (call again later), `ModelFailed` (refused, no key, nonsense: the message says what to
    set), `ContextWindowOverflowException` (a text is too long).
    """

    def __init__(
        self,
        model_id: str = DEFAULT_MODEL_ID,
        *,
        dimensions: int = DEFAULT_DIMENSIONS,
        client_args: Mapping[str, Any] | None = None,
        client: Any = None,
    ) -> None:
        """`dimensions`: how many numbers a vector has; the service is asked for so many. `client_args`: arguments of
        `openai.AsyncOpenAI`. `client`: such a client of your own, used as it is and never closed.
        """
        if dimensions < 1:
            raise Invalid("dimensions is a positive number", got=dimensions)
        self._model_id = model_id
        self._dimensions = dimensions
        self._clients = sdk_clients(_SERVICE, ClientSettings(client=client, client_args=dict(client_args or {})))

    @property
    def name(self) -> str:
        """The model's id."""
        return self._model_id

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""
        return self._dimensions

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text, in order, by one request. Errors: see the class."""

        async def call() -> Any:
            embeddings = (await self._clients.get()).embeddings
            asked = {} if self._dimensions == DEFAULT_DIMENSIONS else {"dimensions": self._dimensions}
            return await embeddings.create(model=self._model_id, input=list(texts), encoding_format="float", **asked)

        answer = await ask(_SERVICE, call)
        found = sorted(answer.data or (), key=lambda each: each.index)
        if len(found) != len(texts):
            raise ModelFailed("the service gave another number of vectors", texts=len(texts), vectors=len(found))
        return [each.embedding for each in found]

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        await self._clients.aclose()
