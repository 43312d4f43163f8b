"""One HTTP request by the standard library, in a thread: nothing that a server sends makes it last or grow."""

from __future__ import annotations

import codecs
import re
import socket
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, cast
from urllib.parse import urlsplit

from repertory.errors import HttpRequestError

TIMEOUT_S = 30.0
"""The time of a request that has none of its own."""
TIMEOUT_S_MAX = 3_600
"""A model may ask for no more; neither for infinity, nor for what is no number, which sockets do not take."""
BODY_BYTES_MAX = 5 * 1024 * 1024
ADDRESS_CHARS_MAX = 8192
"""The most characters of an address: Python reads some in the square of their number."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OF_THE_CONNECTION = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "te", "trailer", "connection", "keep-alive"),
        *("proxy-connection", "upgrade", "http2-settings", "expect"),
    )
)
"""Headers by which a server takes a request for one to another host, or for several. Source: RFC 9110, 7.2 and 7.6."""
_CHARSETS = frozenset(
    (
        *("utf-8", "utf-16", "utf-16-le", "utf-16-be", "ascii", "tis-620", "koi8-r", "koi8-u", "mac-roman"),
        *(f"iso8859-{part}" for part in range(1, 17) if part != 12),
        *("mac-cyrillic", "cp866", "cp874", *(f"cp{page}" for page in range(1250, 1259)), "gbk", "gb2312", "gb18030"),
        *("big5", "big5hkscs", "euc_jp", "iso2022_jp", "shift_jis", "cp932", "euc_kr", "cp949"),
    )
)
"""Codecs of Python for the encodings that pages are written in. Of the others some are quadratic, and some raise what
others do not. Source: the WHATWG's Encoding Standard."""
_NAT64 = IPv6Network("64:ff9b::/96")
"""Source: RFC 6052, 2.1."""
_SWITCHING = 101
_PIECE_BYTES = 16 * 1024
"""Bytes that are decoded at once: a codec holds the interpreter's lock, and takes long for bytes that are no text."""


@dataclass(frozen=True)
class HttpRequest:
    """A request. `hosts`: the only ones that may be asked; None for all."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: str | None = None
    timeout_s: float | None = None
    follow: bool = False
    bytes_max: int = BODY_BYTES_MAX
    head_only: bool = False
    """True if nothing is read of the answer's body."""
    hosts: frozenset[str] | None = None
    schemes: tuple[str, ...] = ("http", "https")
    public: bool = False
    """True if only hosts that the whole internet reaches are asked, without a proxy: the address comes from outside."""


@dataclass
class HttpResponse:
    """An answer."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, wanted: str) -> str:
        """The first with this name, in small letters; empty for none."""
        return next((value for name, value in self.headers if name.lower() == wanted), "")

    @property
    def content_type(self) -> str:
        """Empty if the server does not say."""
        return self.header("content-type")

    @property
    def text(self) -> str:
        """The body as text. Call it in a worker thread."""
        charset = self.content_type.lower().partition("charset=")[2].partition(";")[0].strip("\"' ")
        try:
            codec = codecs.lookup(charset or "utf-8")
        except (LookupError, ValueError):  # The second: a name that is none.
            codec = codecs.lookup("utf-8")
        name = codec.name if codec.name in _CHARSETS else "utf-8"
        if name == "utf-16":
            name = "utf-16-be" if self.body.startswith(codecs.BOM_UTF16_BE) else "utf-16-le"
        decoder = codecs.getincrementaldecoder(name)("replace")
        pieces = (self.body[at : at + _PIECE_BYTES] for at in range(0, len(self.body), _PIECE_BYTES))
        return "".join([*map(decoder.decode, pieces), decoder.decode(b"", final=True)]).removeprefix("\ufeff")


def check_address(url: str, request: HttpRequest) -> None:
    """Check an address. Errors: `HttpRequestError` for one that this request may not be sent to."""
    if len(url) > ADDRESS_CHARS_MAX:
        raise HttpRequestError("Request failed: the address is too long", characters_max=ADDRESS_CHARS_MAX)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise HttpRequestError(f"Request failed: {error}", url=url) from error
    if parts.scheme not in request.schemes or not parts.hostname:
        begins = " or ".join(f"{scheme}://" for scheme in request.schemes)
        raise HttpRequestError(f"Request failed: an address begins with {begins} and a host", url=url)
    if request.hosts is not None and parts.hostname.lower() not in request.hosts:
        raise HttpRequestError("Request failed: this host may not be asked", url=url, allowed=sorted(request.hosts))


def plain_headers(request: HttpRequest) -> dict[str, str]:
    """The headers, which ask for a body that is not packed unless they say otherwise.

    Errors: `HttpRequestError` for one that says which host is meant, or where the request ends.
    """
    for name in request.headers:
        if name.lower() in _OF_THE_CONNECTION or not _HEADER_NAME.fullmatch(name):
            raise HttpRequestError(
                "Request failed: leave out this header, which the address and body make", header=name
            )
    asks = any(name.lower() == "accept-encoding" for name in request.headers)
    return {**({} if asks else {"Accept-Encoding": "identity"}), **request.headers}


def unpack_body(response: HttpResponse, request: HttpRequest) -> None:
    """Unpack a body that a service has packed all the same, within the bound of the request.

    Errors: `HttpRequestError`.
    """
    encoding = response.header("content-encoding").strip().lower()
    if encoding in ("", "identity") or not response.body:
        return
    if encoding not in ("gzip", "x-gzip"):
        raise HttpRequestError("Request failed: the answer is packed", url=request.url, encoding=encoding)
    try:
        unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        response.body = unpacking.decompress(response.body, request.bytes_max + 1)
    except zlib.error as error:
        raise HttpRequestError(f"Request failed: {error}", url=request.url) from error
    if len(response.body) > request.bytes_max:
        raise too_large(request)


def too_large(request: HttpRequest) -> HttpRequestError:
    """The error for a body that is longer than the request allows."""
    return HttpRequestError(f"Response body exceeded {request.bytes_max} bytes", url=request.url)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to addresses that could have been asked for, or none."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not self._request.follow:
            return None
        fp.close()  # The body would be read to its end, if it has one, and left open if the address is refused.
        check_address(newurl, self._request)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Connections:
    """The connections of one request, which another thread may cut: that ends whatever waits for them.

    A time limit of a socket holds for one read, and a server may send a byte before each ends.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: list[socket.socket] | None = []

    def add(self, connection: socket.socket) -> None:
        """Add a socket that `cut` is to end. Errors: `OSError` after `cut`."""
        with self._guard:
            if self._open is None:
                raise ConnectionAbortedError("the request was given up")
            self._open.append(connection.dup())  # TLS takes the socket itself away.

    @property
    def were_cut(self) -> bool:
        """True after `cut`."""
        return self._open is None

    def cut(self) -> None:
        """Shut them, and every further one."""
        with self._guard:
            were_open, self._open = self._open or [], None
        for connection in were_open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _public_connection(address: tuple[str, int], timeout_s: float, source: Any = None) -> socket.socket:
    """`socket.create_connection` to a host that the whole internet reaches. Errors: `HttpRequestError` for any other;
    `OSError`.
    """
    # The addresses that are checked are those that are asked: a name may lead elsewhere at the next look.
    hosts = [str(each[4][0]) for each in socket.getaddrinfo(*address, type=socket.SOCK_STREAM)]
    if not hosts or not all(map(is_public, hosts)):
        raise HttpRequestError("Request failed: the address leads into a network of this machine's own")
    for host in hosts[:-1]:
        with suppress(OSError):
            return socket.create_connection((host, address[1]), timeout_s, source)
    return socket.create_connection((hosts[-1], address[1]), timeout_s, source)


