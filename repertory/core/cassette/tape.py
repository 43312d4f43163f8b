"""The file of a cassette, and which recorded exchange answers a request. Pure.

A cassette is JSON: `version` 1, the environment variables that its keys came from (`keys`), those that held URLs of its
services with these URLs (`endpoints`, if there are any), and `interactions` in the order in which their requests were
made. A body is one of these:

    json      a JSON value
    text      UTF-8
    base64    other bytes
    chunks    a streamed body: a list of texts, of `{"base64": ...}`, and of `{"frames": [...]}` for AWS event streams

An interaction with an `error` ended with it. One with neither `response` nor `error`, or with a response that is `cut`,
was given up by the program.
"""

from __future__ import annotations

import difflib
import json
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct, field

from repertory.core.cassette.scrubbing import (
    ANSWER_HEADERS,
    FRAMES,
    REDACTED,
    REQUEST_HEADERS,
    Scrubber,
    frame_bytes,
    read_frame,
)
from repertory.core.json_bytes import from_base64, strict_json, to_base64
from repertory.errors import Failed, Invalid

VERSION = 1
MATCH_PARTS = ("method", "path", "body", "host", "query")
_DIFF_LINES_MAX = 24
_LINE_MAX = 160
_CONTEXT = 40
_PLAIN_BYTES_MAX = 64 * 1024 * 1024
_SURROGATE = re.compile("[\ud800-\udfff]")

Jsons = Mapping[str, object]


class RawExchange(Struct, kw_only=True):
    """An exchange as it was, with its secrets."""

    method: str
    url: str
    request_headers: list[tuple[str, str]]
    request_body: bytes
    status: int = 0
    """The HTTP status; 0 until an answer begins."""
    headers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    chunks: list[bytes] = field(default_factory=list[bytes])
    ended: bool = False
    """True if the answer was read to its end."""
    error: tuple[str, str] | None = None
    """The class and the text of the error that ended the exchange."""


class CassetteRequest(Struct, frozen=True, kw_only=True):
    """A request without secrets, as the file has it."""

    method: str
    url: str
    headers: dict[str, str] = {}
    body: dict[str, object] = {}


class CassetteAnswer(Struct, frozen=True, kw_only=True):
    """An answer without secrets."""

    status: int
    headers: dict[str, str]
    chunks: tuple[bytes, ...]
    is_json: bool = False
    """True if the file has the body as a JSON value."""
    cut: bool = False
    """True if the program stopped reading before the answer's end."""


class Interaction(Struct, frozen=True, kw_only=True):
    """One exchange of a cassette."""

    request: CassetteRequest
    answer: CassetteAnswer | None
    error: tuple[str, str] | None = None
    """The class and the text of the error of a connection that failed, or broke within the answer."""


class Tape(Struct, frozen=True, kw_only=True):
    """The content of a cassette's file."""

    keys: tuple[str, ...] = ()
    endpoints: Mapping[str, str] = {}
    """The environment variables that held URLs of the services, and these URLs."""
    interactions: tuple[Interaction, ...] = ()


# ------------------------------------------------------------------------------------------------- without its secrets


def scrubbed_request(raw: RawExchange, scrubber: Scrubber) -> CassetteRequest:
    """The request without secrets."""
    body, text = raw.request_body, _text_of(raw.request_body)
    value = _json_of(body)
    match (value, text):
        case ((found,), _):
            scrubbed: dict[str, object] = {"json": scrubber.value(found)}
        case (None, str()):
            scrubbed = {"text": scrubber.text(text)} if text else {}
        case _:
            scrubbed = {"base64": to_base64(scrubber.raw_bytes(body))}
    return CassetteRequest(
        method=raw.method,
        url=scrubber.url(raw.url),
        headers=scrubber.headers(raw.request_headers, REQUEST_HEADERS),
        body=scrubbed,
    )


