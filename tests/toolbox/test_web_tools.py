"""Tools that ask web services and read pages, against a server on loopback."""

from __future__ import annotations

import gzip
import random
import socket
import threading
import tracemalloc
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory import Agent, ScriptedModel
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import text_of, tool_results
from repertory.errors import HttpRequestError, Invalid, WebFetchError
from repertory.toolbox.web import http_request, make_http_request, make_web_fetch, markdown_of
from repertory.toolbox.web_requests import Connections, HttpRequest, HttpResponse, ask_by_urllib
from tests.app.orchestration.recorder import use
from tests.campaigns.campaign_pages import HostileServer, bomb

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

PAGE = (
    "<html><head><title>Trees</title><script>x()</script></head><body><h2>Oak</h2><p>A <b>tree</b>.</p></body></html>"
)

HEAVY = bytes(20_000_000)


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        sent = self.rfile.read(size).decode()
        status, headers, body = self.reply(sent)
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reply(self, sent: str) -> tuple[int, list[tuple[str, str]], bytes]:
        match self.path:
            case "/page":
                return (
                    200,
                    [("Content-Type", "text/html; charset=latin-1")],
                    PAGE.replace("Oak", "Bäume").encode("latin-1"),
                )
            case "/moved":
                return 302, [("Location", "/page")], b""
            case "/away":
                return 302, [("Location", "file:///etc/passwd")], b""
            case "/elsewhere":
                return 302, [("Location", "http://localhost:1/page")], b""
            case "/large":
                return 200, [], b"x" * 10_000
            case "/packed":
                return 200, [("Content-Encoding", "gzip")], gzip.compress(b"small")
            case "/bomb":
                return 200, [("Content-Encoding", "gzip")], bomb()
            case "/brotli":
                return 200, [("Content-Encoding", "br")], b"x"
            case "/charset":
                return 200, [("Content-Type", "text/plain; charset=idna")], b"a" * 100
            case "/heavy-redirect":
                return 302, [("Location", "/page")], HEAVY
            case "/other-origin":
                port = self.headers["host"].rpartition(":")[2]
                return 302, [("Location", f"http://localhost:{port}/credentials")], b""
            case "/credentials":
                return 200, [], f"got {self.headers.get('authorization')}".encode()
            case "/slow":
                threading.Event().wait(2)
                return 200, [], b"late"
            case "/cookies":
                return 200, [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")], b""
            case "/echo":
                return 201, [], f"{self.command} {self.headers.get('x-mine')} {sent}".encode()
            case _:
                return 404, [], b"nothing"

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def base() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # Closing it waits for them.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def ask(url: str, method: str = "GET", tool: Any = http_request, **options: Any) -> Any:
    return await tool(method=method, url=url, **options)


async def test_a_request_is_sent_and_its_answer_given(base: str) -> None:
    answer = await ask(f"{base}/echo", "POST", headers={"X-Mine": "yes"}, body='{"a": 1}')
    assert (answer["status"], answer["status_text"]) == (201, "Created")
    assert answer["body"] == 'POST yes {"a": 1}'
    assert answer["headers"]["content-length"] == "17"
    assert (await ask(f"{base}/cookies"))["headers"]["set-cookie"] == "a=1\nb=2"


async def test_redirects_are_answers_and_failures_are_errors(base: str) -> None:
    assert (await ask(f"{base}/moved"))["status"] == 302
    with pytest.raises(HttpRequestError, match="HTTP 404"):
        await ask(f"{base}/none")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/a", "host/a", "http://", "http://[", ""])
async def test_only_the_web_is_asked(url: str) -> None:
    with pytest.raises(HttpRequestError, match="Request failed"):
        await ask(url)


async def test_an_answer_that_is_late_or_never_comes_is_an_error(base: str) -> None:
    with pytest.raises(HttpRequestError, match="timed out"):
        await ask(f"{base}/slow", timeout=0.2)
    with pytest.raises(HttpRequestError, match="Request failed"):
        await ask("http://127.0.0.1:1/")
    for seconds in (0, float("nan"), float("inf"), 1e10):
        with pytest.raises(HttpRequestError, match="positive"):
            await ask(base, timeout=seconds)


@pytest.mark.parametrize("client", [None, httpx.AsyncClient])
@pytest.mark.parametrize("kind", ["drips", "drips_its_head", "continues"])
async def test_a_server_that_never_ends_gets_no_more_than_the_time_of_the_request(
    rng: random.Random, kind: str, client: Any
) -> None:
    tool = make_http_request(client=client and client())
    with HostileServer(rng, 1).running() as url, pytest.raises(HttpRequestError, match="timed out"):
        await ask(f"{url}/{kind}", tool=tool, timeout=0.3)


def test_a_request_that_is_given_up_ends_its_thread(rng: random.Random) -> None:
    connected = threading.Event()

    class Watched(Connections):
        def add(self, connection: socket.socket) -> None:
            super().add(connection)
            connected.set()

    opened = Watched()

    def work() -> None:
        with pytest.raises(HttpRequestError):
            ask_by_urllib(HttpRequest("GET", f"{url}/drips_its_head", {}), opened)

    with HostileServer(rng, 1).running() as url:
        thread = threading.Thread(target=work)
        thread.start()
        connected.wait()
        opened.cut()
        thread.join()


@pytest.mark.parametrize("client", [None, httpx.AsyncClient])
async def test_what_is_packed_is_unpacked_within_the_bound(base: str, client: Any) -> None:
    tool = make_http_request(client=client and client())
    assert (await ask(f"{base}/packed", tool=tool))["body"] == "small"
    tracemalloc.start()
    try:
        with pytest.raises(HttpRequestError, match="exceeded"):
            await ask(f"{base}/bomb", tool=tool)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(HttpRequestError, match="packed"):
        await ask(f"{base}/brotli", tool=tool)


@pytest.mark.parametrize("client", [None, lambda: httpx.AsyncClient(follow_redirects=True)])
async def test_the_body_of_a_redirect_is_not_read(base: str, client: Any) -> None:
    fetch = make_web_fetch(mode="markdown", client=client and client())
    tracemalloc.start()
    try:
        assert (await fetch(url=f"{base}/heavy-redirect")).startswith("# Trees")
        assert tracemalloc.get_traced_memory()[1] < len(HEAVY) / 2
    finally:
        tracemalloc.stop()


async def test_a_redirect_to_another_origin_gets_no_credentials_of_the_client(base: str) -> None:
    async with httpx.AsyncClient(auth=("user", "secret"), follow_redirects=True) as client:
        pages = make_web_fetch(mode="markdown", client=client)
        assert (await pages(url=f"{base}/credentials")).startswith("got Basic ")
        assert await pages(url=f"{base}/other-origin") == "got None"


async def test_an_address_that_is_slow_to_read_is_not_read() -> None:
    for tool in (http_request, make_web_fetch(mode="markdown")):
        options = {"method": "GET"} if tool is http_request else {}
        with pytest.raises(HttpRequestError, match="too long"):
            await tool(url="http://a" + "\u0301\u0316" * 5000, **options)


async def test_a_charset_that_no_page_has_is_not_tried(base: str) -> None:
    assert (await ask(f"{base}/charset"))["body"] == "a" * 100
    for charset in (
        "unicode_escape",
        "unicode-escape",
        "raw_unicode_escape",
        "utf-7",
        "zlib",
        "rot13",
        "\0",
        "a" * 900,
    ):
        assert answer_in(charset, b"\\x41+AEE-").text == "\\x41+AEE-"


def answer_in(charset: str, body: bytes) -> HttpResponse:
    return HttpResponse(200, "", [("Content-Type", f"text/plain; charset={charset}")], body)


class Pieces(bytes):
    """Bytes that know the largest piece that was taken of them."""

    largest = 0

    def __getitem__(self, at: Any) -> Any:
        piece = super().__getitem__(at)
        self.largest = max(self.largest, len(piece))
        return piece

    def decode(self, *args: Any, **options: Any) -> str:
        self.largest = len(self)
        return super().decode(*args, **options)


@pytest.mark.parametrize(
    "charset", ["", "utf-8", "tis-620", "cp1255", "iso2022_jp", "gb18030", "utf-16-le", "shift_jis"]
)
def test_a_page_is_decoded_piece_by_piece_and_as_at_once(charset: str, rng: random.Random) -> None:
    text = "".join(rng.choice(("a", "\n", "ü", "日本", "я", "ש", "ก")) for _ in range(30_000))
    for body in (text.encode(charset or "utf-8", "replace"), b"\xff" * 100_001, bytes(range(256)) * 300):
        pieces = Pieces(body)
        assert answer_in(charset, pieces).text == body.decode(charset or "utf-8", "replace")
        assert 0 < pieces.largest <= 16 * 1024, "a codec holds the interpreter's lock"
    assert answer_in("utf-16", "aя".encode("utf-16")).text == answer_in("utf-8", "aя".encode("utf-8-sig")).text == "aя"


async def test_a_cancelled_request_is_not_waited_for(base: str) -> None:
    with anyio.move_on_after(0.2) as scope:
        await ask(f"{base}/slow")
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "hOST",
        "Host ",
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "Upgrade",
        "TE",
        "Expect",
        "",
        "a:b",
    ],
)
@pytest.mark.parametrize("own", [False, True], ids=["standard library", "client"])
async def test_no_header_makes_a_request_one_to_another_host_or_two(base: str, name: str, own: bool) -> None:
    async with httpx.AsyncClient() as client:
        tool = make_http_request(allowed_hosts=["127.0.0.1"], client=client if own else None)
        with pytest.raises(HttpRequestError, match="leave out this header"):
            await ask(f"{base}/echo", "POST", tool=tool, headers={name: "0"}, body="GET / HTTP/1.1")


