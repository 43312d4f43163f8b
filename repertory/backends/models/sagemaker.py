"""Models on Amazon SageMaker endpoints that speak OpenAI's protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec.structs import replace

from repertory.backends.aws_clients import AwsService, AwsSettings, aws_clients
from repertory.backends.models.bedrock import AwsModel, framed_events
from repertory.backends.models.caching import CacheConfig
from repertory.backends.models.chat_services import ChatService
from repertory.backends.models.completions import CompletionReader
from repertory.backends.models.fitting import ServiceRules
from repertory.backends.models.openai import chat_rules, completion_arguments
from repertory.backends.models.provider import DONE, ModelCall, changed_settings
from repertory.backends.models.sdk import EventDecoder, LineCutter, ModelService, is_error, stream_error
from repertory.core.answer import mapping_field
from repertory.errors import Invalid, ModelFailed, Unavailable

if TYPE_CHECKING:
    from repertory.errors import RepertoryError

SAGEMAKER = AwsService(name="sagemaker-runtime", wanted_by="SageMakerAIModel", extra="sagemaker")
CONTAINER_CHAT = ChatService(name="sagemaker")
_CONTAINER = ModelService(
    name="SageMaker",
    model="SageMakerAIModel",
    package="aiobotocore",
    key_variable="AWS_ACCESS_KEY_ID",
    url_variable="AWS_ENDPOINT_URL",
    keyless=False,
)


class SageMakerAIEndpointConfig(TypedDict, total=False):
    """The endpoint that a `SageMakerAIModel` asks."""

    endpoint_name: str
    region_name: str | None
    inference_component_name: str | None
    target_model: str | None
    target_variant: str | None
    additional_args: Mapping[str, Any] | None
    """Further parameters of `InvokeEndpoint`, added unchanged."""
    cache_config: CacheConfig | None
    """A setting without effect: the endpoint's container caches by itself."""
    context_window_limit: int | None
    """The model's window in tokens."""


class SageMakerAIPayloadSchema(TypedDict, total=False):
    """The fields of a request to the model in the endpoint's container."""

    max_tokens: int | None
    stream: bool | None
    """True to stream the answer (the default), False to get it whole."""
    temperature: float | None
    top_p: float | None
    top_k: int | None
    stop: list[str] | None
    tool_results_as_user_messages: bool | None
    """True for containers that know no messages of tools."""
    additional_args: Mapping[str, Any] | None
    """Further fields of the payload, added unchanged."""


class SageMakerAIModel(AwsModel):
    """A model on a SageMaker endpoint whose container takes Chat Completions, as those of DJL, vLLM and TGI do.

    Building one connects to nothing. Credentials are found as by `BedrockModel`. Many agents may use one model at once,
    from several event loops; each loop has its own connections, released by `aclose` in that loop.

    Errors and cancellation are those of `BedrockModel`. `update_config` changes the endpoint's settings.

    Args:
        payload_config: Settings of each request, such as `max_tokens`.
        boto_session: A boto3 session, whose credentials count; None for those of the environment.
        boto_client_config: A botocore `Config` for the client.
        endpoint_url: Another address of the service, such as one of a test.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.

    Attributes:
        SageMakerAIEndpointConfig: The type of the endpoint's settings.
        SageMakerAIPayloadSchema: The type of the request's settings.
    """

    SageMakerAIEndpointConfig = SageMakerAIEndpointConfig
    SageMakerAIPayloadSchema = SageMakerAIPayloadSchema
    _known = SageMakerAIEndpointConfig
    _service = "SageMaker"

    def __init__(
        self,
        endpoint_config: SageMakerAIEndpointConfig,
        payload_config: SageMakerAIPayloadSchema,
        boto_session: Any = None,
        boto_client_config: Any = None,
        *,
        endpoint_url: str | None = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
    ) -> None:
        """An unknown name in one of the two is a `TypeError`.

        `boto_session` is a boto3, botocore or aiobotocore session that provides credentials and region;
        `boto_client_config` is a botocore `Config` that overrides ours. `read_timeout_s` bounds the time between two
        pieces of an answer, not the whole answer.
        """
        start = {"stream": True, "tool_results_as_user_messages": False}
        self.payload_config = changed_settings(type(self), SageMakerAIPayloadSchema, start, payload_config)
        settings = AwsSettings(
            region_name=endpoint_config.get("region_name"),
            boto_session=boto_session,
            endpoint_url=endpoint_url,
            boto_client_config=boto_client_config,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
        )
        super().__init__(None, endpoint_config, aws_clients(SAGEMAKER, settings))

    @property
    def endpoint_config(self) -> dict[str, Any]:
        """A copy of the endpoint's settings; `update_config` changes them."""
        return self.config

    def _rules(self, config: Mapping[str, Any]) -> ServiceRules:
        return chat_rules(self._service, CONTAINER_CHAT)

    def _request(self, call: ModelCall) -> tuple[dict[str, Any], bool]:
        payload = endpoint_payload(call, self.payload_config)
        return endpoint_request(call.config, payload), bool(payload.get("stream"))

    def _reader(self, call: ModelCall) -> CompletionReader:
        return CompletionReader(CONTAINER_CHAT)

    async def _ask(self, client: Any, request: tuple[dict[str, Any], bool]) -> Any:
        arguments, streaming = request
        if streaming:
            return _pieces((await client.invoke_endpoint_with_response_stream(**arguments))["Body"])
        return json.loads(await (await client.invoke_endpoint(**arguments))["Body"].read())

    def _fields(self, piece: Any, *, whole: bool) -> Mapping[str, object]:
        fields = mapping_field(piece, "stream", "piece")
        if is_error(fields):
            raise stream_error(_CONTAINER, fields)
        return fields

    def _error(self, error: Any, *, answering: bool) -> RepertoryError:
        """The container's own status decides, where the service tells it."""
        ours = super()._error(error, answering=answering)
        response: Mapping[str, Any] = getattr(error, "response", None) or {}
        if type(ours) is ModelFailed and int(response.get("OriginalStatusCode") or 0) >= 500:
            return Unavailable(f"the endpoint's container failed: {response.get('OriginalMessage')}")
        return ours


