"""Which places get the credentials of an MCP client: real OAuth over loopback, with honest and with hostile servers."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import pytest
from mcp.client.sse import sse_client

from repertory import MCPClient
from repertory.errors import Invalid, Unavailable
from tests.backends.recorded_http import Answer, Heard, recorded_server
from tests.mcp.mcp_servers import HERE, http_server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real_time,
    # Whenever an answer is not read to its end, which is how the package reads every stream of events.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

SECRET = "the-secret-of-the-program"
BASIC = base64.b64encode(f"me:{SECRET}".encode()).decode()
GUARDED = str(HERE / "mcp_guarded_server.py")
TOKEN = "the-token-of-the-issuer"
JSON = {"content-type": "application/json"}


def client(url: str, issuer: str, **more: Any) -> MCPClient:
    auth: Any = {"client_id": "me", "client_secret": SECRET, "issuer": issuer, **more}
    return MCPClient(url=url, auth=auth, startup_timeout_s=10)


def issuing(origin: Callable[[], str], token_endpoint: Callable[[], str] | None = None) -> Callable[[Heard], Answer]:
    """An authorization server at the origin."""

    def answer(heard: Heard) -> Answer:
        if heard.method == "GET":
            there = f"{origin()}/token" if token_endpoint is None else token_endpoint()
            about = {"issuer": origin(), "authorization_endpoint": f"{origin()}/authorize", "token_endpoint": there}
            return 200, JSON, json.dumps({**about, "response_types_supported": ["code"]}).encode()
        return 200, JSON, json.dumps({"access_token": TOKEN, "token_type": "Bearer", "expires_in": 60}).encode()

    return answer


async def test_the_issuer_that_the_program_names_gets_the_credentials_and_the_server_its_token() -> None:
    with recorded_server() as issuer, http_server(GUARDED, issuer.url, TOKEN) as server:
        issuer.answer = issuing(lambda: issuer.url)
        async with client(server.url, issuer.url, scopes=["read"]) as tools:
            assert [tool.tool_name for tool in await tools.list_tools()] == ["count"]
        asked = [each for each in issuer.heard if each.method == "POST"]
    assert [each.carries(BASIC) for each in asked] == [True]
    # Not the scope that the server asks for.
    assert parse_qs(asked[0].body.decode())["scope"] == ["read"]


def leads(way: str, own: str, issuer: str, foreign: str) -> Callable[[Heard], Answer]:
    """A tool server at its own origin that leads clients to the foreign one."""
    names = {"names another issuer": foreign, "is its own issuer": own}

    def answer(heard: Heard) -> Answer:
        if "oauth-authorization-server" in heard.path or heard.path == "/token":
            return issuing(lambda: own if way == "is its own issuer" else issuer, lambda: f"{foreign}/token")(heard)
        if "/prm" in heard.path or "oauth-protected-resource" in heard.path:
            if way == "has no metadata":
                return 404, {}, b""
            about = {"resource": f"{own}/mcp", "authorization_servers": [names.get(way, issuer)]}
            return 200, JSON, json.dumps(about).encode()
        if way == "redirects":
            return 307, {"location": f"{foreign}/mcp"}, b""
        where = foreign if way == "has its metadata elsewhere" else own
        return 401, {"www-authenticate": f'Bearer resource_metadata="{where}/prm"'}, b""

    return answer


@pytest.mark.parametrize(
    "way",
    [
        "names another issuer",
        "is its own issuer",
        "has no metadata",
        "has its metadata elsewhere",
        "redirects",
        "the issuer has its tokens elsewhere",
        "the issuer redirects",
    ],
)
async def test_no_other_place_gets_them_whatever_the_server_says(way: str) -> None:
    with recorded_server() as server, recorded_server() as issuer, recorded_server() as foreign:
        foreign.answer = issuing(lambda: foreign.url)
        elsewhere = (lambda: f"{foreign.url}/token") if way == "the issuer has its tokens elsewhere" else None
        honest = issuing(lambda: issuer.url, elsewhere)

        def redirecting(heard: Heard) -> Answer:
            return (307, {"location": f"{foreign.url}/token"}, b"") if heard.method == "POST" else honest(heard)

        issuer.answer = redirecting if way == "the issuer redirects" else honest
        server.answer = leads(way, server.url, issuer.url, foreign.url)
        with pytest.raises(Unavailable) as met:
            async with client(f"{server.url}/mcp", issuer.url) as tools:
                await tools.list_tools()
        assert SECRET not in str(met.value)
        seen = [each for each in (*server.heard, *foreign.heard) if any(map(each.carries, (SECRET, BASIC, TOKEN)))]
        assert seen == []
        if way in ("names another issuer", "has its metadata elsewhere", "the issuer has its tokens elsewhere"):
            assert foreign.heard == []
            assert "name it as auth's 'issuer'" in str(met.value)


@pytest.mark.parametrize("way", ["redirects", "redirects its stream", "has its endpoint elsewhere"])
async def test_the_headers_of_a_client_go_to_its_server_alone(way: str) -> None:
    with recorded_server() as server, recorded_server() as foreign:

        def answer(heard: Heard) -> Answer:
            if way == "has its endpoint elsewhere":
                return (
                    200,
                    {"content-type": "text/event-stream"},
                    f"event: endpoint\ndata: {foreign.url}/m\n\n".encode(),
                )
            return 307, {"location": f"{foreign.url}/mcp"}, b""

        server.answer = answer
        headers = {"x-api-key": SECRET}
        over_http = MCPClient(url=f"{server.url}/mcp", headers=headers, startup_timeout_s=10)
        # The package waits for another endpoint when it has refused one.
        over_sse = MCPClient(lambda: sse_client(f"{server.url}/sse", headers=headers), startup_timeout_s=0.5)
        with pytest.raises(Unavailable):
            async with over_http if way == "redirects" else over_sse:
                pass
        assert server.carried(SECRET)
        assert foreign.heard == []


@pytest.mark.parametrize("issuer", [None, "auth.example", "http://auth.example", "ftp://auth.example", 7])
def test_an_issuer_is_named_by_an_address_that_nobody_can_read_along(issuer: object) -> None:
    auth: Any = {"client_id": "me", "client_secret": SECRET} | ({} if issuer is None else {"issuer": issuer})
    with pytest.raises(Invalid, match="auth needs 'issuer'"):
        MCPClient(url="http://tools.example/mcp", auth=auth)


def test_a_server_behind_https_is_its_own_issuer_unless_another_one_is_named() -> None:
    MCPClient(url="https://tools.example/mcp", auth={"client_id": "me", "client_secret": SECRET})