def scrubbed(raw: RawExchange, scrubber: Scrubber) -> Interaction:
    """The exchange without secrets. Errors: `Failed` for a compression that cannot be read."""
    error = None if raw.error is None else (raw.error[0], scrubber.text(raw.error[1]))
    request = scrubbed_request(raw, scrubber)
    if not raw.status:
        return Interaction(request=request, answer=None, error=error)
    headers = scrubber.headers(raw.headers, ANSWER_HEADERS)
    if "retry-after" not in headers:
        headers.pop("date", None)  # it differs in every recording, and only such a header is read with it
    chunks = _plain([*raw.chunks], {name.lower(): value for name, value in raw.headers})
    media = _media(headers)
    value = _json_of(b"".join(chunks)) if raw.ended and media == "application/json" else None
    if value is None:
        scrubbed_chunks = scrubber.chunks(chunks, media)
    else:
        scrubbed_chunks = (_json_text(scrubber.value(value[0])).encode(),)
    answer = CassetteAnswer(
        status=raw.status,
        headers=headers,
        chunks=scrubbed_chunks,
        is_json=value is not None,
        cut=not raw.ended and error is None,
    )
    return Interaction(request=request, answer=answer, error=error)


def _plain(chunks: list[bytes], headers: Mapping[str, str]) -> list[bytes]:
    """The chunks of a body that may be compressed although the request asked for plain bytes."""
    coding = headers.get("content-encoding", "identity").lower()
    if coding == "identity":
        return chunks
    if coding not in ("gzip", "deflate"):
        raise Failed("the service compressed an answer in a way that no cassette takes", content_encoding=coding)
    inflate, plain, room = zlib.decompressobj(zlib.MAX_WBITS | 32), list[bytes](), _PLAIN_BYTES_MAX
    for chunk in chunks:
        try:
            plain.append(inflate.decompress(chunk, room + 1))
        except zlib.error as error:
            raise Failed("the compressed answer cannot be read", content_encoding=coding) from error
        if (room := room - len(plain[-1])) < 0:
            raise Failed("the compressed answer is too large for a cassette", bytes_max=_PLAIN_BYTES_MAX)
    return plain


def _media(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _json_of(data: bytes) -> tuple[object] | None:
    """The JSON object or list in these bytes; None if they are anything else."""
    try:
        value: object = strict_json(data)
    except (ValueError, RecursionError):
        return None
    return (cast("object", value),) if isinstance(value, dict | list) else None


def _json_text(value: object, indent: int | None = None) -> str:
    """The value as JSON. A surrogate without its other half is escaped: it has no UTF-8."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# ------------------------------------------------------------------------------------------------------------ the file


def tape_text(tape: Tape) -> str:
    """The text of the cassette's file."""
    document = {
        "version": VERSION,
        "keys": list(tape.keys),
        **({"endpoints": tape.endpoints} if tape.endpoints else {}),
        "interactions": [_interaction_json(interaction) for interaction in tape.interactions],
    }
    return _json_text(document, indent=2) + "\n"


def _interaction_json(interaction: Interaction) -> Jsons:
    request, answer = interaction.request, interaction.answer
    found: dict[str, object] = {
        "request": {"method": request.method, "url": request.url, "headers": request.headers, **request.body}
    }
    if answer is not None:
        body: Jsons
        if answer.is_json:
            body = {"json": json.loads(answer.chunks[0])}
        else:
            body = {"chunks": [_chunk_json(chunk, _media(answer.headers)) for chunk in answer.chunks]}
        cut = {"cut": True} if answer.cut else {}
        found["response"] = {"status": answer.status, "headers": answer.headers, **body, **cut}
    if interaction.error is not None:
        found["error"] = {"class": interaction.error[0], "message": interaction.error[1]}
    return found


def _chunk_json(chunk: bytes, media: str) -> object:
    if media == FRAMES and (frames := _frames_json(chunk)) is not None:
        return {"frames": frames}
    text = _text_of(chunk)
    return {"base64": to_base64(chunk)} if text is None else text


def _frames_json(chunk: bytes) -> list[Jsons] | None:
    """The frames of a chunk; None if it is not whole frames that are written again as they came."""
    frames: list[Jsons] = []
    rest = chunk
    while rest:
        size = struct.unpack(">I", rest[:4])[0] if len(rest) >= 4 else 0
        frame = read_frame(rest[:size])
        payload = None if frame is None else _text_of(frame.payload)
        headers = None if frame is None else _unpacked(frame.headers)
        if headers is None or payload is None:
            return None
        frames.append({"headers": headers, "payload": payload})
        rest = rest[size:]
    return frames


def _unpacked(packed: bytes) -> dict[str, str] | None:
    """The headers of a frame, if all are texts and none is there twice."""
    headers: dict[str, str] = {}
    rest = packed
    try:
        while rest:
            name_end = 1 + rest[0]
            value_start = name_end + 3
            size = struct.unpack(">H", rest[name_end + 1 : value_start])[0]
            headers[rest[1:name_end].decode()] = rest[value_start : value_start + size].decode()
            rest = rest[value_start + size :]
        return headers if _packed(headers) == packed else None
    except (struct.error, ValueError, IndexError):
        return None


def _packed(headers: Mapping[str, str]) -> bytes:
    """Headers that are texts (type 7), as a frame has them."""
    pairs = ((name.encode(), value.encode()) for name, value in headers.items())
    return b"".join(
        bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(value)) + value for name, value in pairs
    )


