"""Parts that both OpenAI-compatible protocols share: the fields of requests, content, the form of errors, and usage.

Source: the API reference of OpenAI, for `chat/completions` and `responses`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, cast

from repertory.core.media import media_block, plain_name, read_data_url
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, Json, Message, Usage

Fields: TypeAlias = "Mapping[str, object]"
Accepts: TypeAlias = Callable[[object], bool]
"""A predicate: True if a value of a field that is not served asks for nothing."""
Speaker = Literal["user", "assistant", "system"]


class WrongField(Invalid):
    """A field of the request cannot be served. `param`: its name; `code`: the kind of fault, for programs."""

    def __init__(self, text: str, *, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(text)
        self.param = param
        self.code = code


def is_unset(value: object) -> bool:
    """True for null, false, zero and empty values. For `check_fields`."""
    return not value


def is_one_of(*values: object) -> Accepts:
    """A predicate for `check_fields`: True for null, and for each of these values."""
    return lambda value: value is None or value in values


def check_fields(body: object, known: frozenset[str], unserved: Mapping[str, Accepts]) -> Fields:
    """The fields of a request. `known`: those that are read, or that leave the answer as it is. `unserved`: others that
    are taken when they ask for nothing. Errors: `WrongField`.
    """
    if not isinstance(body, Mapping):
        raise WrongField("the body is a JSON object", param=None, code="invalid_type")
    fields = cast("Fields", body)
    for name, value in fields.items():
        accepts = unserved.get(name)
        if accepts is not None and not accepts(value):
            raise WrongField(f"{name}: this is not served here", param=name, code="unsupported_value")
        if accepts is None and name not in known:
            raise WrongField(f"unknown parameter: {name}", param=name, code="unknown_parameter")
    return fields


def text_field(fields: Fields, name: str) -> str | None:
    """The text of a field; None for null and for an empty one. Errors: `WrongField` for what is no text."""
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise WrongField(f"{name}: a string", param=name, code="invalid_type")
    return value or None


def flag_field(fields: Fields, name: str, default: bool = False) -> bool:
    """The boolean of a field, `default` for null. Errors: `WrongField` for anything else."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise WrongField(f"{name}: a boolean", param=name, code="invalid_type")
    return default if value is None else value


def positive_field(fields: Fields, name: str) -> int | None:
    """The positive integer of a field; None for null. Errors: `WrongField` for anything else."""
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise WrongField(f"{name}: a positive integer", param=name, code="invalid_type")
    return value


def fields_at(fields: Fields, name: str) -> Fields:
    """The object of a field; empty for null. Errors: `WrongField` for anything else."""
    value = fields.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise WrongField(f"{name}: an object", param=name, code="invalid_type")
    return cast("Fields", value or {})


def objects_at(value: object, where: str) -> Sequence[Fields]:
    """The objects of a list. Errors: `WrongField` for what is no list of objects."""
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(item, Mapping) for item in items):
        raise WrongField(f"{where}: a list of objects", param=where, code="invalid_type")
    return cast("Sequence[Fields]", items)


class ClientMessage(NamedTuple):
    """A message of a request."""

    speaker: Speaker
    content: list[ContentBlock]


_SPEAKERS: Mapping[object, Speaker] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


def speaker_in(role: object, where: str) -> Speaker:
    """The speaker of a message. Errors: `WrongField`, also for results of tools: they run where the agent does."""
    speaker = _SPEAKERS.get(role) if isinstance(role, str) else None
    if speaker is not None:
        return speaker
    if role in ("tool", "function"):
        raise WrongField(f"{where}.role: tools run at the server", param=f"{where}.role", code="unsupported_value")
    raise WrongField(f"{where}.role: user, assistant, system or developer", param=f"{where}.role")


def read_content(content: object, where: str) -> list[ContentBlock]:
    """The content of a message, a text or parts, as blocks; empty texts are left out. Errors: `WrongField`."""
    if isinstance(content, str):
        return [{"text": content}] if content.strip() else []
    blocks = [_block(part, f"{where}[{number}]") for number, part in enumerate(objects_at(content, where))]
    return [block for block in blocks if block.get("text") != ""]


def _block(part: Fields, where: str) -> ContentBlock:
    try:
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                return {"text": text if text.strip() else ""}
            case {"type": "refusal", "refusal": str(text)}:
                return {"text": text}
            case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)}:
                file = read_data_url(url, "an image's URL")
                return media_block(file.data, file.mime_type, "image")
            case {"type": "file"}:
                return _file(fields_at(part, "file"))
            case {"type": "input_file"}:
                return _file(part)
            case {"type": str(kind)}:
                raise WrongField(f"{where}: a part of type {kind} is not served here", param=where)
            case _:
                raise WrongField(f"{where}: a part has a type", param=where)
    except WrongField:
        raise
    except Invalid as error:
        raise WrongField(f"{where}: {error}", param=where) from None


def _file(fields: Fields) -> ContentBlock:
    data, name = text_field(fields, "file_data"), text_field(fields, "filename")
    file = read_data_url(data or "", "file_data")
    return media_block(file.data, file.mime_type, plain_name(name or "file"))


class Transcript(NamedTuple):
    """The messages of a request."""

    instructions: str
    """The text of the caller's system and developer messages, in order."""
    messages: list[Message]
    """The messages of users and agents; consecutive messages of one speaker are one."""

    @property
    def new(self) -> list[ContentBlock]:
        """The user's content after the last message of the agent; empty when that is the last."""
        last = self.messages[-1] if self.messages else None
        return [] if last is None or last["role"] != "user" else last["content"]


def read_transcript(given: Sequence[ClientMessage]) -> Transcript:
    """The conversation in these messages."""
    texts: list[str] = []
    messages: list[Message] = []
    for speaker, content in given:
        if not content:
            continue
        if speaker == "system":
            texts += [block["text"] for block in content if "text" in block]
        elif messages and messages[-1]["role"] == speaker:
            messages[-1]["content"].extend(content)
        else:
            messages.append({"role": speaker, "content": [*content]})
    return Transcript("\n\n".join(texts), messages)


def with_instructions(instructions: str, content: Sequence[ContentBlock]) -> list[ContentBlock]:
    """A user's message that begins with what the caller's program wants: the agent has a system prompt of its own, and
    a caller has no more rights than a user.
    """
    first: list[ContentBlock] = [{"text": f"Instructions for this conversation:\n{instructions}"}]
    return [*(first if instructions else []), *content]


def error_body(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> dict[str, Json]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}


def error_kind(status: int) -> str:
    """The kind of error that a status is."""
    return _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")


def token_counts(usage: Usage) -> tuple[int, int, int]:
    """Tokens read, cached ones included; those of them that were cached; tokens written."""
    cached, written = usage.get("cacheReadInputTokens", 0), usage.get("cacheWriteInputTokens", 0)
    read = usage["inputTokens"]
    if read + usage["outputTokens"] != usage["totalTokens"]:
        read += cached + written
    return read, min(cached, read), usage["outputTokens"]


def is_cut_off(stop_reason: str) -> bool:
    """True if the answer was cut off at a bound."""
    return stop_reason == "max_tokens" or stop_reason.startswith("limit_")


def is_filtered(stop_reason: str) -> bool:
    """True if a filter has taken the answer back, or a part of it."""
    return stop_reason in ("guardrail_intervened", "content_filtered")