async def test_hosts_may_be_bounded_also_for_redirects(base: str) -> None:
    tool = make_http_request(allowed_hosts=["127.0.0.1"])
    assert (await ask(f"{base}/page", tool=tool))["status"] == 200
    with pytest.raises(HttpRequestError, match="may not be asked"):
        await ask("http://localhost/", tool=tool)
    pages = make_web_fetch(mode="markdown", allowed_hosts=["127.0.0.1"])
    with pytest.raises(HttpRequestError, match="may not be asked"):
        await pages(url=f"{base}/elsewhere")
    with pytest.raises(Invalid, match="list"):
        make_http_request(allowed_hosts="127.0.0.1")
    with pytest.raises(Invalid, match="redirects"):
        make_http_request(allowed_hosts=["127.0.0.1"], client=SimpleNamespace(follow_redirects=True))


class Headers(dict[str, str]):
    def multi_items(self) -> list[tuple[str, str]]:
        return list(self.items())


class Client:
    """As much of an `httpx.AsyncClient` as the tools use."""

    timeout = SimpleNamespace(read=5.0, connect=None, write=None)

    def __init__(self, *chunks: bytes, error: Exception | None = None) -> None:
        self.chunks, self.error, self.built, self.closed = chunks, error, dict[str, Any](), 0

    def build_request(self, method: str, url: str, **options: Any) -> object:
        self.built = {"method": method, "url": url, **options}
        return self.built

    async def send(self, request: object, *, stream: bool, follow_redirects: bool) -> Any:
        if self.error is not None:
            raise self.error
        client = self

        class Response:
            status_code, reason_phrase = 200, "OK"
            headers = Headers([("Content-Type", "text/plain; charset=nonsense")])

            async def aiter_bytes(self) -> Any:
                for chunk in client.chunks:
                    yield chunk

            async def aclose(self) -> None:
                client.closed += 1

        return Response()