async def _pieces(body: Any) -> AsyncGenerator[object]:
    """The chunks of an answer: server-sent events, or JSON on lines, cut anywhere."""
    decoder, lines = EventDecoder(), LineCutter()
    async with aclosing(framed_events(body)) as frames:
        async for frame in frames:
            data: bytes = frame.get("PayloadPart", {}).get("Bytes", b"")
            for line in lines.feed(data):
                for piece in _read(decoder, line):
                    yield piece
    for piece in _read(decoder, bytes(lines.rest)):
        yield piece
    for text in decoder.feed(b"\n\n"):  # the last event of a container that ends without a blank line
        yield _piece(text)


def _read(decoder: EventDecoder, line: bytes) -> list[object]:
    if line.lstrip().startswith(b"{"):
        return [json.loads(line)]
    ends = b"\n\n" if line.startswith(b"data:") else b"\n"  # some containers put no blank line between events
    return [_piece(text) for text in decoder.feed(line + ends)]


def _piece(text: str) -> object:
    return DONE if text == "[DONE]" else json.loads(text)


def endpoint_payload(call: ModelCall, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The request to the container. Errors: `Invalid` for a block that it cannot take."""
    fields = {
        name: value
        for name, value in settings.items()
        if name not in ("additional_args", "tool_results_as_user_messages") and value is not None
    }
    streams = settings.get("stream") is not False
    call_config = {"streaming": streams, "params": fields}
    payload = completion_arguments(replace(call, config=call_config), "SageMaker", chat=CONTAINER_CHAT)
    payload |= payload.pop("extra_body", {})
    payload["stream"] = streams
    if settings.get("tool_results_as_user_messages"):
        payload["messages"] = [_as_users(message) for message in payload["messages"]]
    return payload | dict(settings.get("additional_args") or {})


def _as_users(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": f"Tool call ID {message['tool_call_id']!r} returned: {message['content']}"}


def endpoint_request(config: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of `InvokeEndpoint`."""
    if not config.get("endpoint_name"):
        raise Invalid("SageMakerAIModel needs an endpoint_name in its endpoint_config")
    request: dict[str, Any] = {
        "EndpointName": config["endpoint_name"],
        "Body": json.dumps(payload).encode(),
        "ContentType": "application/json",
        "Accept": "application/json",
    }
    names = {
        "inference_component_name": "InferenceComponentName",
        "target_model": "TargetModel",
        "target_variant": "TargetVariant",
    }
    request |= {name: config[key] for key, name in names.items() if config.get(key)}
    return request | dict(config.get("additional_args") or {})