class _Frame(Struct):
    headers: dict[str, str]
    payload: str


class _Chunk(Struct):
    base64: str = ""
    frames: list[_Frame] = []

    def data(self) -> bytes:
        if self.base64:
            return from_base64(self.base64)
        return b"".join(frame_bytes(_packed(frame.headers), frame.payload.encode()) for frame in self.frames)


class _Request(Struct):
    method: str
    url: str
    headers: dict[str, str] = {}
    json: object = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    base64: str | msgspec.UnsetType = msgspec.UNSET


class _Response(Struct):
    status: int
    headers: dict[str, str] = {}
    json: object = msgspec.UNSET
    text: str = ""
    chunks: list[str | _Chunk] = []
    cut: bool = False


class _Error(Struct, rename={"kind": "class"}):
    kind: str
    message: str = ""


class _Interaction(Struct):
    request: _Request
    response: _Response | None = None
    error: _Error | None = None


class _File(Struct):
    version: int
    keys: tuple[str, ...] = ()
    endpoints: dict[str, str] = {}
    interactions: list[_Interaction] = []


def read_tape(data: bytes) -> Tape:
    """The cassette in a file. Errors: `Invalid` for a file that is none, or one of a later version."""
    try:
        value: object = strict_json(data)  # of msgspec, half a surrogate pair is no JSON
        version = cast("dict[str, object]", value).get("version") if isinstance(value, dict) else None
        if isinstance(version, int) and version != VERSION:  # the rest may have any shape then
            raise Invalid("this cassette has another version: record it anew", version=version, wanted=VERSION)
        found = msgspec.convert(value, _File)
        return Tape(keys=found.keys, endpoints=found.endpoints, interactions=tuple(map(_read, found.interactions)))
    except (msgspec.MsgspecError, ValueError, RecursionError, struct.error) as error:
        if isinstance(error, Invalid):
            raise
        raise Invalid(f"this is no cassette: {error}") from error


def _read(found: _Interaction) -> Interaction:
    asked = found.request
    fields: dict[str, object] = {"json": asked.json, "text": asked.text, "base64": asked.base64}
    body = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
    if isinstance(asked.base64, str):
        from_base64(asked.base64)
    return Interaction(
        request=CassetteRequest(method=asked.method, url=asked.url, headers=asked.headers, body=body),
        answer=None if found.response is None else _read_answer(found.response),
        error=None if found.error is None else (found.error.kind, found.error.message),
    )


def _read_answer(found: _Response) -> CassetteAnswer:
    chunks = [chunk.encode() if isinstance(chunk, str) else chunk.data() for chunk in (found.text, *found.chunks)]
    is_json = found.json is not msgspec.UNSET
    if is_json:
        chunks = [_json_text(found.json).encode()]
    return CassetteAnswer(
        status=found.status, headers=found.headers, chunks=tuple(filter(None, chunks)), is_json=is_json, cut=found.cut
    )


# ------------------------------------------------------------------------------------- which exchange answers a request


class Matching(Struct, frozen=True):
    """The rule by which a recorded request matches a new one, so that its answer is replayed."""

    parts: frozenset[str]
    ignored: tuple[tuple[str, ...], ...] = ()
    """Paths in a JSON body that are left out; `*` is any key, and any position in a list."""

    def view(self, request: CassetteRequest) -> Jsons:
        """The parts of the request that count."""
        url = urlsplit(request.url)
        kind, body = next(iter(request.body.items()), ("text", ""))
        if kind == "base64":
            body = from_base64(str(body)).decode("latin-1")  # a text, in which REDACTED can be found
        parts: dict[str, object] = {
            "method": request.method,
            "host": url.netloc,
            "path": unquote(url.path),
            "query": sorted(parse_qsl(url.query, keep_blank_values=True)),
            "body": self._counting(body) if kind == "json" else body,
        }
        return {name: value for name, value in parts.items() if name in self.parts}

    def key(self, request: CassetteRequest) -> str:
        """The parts that count, as one text: the same for requests that match."""
        return json.dumps(self.view(request), sort_keys=True)

    def fits(self, recorded: CassetteRequest, asked: CassetteRequest) -> bool:
        """True if the parts that count are the same, where REDACTED in the recorded ones stands for any text."""
        return _fits(self.view(recorded), self.view(asked))

    def _counting(self, body: object) -> object:
        for path in self.ignored:
            body = _without(body, path)
        return body