@pytest.mark.parametrize(("asked", "used"), [(None, 5.0), (9, 5.0), (1, 1)])
async def test_a_client_of_the_program_sends_the_request_and_bounds_its_time(asked: Any, used: float) -> None:
    client = Client(b"a", "é".encode())
    answer = await ask("http://x/", tool=make_http_request(client=client), timeout=asked)
    assert answer["body"] == "aé"
    assert client.built["extensions"]["timeout"]["read"] == used
    assert client.closed == 1


async def test_errors_of_the_programs_client_are_errors_of_the_request() -> None:
    class ReadTimeoutException(Exception): ...

    class TimeoutException(ReadTimeoutException): ...

    for error, told in ((TimeoutException("t"), "timed out"), (KeyError("k"), "failed")):
        with pytest.raises(HttpRequestError, match=told):
            await ask("http://x/", tool=make_http_request(client=Client(error=error)))


# Pages.


async def test_a_page_is_given_as_markdown_after_redirects(base: str) -> None:
    fetch = make_web_fetch(mode="markdown")
    assert await fetch(url=f"{base}/moved") == "# Trees\n\n## Bäume\n\nA **tree**."
    with pytest.raises(HttpRequestError):
        await fetch(url=f"{base}/away")


async def test_long_answers_are_refused_and_long_pages_cut(base: str) -> None:
    with pytest.raises(HttpRequestError, match="exceeded 100 bytes"):
        await make_web_fetch(mode="markdown", max_bytes=100)(url=f"{base}/large")
    with pytest.raises(HttpRequestError, match="exceeded 100 bytes"):
        await make_web_fetch(mode="markdown", max_bytes=100, client=Client(b"x" * 101))(url="http://x/")
    cut = await make_web_fetch(mode="markdown", max_content_chars=10)(url=f"{base}/large")
    assert cut == "x" * 10 + "\n\n[content truncated]"


