"""Tokens of OAuth's client credentials grant for an MCP server, which does not get to choose who sees the credentials.

The `mcp` package follows what the server says: where its metadata is, which authorization server there is, which scopes
to ask for. Here the program says it: credentials go to the origin of the issuer it names, scopes are those it names,
and no request of the exchange goes to an origin that is neither the issuer's nor the server's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, NoReturn

from httpx2 import URL, Request, Response
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

from repertory.errors import Failed

if TYPE_CHECKING:
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


class IssuedToken(ClientCredentialsOAuthProvider):
    """Signs requests to one server with a token of one issuer. Errors: `Failed` for a server that leads elsewhere."""

    def __init__(self, url: str, client_id: str, client_secret: str, scopes: Sequence[str], issuer: str) -> None:
        self._scope = " ".join(scopes) or None
        super().__init__(
            server_url=url,
            storage=_TokensInMemory(),
            client_id=client_id,
            client_secret=client_secret,
            scope=self._scope,
            issuer=issuer,
        )
        self._server_origin, self._issuer_origin = _origin(URL(url)), _origin(URL(issuer))

    async def async_auth_flow(self, request: Request) -> AsyncGenerator[Request, Response]:
        """The package's exchange, with each of its requests checked before it is sent."""
        flow = super().async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                self._check(outgoing, signed=outgoing is request)
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    def _check(self, outgoing: Request, *, signed: bool) -> None:
        origin = _origin(outgoing.url)
        if signed:  # a call of the server, with the token
            if origin != self._server_origin:
                self._refuse(outgoing.url)
        elif outgoing.method == "GET":  # metadata, which carry nothing
            if origin not in (self._server_origin, self._issuer_origin):
                self._refuse(outgoing.url)
        elif origin != self._issuer_origin:
            self._refuse(outgoing.url)

    def _refuse(self, url: URL) -> NoReturn:
        raise Failed(
            "the tool server leads elsewhere for a token: if you trust that place, name it as auth's 'issuer'",
            to=f"{url.scheme}://{url.netloc.decode()}",
        )

    async def _perform_authorization(self) -> Request:
        if self._scope is not None:  # The package has put those in that the server asks for.
            self.context.client_metadata.scope = self._scope
        return await super()._perform_authorization()


def _origin(url: URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


class _TokensInMemory:
    """The package's `TokenStorage`, for as long as a connection lasts."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None
        self._client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info