def _fits(recorded: object, asked: object) -> bool:
    if isinstance(recorded, str) and isinstance(asked, str):
        return _text_fits(recorded, asked)
    if isinstance(recorded, dict) and isinstance(asked, dict):
        return _object_fits(cast("Jsons", recorded), cast("Jsons", asked))
    if isinstance(recorded, list | tuple) and isinstance(asked, list | tuple):
        ours, theirs = cast("Sequence[object]", recorded), cast("Sequence[object]", asked)
        return len(ours) == len(theirs) and all(map(_fits, ours, theirs))
    return json.dumps(recorded) == json.dumps(asked)  # 1, 1.0 and True are three


def _object_fits(recorded: Jsons, asked: Jsons) -> bool:
    if len(recorded) != len(asked):
        return False
    others = {key: value for key, value in asked.items() if key not in recorded}
    for key, value in recorded.items():
        same = key if key in asked else next((other for other in others if _text_fits(key, other)), None)
        if same is None or not _fits(value, asked[same]):
            return False
        others.pop(same, None)
    return True


def _text_fits(recorded: str, asked: str) -> bool:
    """True if the texts are the same, where each REDACTED in the recorded one stands for any text."""
    first, *between = recorded.split(REDACTED)
    if not between:
        return recorded == asked
    last = between.pop()
    at, end = len(first), len(asked) - len(last)
    if end < at or not asked.startswith(first) or not asked.endswith(last):
        return False
    for piece in between:
        found = asked.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _without(value: object, path: tuple[str, ...]) -> object:
    """A JSON value without the part at this path."""
    first, *rest = path
    pairs: Iterable[tuple[str, object]]
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
    elif isinstance(value, list):
        pairs = ((str(number), item) for number, item in enumerate(cast("list[object]", value)))
    else:
        return value
    changed = {
        key: _without(item, tuple(rest)) if first in (key, "*") else item
        for key, item in pairs
        if rest or first not in (key, "*")
    }
    return changed if isinstance(value, dict) else list(changed.values())


def difference(recorded: Jsons, asked: Jsons) -> str:
    """The lines in which two requests differ: `-` is on the cassette, `+` was asked. At most 24 lines."""
    old, new = _lines(recorded), _lines(asked)
    lines: list[str] = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if i2 - i1 == j2 - j1:
            for before, after in zip(old[i1:i2], new[j1:j2], strict=True):
                lines += _short_pair(before, after)
        else:
            lines += [f"- {_short(line)}" for line in old[i1:i2]] + [f"+ {_short(line)}" for line in new[j1:j2]]
    more = len(lines) - _DIFF_LINES_MAX
    return "\n".join([*lines[:_DIFF_LINES_MAX], *([f"... and {more} lines more"] if more > 0 else [])])


def _lines(view: Jsons) -> list[str]:
    return json.dumps(view, indent=1, sort_keys=True, ensure_ascii=False).splitlines()


def _short_pair(before: str, after: str) -> list[str]:
    """Two lines, from shortly before the first character in which they differ."""
    differing = (at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
    same = next(differing, min(len(before), len(after)))
    start = max(0, same - _CONTEXT) if max(len(before), len(after)) > _LINE_MAX else 0
    mark = "..." if start else ""
    return [f"- {mark}{_short(before[start:])}", f"+ {mark}{_short(after[start:])}"]


def _short(line: str) -> str:
    return line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}..."


def ignored_paths(paths: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Paths such as `metadata.user_id` or `messages.*.id`, cut at their dots. Errors: `Invalid` for an empty one."""
    cut = tuple(tuple(path.split(".")) for path in paths)
    if any(not all(path) for path in cut):
        raise Invalid("a path of `ignore` is names joined by dots, such as 'metadata.user_id'", got=list(paths))
    return cut