def is_public(host: str) -> bool:
    """True for an IP address that the whole internet reaches."""
    ip: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    inner: IPv4Address | IPv6Address | None = None
    if isinstance(ip, IPv6Address):  # A gateway takes a request for one of these forms to an address of IPv4.
        in_nat64 = IPv4Address(int(ip) & 0xFFFF_FFFF) if ip in _NAT64 else None
        inner = in_nat64 or ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
    return all(one.is_global and not one.is_multicast for one in (ip, inner or ip))


class _LastResponse(HTTPResponse):
    """The answer behind those that go ahead of it, such as hints of what to load (RFC 9110, 15.2): the library passes
    over the one of status 100 alone.
    """

    def begin(self) -> None:
        super().begin()
        while 100 < self.status < 200 and self.status != _SWITCHING:
            self.headers = self.msg = cast("Any", None)
            super().begin()


def _handlers(connections: Connections, *, public: bool) -> tuple[urllib.request.BaseHandler, ...]:
    class Plain(HTTPConnection):
        response_class = _LastResponse

        def connect(self) -> None:
            if public:
                self._create_connection = _public_connection
            super().connect()
            connections.add(self.sock)

    class Secure(HTTPSConnection, Plain):
        """HTTPSConnection connects by the class behind it, and then begins TLS."""

    class PlainHandler(urllib.request.HTTPHandler):
        def http_open(self, req: Any) -> Any:
            return self.do_open(Plain, req)

    class SecureHandler(urllib.request.HTTPSHandler):
        def https_open(self, req: Any) -> Any:
            return self.do_open(Secure, req)

    # A proxy would look the name up itself, and may reach more.
    no_proxy = (urllib.request.ProxyHandler({}),) if public else ()
    return PlainHandler(), SecureHandler(), *no_proxy


def ask_by_urllib(request: HttpRequest, connections: Connections) -> HttpResponse:
    """The answer. Blocks, until `connections` are cut at the latest. Errors: `HttpRequestError`."""
    headers = {"User-Agent": "repertory", **plain_headers(request)}
    body = None if request.body is None else request.body.encode()
    if body is not None and "content-type" not in {name.lower() for name in headers}:
        headers["Content-Type"] = "text/plain; charset=utf-8"
    opener = urllib.request.build_opener(_Redirects(request), *_handlers(connections, public=request.public))
    timeout_s = TIMEOUT_S if request.timeout_s is None else request.timeout_s
    try:
        try:
            answer: Any = opener.open(
                urllib.request.Request(request.url, body, headers, method=request.method), timeout=timeout_s
            )
        except urllib.error.HTTPError as error:  # It is the answer, with a status that is none of success.
            answer = error
        with answer:
            read: bytes = b"" if request.head_only else answer.read(request.bytes_max + 1)
            response = HttpResponse(answer.status, answer.reason or "", list(answer.headers.items()), read)
        if connections.were_cut:  # What came until then may look like a whole answer.
            raise TimeoutError
    except TimeoutError as error:
        raise HttpRequestError("Request timed out", url=request.url, timeout_s=timeout_s) from error
    except (OSError, HTTPException, ValueError) as error:
        late = isinstance(getattr(error, "reason", None), TimeoutError)
        what = "Request timed out" if late else f"Request failed: {error}"
        raise HttpRequestError(what, url=request.url) from error
    finally:
        connections.cut()
    if len(read) > request.bytes_max:
        raise too_large(request)
    if not request.head_only:
        unpack_body(response, request)
    return response
