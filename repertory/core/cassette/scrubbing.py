"""Takes secrets out of recorded exchanges. Pure.

Headers are recorded if they are on a list, and values of a query unless their keys have the names of secrets. What was
a secret there (an authorization, a key in the URL) is looked for everywhere else too, as are texts that have the shape
of a key. Bodies are scrubbed piece by piece: a line of a stream, a frame of an event stream, a string of a JSON value.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import cast
from urllib.parse import parse_qsl, quote, quote_plus, urlencode, urlsplit, urlunsplit

from msgspec import Struct

REDACTED = "REDACTED"
"""The text that replaces a secret."""
NO_ACCOUNT = "000000000000"
"""The digits that replace an AWS account in an ARN."""
REQUEST_HEADERS = frozenset(("accept", "anthropic-beta", "anthropic-version", "content-type", "openai-beta"))
ANSWER_HEADERS = frozenset(
    (
        "content-type",
        "date",
        "location",
        "request-id",
        "retry-after",
        "retry-after-ms",
        "x-amzn-bedrock-content-type",
        "x-amzn-errortype",
        "x-amzn-requestid",
        "x-request-id",
        "x-should-retry",
    )
)
FRAMES = "application/vnd.amazon.eventstream"

_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|credential|passw|signature", re.IGNORECASE)
_HARMLESS_NAME = re.compile(
    r"rate-?limit|token-count|surrogate-key|cache-key|idempotency|-authenticate|^access-control-", re.IGNORECASE
)
"""Headers whose names have a word of `_SECRET_NAME`, and which hold no secret."""
_SECRET_QUERY_KEY = re.compile(
    r"(?:key|key_?id|token|secret|signature|passw(?:or)?d|passphrase|auth|authorization|credentials?|cookie|jwt|appid)$"
    r"|^sig$",
    re.IGNORECASE,
)
_SIGNING_QUERY_KEY = re.compile(r"^x-(?:amz|goog)-", re.IGNORECASE)
"""The keys of a signed URL. Those with the date and the algorithm are in no recording either, but no secrets."""
_VARIABLE_NAME = re.compile(r"(?:KEY|KEY_ID|TOKEN|SECRET|PASSWORD|TOKEN_BEDROCK)$")
_ENDPOINT_NAME = re.compile(r"ENDPOINT|(?:URL|API_BASE|HOST)$")
_NUMBER_OR_DATE = re.compile(r"[\d\s.,:/+TZ-]*")
SECRET_MIN = 12
"""Shorter secrets are not looked for: they would be found in ordinary words."""
_FRONT = r"(?<![A-Za-z0-9])"


def _key_alone(found: re.Match[str]) -> str:
    return found[0] if found["key"] is None else REDACTED


# Where a key may begin within what could be one, the last alternative passes over what none can begin in any more: to
# look again from each place would take quadratic time.
_SHAPES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (
        re.compile(rf"{_FRONT}(?:(?P<key>sk-(?=[A-Za-z_-]*[0-9*])[A-Za-z0-9_*.-]{{12,}})|sk-[A-Za-z_-]*+)"),
        _key_alone,
    ),
    (re.compile(rf"{_FRONT}(?:pplx|xai)-[A-Za-z0-9]{{20,}}"), REDACTED),
    (re.compile(rf"{_FRONT}(?:gsk|hf|sk_live|sk_test|rk_live|gh[pousr])_[A-Za-z0-9]{{20,}}"), REDACTED),
    (re.compile(rf"{_FRONT}(?:github_pat_\w{{20,}}|glpat-[\w-]{{18,}}|xox[abeprs]-[A-Za-z0-9-]{{12,}})"), REDACTED),
    (re.compile(rf"{_FRONT}(?:AIza[A-Za-z0-9_-]{{30,}}|ya29\.[A-Za-z0-9_.-]{{20,}})"), REDACTED),
    (re.compile(rf"{_FRONT}(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}(?![A-Za-z0-9])"), REDACTED),
    (
        re.compile(
            rf"{_FRONT}(?:(?P<key>eyJ[A-Za-z0-9_-]{{8,}}+\.eyJ[A-Za-z0-9_-]{{8,}}+\.[A-Za-z0-9_-]{{8,}})"
            r"|eyJ[A-Za-z0-9_-]*+)"
        ),
        _key_alone,
    ),
    (re.compile(r"\bBearer +[A-Za-z0-9._~+/-]{16,}=*"), f"Bearer {REDACTED}"),
    (re.compile(r"(\barn(:|%3A)aws[a-z-]*(?:\2[a-z0-9-]*){2}\2)\d{12}(?!\d)", re.IGNORECASE), rf"\g<1>{NO_ACCOUNT}"),
]
"""Patterns of texts that have the shape of a key, wherever they stand, and their replacements."""


def secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables whose names say that they are secrets, with their values."""
    return {name: value for name, value in environment.items() if value and _VARIABLE_NAME.search(name.upper())}


