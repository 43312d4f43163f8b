"""Records what models answer, at the wire, and replays it in later runs of the test without network or keys.

vcrpy (9.4, and pytest-recording on top of it) reads a streamed answer to its end before the program gets the first
byte, records no answer that breaks off, and its refusal of an unknown request reaches an agent as a lost connection,
which it tries again. respx only plays what the test has written by hand, so this is a recorder of our own: for httpx
and httpx2, on asyncio and trio, chunk by chunk, with the frames of AWS event streams.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypedDict

import anyio
import anyio.lowlevel

from repertory.backends.worker_threads import run_in_thread
from repertory.core.cassette.scrubbing import (
    REDACTED,
    SECRET_MIN,
    Scrubber,
    endpoint_variables,
    header_secrets,
    is_worth_hiding,
    secret_variables,
    url_secrets,
)
from repertory.core.cassette.tape import (
    MATCH_PARTS,
    CassetteRequest,
    Interaction,
    Matching,
    RawExchange,
    Tape,
    difference,
    ignored_paths,
    read_tape,
    scrubbed,
    scrubbed_request,
    tape_text,
)
from repertory.errors import CassetteMismatch, Invalid, NotFound

CassetteMode = Literal["replay", "record", "auto"]
"""The modes of a cassette: `auto` replays its file if there is one, and records otherwise."""
CassettePart = Literal["method", "path", "body", "host", "query"]
"""A part of a request that `match` may name."""
CassetteRule = str | re.Pattern[str] | Callable[[str], str]
"""A rule of `redact` for recorded texts: a text or a pattern to take out, or a function that returns the new text."""

_NO_KEY = "a-cassette-needs-no-key"
_AWS_REGION = "AWS_REGION"
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", _AWS_REGION)
_AWS_HOST = re.compile(r"https://[a-z0-9.-]+?\.([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.")
_WAITS = ("retry-after", "retry-after-ms")
_UNREAD_S = 10.0
_AIOHTTP_SWITCH = "DISABLE_AIOHTTP_TRANSPORT"
_AIOHTTP_OF_LITELLM = "litellm.llms.custom_httpx.aiohttp_transport"

_opening = threading.Lock()
_open: list[Cassette] = []


class CassetteSettings(TypedDict, total=False):
    """The arguments of a `Cassette` beside its path and its mode, as the fixture `cassette_settings` returns them.

    Examples:
        >>> settings: CassetteSettings = {"ignore": ["metadata.user_id"], "strict": False}
        >>> Cassette("cassettes/hello.json", **settings)
        Cassette('cassettes/hello.json', mode='replay')
    """

    redact: Sequence[CassetteRule]
    """Texts, patterns and functions that take more out of the file."""
    match: Sequence[CassettePart]
    """The parts of a request that must be as recorded."""
    ignore: Sequence[str]
    """Paths of a JSON body that may differ."""
    ignore_hosts: Sequence[str]
    """Hosts that are reached as without a cassette."""
    strict: bool
    """False if recorded requests may be left unplayed."""


class Cassette:
    """Records the HTTP exchanges of model adapters in its block, or replays them from its file.

    It works below every client of httpx and httpx2 in the process: on asyncio and trio, in every thread, and so for the
    synchronous call of an agent too. While it replays, nothing that it intercepts reaches the network, and API keys
    and URLs of services that the recording took from the environment may be missing. Use `with` in synchronous code and
    in fixtures, `async with` elsewhere.

    The file holds listed headers only, and neither keys, tokens, passwords and AWS account numbers nor the values of
    environment variables such as `OPENAI_API_KEY`. Texts of fewer than 12 characters are not looked for. A secret that
    the model spells in several pieces of a stream is not found: look at what you commit.

    A request is answered by the first unplayed recorded one that is the same, and otherwise by the first that matches
    where its `REDACTED` stands for any text. So requests may be made concurrently, and equal ones are answered in their
    order. Where a service asked to wait before the next try (`retry-after`), a replay asks for 0 seconds.

    Not intercepted: synchronous httpx clients, subprocesses, requests for credentials (AWS, Google), and clients over
    aiohttp, except LiteLLM's.

    Args:
        path: The file, JSON. Its folders are made when it is written.
        mode: `replay` needs the file; `record` writes it anew; `auto` records only if there is no file.
        redact: Texts, patterns and functions that take more out of the file. A text, or what a pattern finds, becomes
            `REDACTED`. A function gets a string of a JSON body, a line of a stream, a frame's payload, or the host or
            path of a URL; it returns the text to record.
        match: The parts of a request that must be as recorded: of `method`, `path`, `body`, `host` and `query`.
        ignore: Paths of a JSON body that may differ, such as `metadata.user_id` or `messages.*.id`.
        ignore_hosts: Hosts that are reached as without a cassette, such as `localhost` or `*.s3.*.amazonaws.com`.
        strict: False if recorded requests may be left unplayed.

    Attributes:
        path: The file.

    Raises:
        Invalid: For a mode, a part or a path that is none, or if another cassette is open in the process: close that
            one first. Also for a file that is no cassette, or that cannot be read, and at the block's start for one
            that could not be written: name another path.
        NotFound: If there is no file to replay. Record it.
        CassetteMismatch: From the model, and again at the block's end, if a request is not on the cassette; at the
            block's end if a recorded one was not made. Change the program back, or record anew.
        Failed: At the block's end if an answer cannot be recorded, since its compression is unknown.

    Examples:
        >>> from repertory import Agent, OpenAIModel
        >>> def test_the_agent_greets() -> None:
        ...     with Cassette("cassettes/greets.json", mode="auto"):
        ...         assert "hello" in str(Agent(OpenAIModel(model_id="gpt-5.4"))("Say hello.")).lower()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: CassetteMode = "replay",
        redact: Sequence[CassetteRule] = (),
        match: Sequence[CassettePart] = ("method", "path", "body"),
        ignore: Sequence[str] = (),
        ignore_hosts: Sequence[str] = (),
        strict: bool = True,
    ) -> None:
        if mode not in ("replay", "record", "auto"):
            raise Invalid("a cassette's mode is 'replay', 'record' or 'auto'", got=mode)
        if isinstance(match, str) or not set(match) <= set(MATCH_PARTS) or not match:
            raise Invalid(f"`match` names some of {', '.join(MATCH_PARTS)}", got=match)
        for name, given in (("redact", redact), ("ignore", ignore), ("ignore_hosts", ignore_hosts)):
            if isinstance(given, str):
                raise Invalid(f"`{name}` is a list", got=given)
        self.path = Path(path)
        self._mode: CassetteMode = mode
        self._rules = [_rule(given) for given in redact]
        self._matching = Matching(frozenset(match), ignored_paths(ignore))
        self._ignored_hosts = tuple(host.lower() for host in ignore_hosts)
        self._strict = strict
        self._lock = threading.Lock()
        self._restore: list[Callable[[], object]] = []
        self._begin(None)

    def __repr__(self) -> str:
        return f"Cassette({str(self.path)!r}, mode={self._mode!r})"

    @property
    def is_recording(self) -> bool:
        """True in a block that records."""
        return self._tape is None and bool(self._restore)

    @property
    def requests(self) -> tuple[Mapping[str, object], ...]:
        """The requests of the block so far, in their order and without secrets: `method`, `url`, and the body as
        `json`, `text` or `base64`.
        """
        with self._lock:
            if self._tape is None:
                scrubber = self._scrubber(self._taken)
                asked = [scrubbed_request(taken, scrubber) for taken in self._taken]
            else:
                asked = list(self._asked)
        return tuple({"method": request.method, "url": request.url, **request.body} for request in asked)

    @property
    def mismatch(self) -> CassetteMismatch | None:
        """The first request that was not on the cassette, as an error; None while all were."""
        return self._mismatch

    def discard(self) -> None:
        """Write nothing at the block's end, and complain of nothing: for a test that has failed otherwise."""
        self._discarded = True

    def __enter__(self) -> Cassette:
        self._claim()
        try:
            self._begin(self._load())
            self._intercept()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        if error is None:
            self._finish()
        else:
            self._explain(error)

    async def __aenter__(self) -> Cassette:
        return await run_in_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()
        if error is None:
            await run_in_thread(self._finish)
        else:
            self._explain(error)

    # -------------------------------------------------------------------------------------------------- the block

    def _begin(self, tape: Tape | None) -> None:
        """Start over, with a tape to play or with none."""
        self._tape = tape
        self._unplayed: list[Interaction] = [] if tape is None else list(tape.interactions)
        self._asked: list[CassetteRequest] = []
        self._taken: list[RawExchange] = []
        self._variables: dict[str, str] = {}
        self._endpoints: dict[str, str] = {}
        self._mismatch: CassetteMismatch | None = None
        self._discarded = False

    def _claim(self) -> None:
        with _opening:
            if _open:
                raise Invalid("another cassette is open in this process: close it first", open=str(_open[0].path))
            _open.append(self)

    def _load(self) -> Tape | None:
        if self._mode == "record":
            return _check_writable(self.path)
        try:
            return read_tape(self.path.read_bytes())
        except FileNotFoundError as error:
            if self._mode == "auto":
                return _check_writable(self.path)
            raise NotFound("no such cassette: record it with mode='record'", path=str(self.path)) from error
        except Invalid as error:
            raise Invalid(error.message, path=str(self.path)) from error
        except OSError as error:
            raise Invalid(f"the cassette cannot be read: {error.strerror}", path=str(self.path)) from error

    def _intercept(self) -> None:
        for library, transport in _transports():
            original: Any = transport.handle_async_request
            transport.handle_async_request = self._interceptor(library, original)
            self._restore.append(partial(setattr, transport, "handle_async_request", original))
        wanted = {_AIOHTTP_SWITCH: "True"}
        if self._tape is not None:
            wanted |= _keys_for(self._tape)
        for name, value in wanted.items():
            self._restore.append(partial(_set_variable, name, os.environ.get(name)))
            _set_variable(name, value)

    def _interceptor(self, library: Any, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def handle(transport: Any, request: Any) -> Any:
            return await self._handle(library, request, partial(original, transport, request))

        return handle

    def _release(self) -> None:
        while self._restore:
            self._restore.pop()()
        with _opening:
            if self in _open:
                _open.remove(self)

    def _finish(self) -> None:
        if self._discarded:
            return
        if self._tape is None:
            _write(self.path, tape_text(self._recorded()))
        elif self._mismatch is not None:
            raise copy(self._mismatch)
        elif self._strict and self._unplayed:
            names = "\n".join(f"  {one.request.method} {one.request.url}" for one in self._unplayed[:10])
            raise CassetteMismatch(
                f"the test did not make {len(self._unplayed)} of {len(self._tape.interactions)} recorded requests;"
                f" record it anew, or pass strict=False:\n{names}\n",
                cassette=str(self.path),
            )

    def _explain(self, error: BaseException) -> None:
        """Tell an error that ends the block what the cassette knows, unless it is that already."""
        if self._mismatch is not None and not self._discarded and not isinstance(error, CassetteMismatch):
            error.add_note(str(self._mismatch))

    # ------------------------------------------------------------------------------------------------- one request

    async def _handle(self, library: Any, request: Any, send: Callable[[], Awaitable[Any]]) -> Any:
        host: str = request.url.host.lower()
        if any(fnmatchcase(host, ignored) for ignored in self._ignored_hosts):
            return await send()
        raw = RawExchange(
            method=request.method,
            url=str(request.url),
            request_headers=list(request.headers.multi_items()),
            request_body=await request.aread(),
        )
        if self._tape is not None:
            await anyio.lowlevel.checkpoint()
            return await self._play(library, self._find(raw, self._tape))
        with self._lock:
            self._taken.append(raw)
            self._variables |= secret_variables(os.environ)  # those of now: a test may take them back before its end
            self._endpoints |= endpoint_variables(os.environ)
        request.headers["accept-encoding"] = "identity"
        try:
            response = await send()
        except library.HTTPError as error:
            raw.error = (type(error).__name__, str(error))
            raise
        raw.status, raw.headers = response.status_code, list(response.headers.multi_items())
        response.stream = _stream(library, _RecordedChunks(response.stream, raw, library.HTTPError))
        return response

    def _find(self, raw: RawExchange, tape: Tape) -> Interaction:
        """The first unplayed exchange whose request matches. Errors: `CassetteMismatch` if there is none."""
        asked = scrubbed_request(raw, self._scrubber([raw]))
        # What is a secret now need not have been one then, so the request counts with its own words too.
        forms = (asked, scrubbed_request(raw, Scrubber((), self._rules)))
        keys = {self._matching.key(form) for form in forms}
        with self._lock:
            self._asked.append(asked)
            for number, interaction in enumerate(self._unplayed):
                if self._matching.key(interaction.request) in keys:
                    return self._unplayed.pop(number)
            for number, interaction in enumerate(self._unplayed):
                if self._fits(interaction, forms):
                    return self._unplayed.pop(number)
            mismatch = self._no_match(forms, tape)
            self._mismatch = self._mismatch or mismatch
        raise copy(mismatch)

    def _fits(self, interaction: Interaction, forms: Sequence[CassetteRequest]) -> bool:
        return any(self._matching.fits(interaction.request, form) for form in forms)

    async def _play(self, library: Any, interaction: Interaction) -> Any:
        """The recorded response, or the recorded failure of the connection."""
        answer, error = interaction.answer, _error(library, interaction.error)
        if error is not None and answer is None:
            raise error
        unread = partial(self._wait, interaction.request)
        if answer is None:
            raise await unread()
        chunks = _PlayedChunks(answer.chunks, error, unread if answer.cut else None)
        headers = [(name, "0" if name in _WAITS else value) for name, value in answer.headers.items()]
        return library.Response(answer.status, headers=headers, stream=_stream(library, chunks))

    async def _wait(self, request: CassetteRequest) -> CassetteMismatch:
        """Give the program time to give up the answer as it did when it was recorded; the error if it does not."""
        await anyio.sleep(_UNREAD_S)
        mismatch = CassetteMismatch(
            "the program waits for more than it has read of this answer when it was recorded; record it anew",
            request=f"{request.method} {request.url}",
            cassette=str(self.path),
        )
        self._mismatch = self._mismatch or mismatch
        return copy(mismatch)

    def _no_match(self, forms: Sequence[CassetteRequest], tape: Tape) -> CassetteMismatch:
        asked = forms[0]
        view = self._matching.view(asked)
        alike = [one for one in self._unplayed if self._matching.view(one.request).get("path") == view.get("path")]
        if any(self._fits(one, forms) for one in tape.interactions):
            text = "the request was made more often than it is on the cassette\n"
        elif not self._unplayed:
            text = f"all {len(tape.interactions)} requests of the cassette have been made, and this is one more\n"
        else:
            nearest = (alike or self._unplayed)[0]
            lines = difference(self._matching.view(nearest.request), view)
            text = f"the request is not on the cassette (-: recorded, +: asked); record anew if it is right:\n{lines}\n"
        return CassetteMismatch(text, request=f"{asked.method} {asked.url}", cassette=str(self.path))

    def _scrubber(self, exchanges: Sequence[RawExchange]) -> Scrubber:
        secrets = {*self._variables.values(), *secret_variables(os.environ).values()}
        for raw in exchanges:
            found = (*header_secrets(raw.request_headers), *header_secrets(raw.headers), *url_secrets(raw.url))
            secrets.update(filter(is_worth_hiding, found))
        return Scrubber(secrets, self._rules)

    def _recorded(self) -> Tape:
        with self._lock:
            taken = list(self._taken)
        scrubber = self._scrubber(taken)
        keys = tuple(sorted({*_keys(taken, self._variables)}))
        endpoints = {
            name: scrubber.url(url)
            for name, url in sorted(self._endpoints.items())
            if any(_is_below(raw.url, url) for raw in taken)
        }
        return Tape(keys=keys, endpoints=endpoints, interactions=tuple(scrubbed(raw, scrubber) for raw in taken))


def _rule(given: CassetteRule) -> Callable[[str], str]:
    if isinstance(given, str):
        return lambda text: text.replace(given, REDACTED)
    if isinstance(given, re.Pattern):
        return partial(given.sub, REDACTED)
    return given


def _keys(taken: Sequence[RawExchange], variables: Mapping[str, str]) -> Iterator[str]:
    """The environment variables that a client needs to make these requests: those that their keys came from."""
    values = [value for raw in taken for value in (raw.url, *(value for _, value in raw.request_headers))]
    words = {word for raw in taken for word in (*header_secrets(raw.request_headers), *url_secrets(raw.url))}
    for name, secret in variables.items():  # a short one stands in many a text by chance
        if secret in words or (len(secret) >= SECRET_MIN and any(secret in value for value in values)):
            yield name
    if any(value.startswith("AWS4-") for value in values):
        yield from _AWS_KEYS
    if any(_AWS_HOST.match(raw.url) for raw in taken):
        yield _AWS_REGION


def _is_below(url: str, endpoint: str) -> bool:
    base = endpoint.rstrip("/").lower()
    return url.lower() == base or url.lower().startswith((f"{base}/", f"{base}?"))


def _keys_for(tape: Tape) -> dict[str, str]:
    """The environment variables that are set while a tape is played, where they are missing."""
    found = dict.fromkeys(tape.keys, _NO_KEY) | dict(tape.endpoints)
    if _AWS_REGION in found:
        regions = (_AWS_HOST.match(interaction.request.url) for interaction in tape.interactions)
        found[_AWS_REGION] = next((region[1] for region in regions if region), "us-east-1")
        if os.environ.get("AWS_DEFAULT_REGION"):
            del found[_AWS_REGION]
    return {name: value for name, value in found.items() if not os.environ.get(name)}


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _transports() -> Iterator[tuple[Any, Any]]:
    """The HTTP libraries that are installed, each with the class below all its asynchronous clients."""
    for name in ("httpx", "httpx2"):
        if find_spec(name) is not None:
            library: Any = import_module(name)
            yield library, library.AsyncHTTPTransport
    if _AIOHTTP_OF_LITELLM in sys.modules:  # clients that were made before; others are kept to httpx by a variable
        yield import_module("httpx"), sys.modules[_AIOHTTP_OF_LITELLM].LiteLLMAiohttpTransport


def _check_writable(path: Path) -> None:
    """Refuse a path that no file can be written to. Errors: `Invalid`."""
    try:
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        taken = path.is_dir()
    except OSError as error:
        raise Invalid(f"the cassette cannot be written: {error.strerror}", path=str(path)) from error
    if taken:
        raise Invalid("the cassette cannot be written: its path is a folder", path=str(path))
    if not folder.is_dir():
        raise Invalid(f"the cassette cannot be written: {folder} is no folder", path=str(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Invalid(f"the cassette cannot be written: {folder} takes no new files", path=str(path))


def _write(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _RecordedChunks:
    """The stream of an answer, which notes what passes through it."""

    def __init__(self, stream: Any, raw: RawExchange, errors: type[Exception]) -> None:
        self._stream = stream
        self._raw = raw
        self._errors = errors
        self._chunks: Any = None

    def __aiter__(self) -> _RecordedChunks:
        self._chunks = aiter(self._stream)
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk: bytes = await anext(self._chunks)
        except StopAsyncIteration:
            self._raw.ended = True
            raise
        except self._errors as error:
            self._raw.error = (type(error).__name__, str(error))
            raise
        self._raw.chunks.append(chunk)
        return chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _PlayedChunks:
    """The stream of a recorded answer."""

    def __init__(
        self, chunks: Sequence[bytes], error: Exception | None, unread: Callable[[], Awaitable[Exception]] | None
    ) -> None:
        """`unread`: waited for behind the last chunk of an answer that the program did not read to its end."""
        self._chunks = iter(chunks)
        self._error = error
        self._unread = unread

    def __aiter__(self) -> _PlayedChunks:
        return self

    async def __anext__(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        for chunk in self._chunks:
            return chunk
        if self._error is not None:
            raise self._error
        if self._unread is not None:
            raise await self._unread()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Does nothing: there is no connection."""


def _stream(library: Any, chunks: _RecordedChunks | _PlayedChunks) -> Any:
    """The chunks as a stream of this library, which takes no other kind."""
    kind: Any = type("CassetteStream", (_Forwarding, library.AsyncByteStream), {})
    return kind(chunks)


class _Forwarding:
    def __init__(self, chunks: _RecordedChunks | _PlayedChunks) -> None:
        self._chunks = chunks

    def __aiter__(self) -> Any:
        return aiter(self._chunks)

    async def aclose(self) -> None:
        await self._chunks.aclose()


def _error(library: Any, recorded: tuple[str, str] | None) -> Any:
    if recorded is None:
        return None
    name, text = recorded
    kind: Any = getattr(library, name, None)
    known = isinstance(kind, type) and issubclass(kind, library.TransportError)
    return kind(text) if known else library.ReadError(text)