async def test_a_question_about_a_page_is_answered_by_the_cheaper_model(base: str) -> None:
    cheap = ScriptedModel(["Trees."])
    agent = Agent(
        ScriptedModel([use("web_fetch", url=f"{base}/page", prompt="What is it about?"), "ok"]),
        aux_model=cheap,
        tools=[make_web_fetch()],
        callback_handler=None,
    )
    await agent.invoke_async("read")
    (result,) = [result for message in agent.messages for result in tool_results(message)]
    assert result["content"] == [{"text": "Trees."}]
    question = text_of(cheap.calls[0].messages[0])
    assert "What is it about?" in question
    assert "## Bäume" in question


@pytest.mark.parametrize(
    ("made", "given", "why"),
    [
        ({"mode": "markdown"}, {"url": "file:///etc/passwd"}, "Fetch failed"),
        ({}, {"url": "http://x/", "prompt": " "}, "non-empty prompt"),
        ({}, {"url": "http://x/", "prompt": "what?"}, "requires a model"),
    ],
)
async def test_what_keeps_a_page_from_being_read_is_one_kind_of_error(made: Any, given: Any, why: str) -> None:
    with pytest.raises(WebFetchError, match=why) as caught:
        await make_web_fetch(**made)(**given)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("settings", [{"max_bytes": 0}, {"max_content_chars": 0}, {"mode": "pdf"}])
def test_bad_settings_are_refused(settings: Any) -> None:
    with pytest.raises(Invalid):
        make_web_fetch(**settings)


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<p>one<p>two", "one\n\ntwo"),
        ("<ul><li>a<li>b</ul><ol><li>c</ol>", "- a\n- b\n\n1. c"),
        ('see <a href="/x">this</a>.', "see [this](/x)."),
        ('<a href=" java\tscript:x()">bad</a>', "bad"),
        ('<img src="/a.png" alt="tree"><img src="data:image/png;base64,xxx" alt="blob">', "![tree](/a.png)blob"),
        ("<pre>a\n  b</pre> and <code>c</code>", "```\na\n  b\n```\n\nand `c`"),
        ("<nav>menu</nav><form><p>text</p><button>ok</button></form>", "text"),
        ("a<br>b &amp; c", "a\nb & c"),
        ("</ul></a></pre><h1>t</h1>", "# t"),
    ],
)
def test_pages_become_markdown(html: str, markdown: str) -> None:
    assert markdown_of(html) == markdown


@pytest.mark.parametrize(
    ("html", "size"),
    [
        ("<ul><li>x" * 50_000, 20_000),
        ("<svg>" * 500_000, 100),
        ("<b></b>" * 500_000, 3_000_000),
        ("<p>" * 500_000, 100),
    ],
)
def test_nesting_tags_and_output_are_bounded(html: str, size: int) -> None:
    made = markdown_of(html, 10_000)
    assert len(made) <= size
    assert made.endswith("[content truncated]")


@given(st.text(alphabet="<>/ab pul li&;\"'=!-"))
def test_any_text_is_read_as_a_page(html: str) -> None:
    assert isinstance(markdown_of(html), str)