def endpoint_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that hold the URL of a service, with their values."""
    return {
        name: value
        for name, value in environment.items()
        if value.startswith(("http://", "https://")) and _ENDPOINT_NAME.search(name.upper())
    }


def is_worth_hiding(found: str) -> bool:
    """True if the value of a header or a query key with a secret's name is to be hidden; False for a number or date."""
    return not _NUMBER_OR_DATE.fullmatch(found)


def header_secrets(headers: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The secrets in headers: keys, tokens, passwords, cookies."""
    for name, value in headers:
        if name.lower() in REQUEST_HEADERS | ANSWER_HEADERS or not _SECRET_NAME.search(name):
            continue
        if _HARMLESS_NAME.search(name):
            continue
        if name.lower() == "set-cookie":  # behind the cookie stand its attributes, such as a domain
            yield value.partition(";")[0].partition("=")[2].strip(' "')
            continue
        if value.startswith("AWS4-"):
            yield from re.findall(r"Credential=([^/,\s]+)", value)
            continue
        for word in re.split(r"[\s,;]+", value):
            yield from (word, word.partition("=")[2])
        if value.startswith("Basic "):
            yield _password(value.removeprefix("Basic "))


def _password(encoded: str) -> str:
    try:
        return base64.b64decode(encoded).decode().partition(":")[2]
    except ValueError:
        return ""


def url_secrets(url: str) -> Iterator[str]:
    """The secrets in a URL: the password, and the values of query keys that have the name of a secret."""
    parts = urlsplit(url)
    yield parts.password or ""
    yield from (value for key, value in parse_qsl(parts.query) if _SECRET_QUERY_KEY.search(key))


def _is_taken_out(query_key: str) -> bool:
    return bool(_SECRET_QUERY_KEY.search(query_key) or _SIGNING_QUERY_KEY.search(query_key))


class Scrubber:
    """Replaces secrets in the texts of one cassette.

    Args:
        secrets: Secrets that are known. Those of fewer than 12 characters are not looked for.
        rules: Functions of the user, each of which gets a text and returns what is recorded instead.
    """

    def __init__(self, secrets: Iterable[str], rules: Sequence[Callable[[str], str]] = ()) -> None:
        spelled = {form for secret in secrets if len(secret) >= SECRET_MIN for form in _spellings(secret)}
        longest_first = sorted(spelled, key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if spelled else None
        self._rules = rules

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        for shape, instead in _SHAPES:
            text = shape.sub(instead, text)
        for rule in self._rules:
            text = rule(text)
        return text

    def value(self, value: object) -> object:
        """The JSON value with each string scrubbed, keys too."""
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.value(item) for item in cast("list[object]", value)]
            case dict():
                items = cast("dict[str, object]", value).items()
                return {self.text(key): self.value(item) for key, item in items}
            case _:
                return value

    def url(self, url: str) -> str:
        """The URL without user, password, and the values of query keys that have the name of a secret."""
        parts = urlsplit(url)
        query = [
            (self.text(key), REDACTED if _is_taken_out(key) else self.text(value))
            for key, value in parse_qsl(parts.query, keep_blank_values=True)
        ]
        host = self.text(parts.netloc.rpartition("@")[2])
        return urlunsplit((parts.scheme, host, self.text(parts.path), urlencode(query), ""))

    def headers(self, headers: Iterable[tuple[str, str]], listed: frozenset[str]) -> dict[str, str]:
        """The listed headers, by their names in lower case."""
        chosen = sorted((name.lower(), value) for name, value in headers if name.lower() in listed)
        return {name: self.url(value) if name == "location" else self.text(value) for name, value in chosen}

    def chunks(self, chunks: Sequence[bytes], media: str) -> tuple[bytes, ...]:
        """The chunks of a body without secrets, cut where they were; a secret that was cut is in the later chunk.

        Chunks of an AWS event stream end where a frame ends.
        """
        data = b"".join(chunks)
        framed = media == FRAMES
        pieces = _frame_pieces(data) if framed else _line_pieces(data, media)
        scrubbed = [self._frame(piece) if framed else self.raw_bytes(piece) for piece in pieces]
        return _cut_again([*accumulate(map(len, chunks))], pieces, scrubbed, framed)

    def _frame(self, piece: bytes) -> bytes:
        frame = read_frame(piece)
        if frame is None:
            return self.raw_bytes(piece)
        payload = self.raw_bytes(frame.payload)
        return piece if payload == frame.payload else frame_bytes(frame.headers, payload)

    def raw_bytes(self, data: bytes) -> bytes:
        """The bytes without secrets; those that are no UTF-8 stay as they are."""
        text = data.decode("utf-8", "surrogateescape")
        scrubbed = self.text(text)
        return data if scrubbed == text else scrubbed.encode("utf-8", "surrogateescape")


def _spellings(secret: str) -> set[str]:
    """The secret as it stands in texts, in JSON and in URLs."""
    in_json = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {secret, *in_json, secret.replace("/", "\\/"), quote(secret, safe=""), quote(secret), quote_plus(secret)}


def _line_pieces(data: bytes, media: str) -> list[bytes]:
    """The lines of a stream, or the whole of anything else."""
    return data.splitlines(keepends=True) if media in ("text/event-stream", "application/x-ndjson") else [data]


def _frame_pieces(data: bytes) -> list[bytes]:
    """The frames of an event stream, and whatever stands behind the last whole one."""
    pieces: list[bytes] = []
    while data:
        size = struct.unpack(">I", data[:4])[0] if len(data) >= 4 else 0
        piece = data[:size]
        if read_frame(piece) is None:
            return [*pieces, data]
        pieces.append(piece)
        data = data[size:]
    return pieces


def _cut_again(ends: list[int], before: list[bytes], after: list[bytes], framed: bool) -> tuple[bytes, ...]:
    """The pieces cut into chunks where they were cut before, behind each piece that is whole or has changed."""
    starts, new_starts = [0, *accumulate(map(len, before))], [0, *accumulate(map(len, after))]
    cuts: list[int] = []
    piece = 0
    for end in ends:
        while piece < len(before) and starts[piece + 1] < end:
            piece += 1
        if piece < len(before):
            as_it_was = before[piece] == after[piece] and not framed
            cuts.append(new_starts[piece] + end - starts[piece] if as_it_was else new_starts[piece + 1])
    whole = b"".join(after)
    return tuple(whole[start:end] for start, end in pairwise([0, *cuts]) if end > start)


class EventFrame(Struct, frozen=True):
    """A frame of an AWS event stream. Its headers are packed, as they came."""

    headers: bytes
    payload: bytes


def read_frame(data: bytes) -> EventFrame | None:
    """The frame in these bytes; None unless they are exactly one frame."""
    if len(data) < 16:
        return None
    size, headers_size, check = struct.unpack(">III", data[:12])
    sound = size == len(data) and headers_size <= size - 16 and check == binascii.crc32(data[:8])
    if not sound or struct.unpack(">I", data[-4:])[0] != binascii.crc32(data[:-4]):
        return None
    return EventFrame(data[12 : 12 + headers_size], data[12 + headers_size : -4])


def frame_bytes(headers: bytes, payload: bytes) -> bytes:
    """The frame with these packed headers and this payload.

    Source: the event stream encoding of the AWS SDKs ("Event Stream Specification", Smithy).
    """
    prelude = struct.pack(">II", len(headers) + len(payload) + 16, len(headers))
    whole = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return whole + struct.pack(">I", binascii.crc32(whole))
