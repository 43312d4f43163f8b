"""Every adapter of a model service, with a server's answers in its spelling: what a cassette has to record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio

from repertory import BedrockModel, LiteLLMModel, SageMakerAIModel
from repertory.backends.models.provider import ProviderModel
from repertory.core.messages import Message
from tests.backends.models.sdk_services import HELLO, OPENAI, PROVIDERS, SdkService, openai_text
from tests.backends.models.wire_server import AWS_FRAMES, SERVER_SENT_EVENTS, Exchange, Handler, frame, text_frames

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there: whoever asks it has asked the network."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter and its service."""

    name: str
    make: Callable[[str, bool], ProviderModel]
    """Takes the service's URL, and True for streamed answers."""
    pieces: list[bytes]
    """A streamed answer: the text "Hello" in two pieces."""
    media: str
    whole: dict[str, Any]
    """The same answer at once."""
    refusal: dict[str, Any]
    """The body of an answer of status 400."""

    async def says_hello(self, exchange: Exchange) -> None:
        """Answer as the request wants it."""
        if _streams(exchange):
            await exchange.stream(*self.pieces, media=self.media)
        else:
            await exchange.answer(200, self.whole)

    async def breaks_off(self, exchange: Exchange) -> None:
        """Begin an answer, and close the connection."""
        await exchange.begin(self.media)
        await exchange.send(*self.pieces[:2])
        await exchange.socket.aclose()

    async def refuses(self, exchange: Exchange) -> None:
        """Refuse the request for good."""
        await exchange.answer(400, self.refusal, x_amzn_ErrorType="ValidationException")

    def saying(self, *pieces: bytes) -> Handler:
        """A server that streams these pieces."""

        async def handle(exchange: Exchange) -> None:
            await exchange.stream(*pieces, media=self.media)

        return handle


def _streams(exchange: Exchange) -> bool:
    path = exchange.path.partition("?")[0]
    if path.endswith(("stream", "streamGenerateContent", "invocations-response-stream")):
        return True
    if path.endswith(("/converse", "generateContent", "/invocations")):
        return False
    return exchange.body.get("stream") is True


def _of_sdk(service: SdkService) -> Adapter:
    return Adapter(
        name=service.name,
        make=lambda url, streams: service.model(url, streaming=streams),
        pieces=service.text("Hel", "lo"),
        media=service.media,
        whole=service.whole,
        refusal=service.error("invalid_request_error", "this cannot be"),
    )


def _bedrock(url: str, streams: bool) -> ProviderModel:
    return BedrockModel(endpoint_url=url, streaming=streams)


def _sagemaker(url: str, streams: bool) -> ProviderModel:
    endpoint: Any = {"endpoint_name": "mine", "region_name": "us-east-1"}
    return SageMakerAIModel(endpoint, {"max_tokens": 9, "stream": streams}, endpoint_url=url)


def _litellm(url: str, streams: bool) -> ProviderModel:
    return LiteLLMModel({"api_key": "key", "api_base": f"{url}/v1"}, model_id="openai/m", stream=streams)


BEDROCK = Adapter(
    name="Bedrock",
    make=_bedrock,
    pieces=text_frames("Hel", "lo"),
    media=AWS_FRAMES,
    whole={
        "output": {"message": {"role": "assistant", "content": [{"text": "Hello"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5},
        "metrics": {"latencyMs": 4},
    },
    refusal={"message": "this cannot be"},
)
SAGEMAKER = Adapter(
    name="SageMaker",
    make=_sagemaker,
    pieces=[frame("PayloadPart", part) for part in openai_text("Hel", "lo")],
    media=AWS_FRAMES,
    whole=OPENAI.whole,
    refusal={"message": "this cannot be"},
)
LITELLM = Adapter(
    name="LiteLLM",
    make=_litellm,
    pieces=openai_text("Hel", "lo"),
    media=SERVER_SENT_EVENTS,
    whole=OPENAI.whole,
    refusal=OPENAI.error("invalid_request_error", "this cannot be"),
)
ADAPTERS = (*map(_of_sdk, PROVIDERS), BEDROCK, SAGEMAKER)
"""Those that run on asyncio and trio."""


async def events_of(model: ProviderModel, messages: list[Message] = HELLO, **options: Any) -> list[Any]:
    """The events of one answer, within 20 s, of a model that is closed then."""
    found: list[Any] = []
    stream: Any = model.stream(messages, **options)
    try:
        with anyio.fail_after(20):
            async with aclosing(stream) as events:
                found.extend([event async for event in events])
    finally:
        await model.aclose()
    return found
