"""Vectors of texts by Amazon Titan on Bedrock."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio
from msgspec.structs import replace

from repertory.backends.aws_clients import AwsSettings, aws_clients
from repertory.backends.models.bedrock import BEDROCK, bedrock_errors, from_bedrock_error
from repertory.backends.models.openai import OPENAI
from repertory.backends.models.provider import NONSENSE
from repertory.backends.models.sdk import ClientSettings, ask, open_sdk_client, service_clients
from repertory.errors import Invalid, ModelFailed

if TYPE_CHECKING:
    from repertory.backends.loop_clients import LoopClients

BEDROCK_MODEL_ID = "amazon.titan-embed-text-v2:0"
REQUESTS_MAX = 8
"""Concurrent requests: the service takes one text in each."""
_DIMENSIONS = (256, 512, 1024)
_CHARACTERS_MAX = 50_000
"""The service refuses longer texts; they are cut off here."""
_BEDROCK = replace(BEDROCK, wanted_by="BedrockEmbedder")


class _ServiceEmbedder:
    def __init__(self, model_id: str, dimensions: int, clients: LoopClients) -> None:
        self._model_id, self._dimensions, self._clients = model_id, dimensions, clients

    @property
    def name(self) -> str:
        """The model's id."""
        return self._model_id

    @property
    def dimensions(self) -> int:
        return self._dimensions

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        await self._clients.aclose()


class BedrockEmbedder(_ServiceEmbedder):
    """An `Embedder` that uses Titan Text Embeddings V2, through InvokeModel. Building one connects to nothing.

    Credentials and region are found as in every AWS tool. May be used from several event loops; each has its own
    connections, released by `aclose` in that loop.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For dimensions other than 256, 512 and 1024. Correct the argument.
    """

    def __init__(
        self,
        model_id: str = BEDROCK_MODEL_ID,
        *,
        dimensions: int = 1024,
        region_name: str | None = None,
        boto_session: Any = None,
        boto_client_config: Any = None,
        endpoint_url: str | None = None,
    ) -> None:
        """
        Args:
            model_id: The embedding model.
            dimensions: 256, 512 or 1024.
            region_name: The AWS region; None for the one of the environment.
            boto_session: A boto3 session, whose credentials count; None for those of the environment.
            boto_client_config: A botocore `Config` for the client.
            endpoint_url: Another address of the service, such as one of a test.
        """
        if dimensions not in _DIMENSIONS:
            raise Invalid("dimensions is 256, 512 or 1024", got=dimensions)
        settings = AwsSettings(
            region_name=region_name,
            boto_session=boto_session,
            boto_client_config=boto_client_config,
            endpoint_url=endpoint_url,
        )
        super().__init__(model_id, dimensions, aws_clients(_BEDROCK, settings))

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text, in order. All or none. Errors: see the class.

        Args:
            texts: The texts, in the order of the vectors.
        """
        found: dict[int, Sequence[float]] = {}
        failed: list[Exception] = []
        limit = anyio.Semaphore(REQUESTS_MAX)

        async def one(index: int) -> None:
            async with limit:
                try:
                    found[index] = await self._vector(texts[index])
                except (*bedrock_errors(), *NONSENSE) as error:
                    failed.append(error)
                    tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for index in range(len(texts)):
                tasks.start_soon(one, index)
        if failed:
            raise from_bedrock_error(failed[0]) from failed[0]
        return [found[index] for index in range(len(texts))]

    async def _vector(self, text: str) -> Sequence[float]:
        client = await self._clients.get()
        body = {"inputText": text[:_CHARACTERS_MAX], "dimensions": self._dimensions, "normalize": True}
        answer = await client.invoke_model(
            modelId=self._model_id,
            body=json.dumps(body),
            contentType="application/json",
            accept="application/json",
        )
        async with answer["body"] as stream:
            response = json.loads(await stream.read())
        vector = response["embedding"]
        if not isinstance(vector, list):
            raise TypeError("the vector is a list of numbers")
        return cast("list[float]", vector)


OPENAI_MODEL_ID = "text-embedding-3-small"
DEFAULT_DIMENSIONS = 1536
_OPENAI = replace(OPENAI, model="OpenAIEmbedder", resource="embeddings")


class OpenAIEmbedder(_ServiceEmbedder):
    """An `Embedder` behind the Embeddings API. Building one connects to nothing.

    May be used from several event loops; each has its own connections, released by `aclose` in that loop.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        ContextWindowOverflowException: If a text is too long for the model. Split it.
        Invalid: For a number of dimensions that is not positive. Correct the argument.
    """

    def __init__(
        self,
        model_id: str = OPENAI_MODEL_ID,
        *,
        dimensions: int = DEFAULT_DIMENSIONS,
        client_args: Mapping[str, Any] | None = None,
        client: Any = None,
    ) -> None:
        """
        Args:
            model_id: The embedding model.
            dimensions: The length of a vector, which the service is asked for.
            client_args: Arguments of `openai.AsyncOpenAI`.
            client: Your own such client, used as it is and never closed.
        """
        if dimensions < 1:
            raise Invalid("dimensions is a positive number", got=dimensions)
        settings = ClientSettings(client, client_args)
        super().__init__(model_id, dimensions, service_clients(_OPENAI, settings, open_sdk_client))

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text, in order, by one request. Errors: see the class.

        Args:
            texts: The texts, in the order of the vectors.

        Raises:
            ModelFailed: If the service answers with other vectors than asked for. Read its message.
        """

        async def call() -> Any:
            embeddings = (await self._clients.get()).embeddings
            asked = {} if self._dimensions == DEFAULT_DIMENSIONS else {"dimensions": self._dimensions}
            return await embeddings.create(model=self._model_id, input=list(texts), encoding_format="float", **asked)

        answer = await ask(_OPENAI, call)
        found = sorted(answer.data or (), key=lambda each: each.index)
        if len(found) != len(texts):
            raise ModelFailed("the service gave another number of vectors", texts=len(texts), vectors=len(found))
        return [each.embedding for each in found]
