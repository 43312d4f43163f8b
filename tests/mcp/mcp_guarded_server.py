"""A server of the `mcp` package that takes tokens of one issuer, and asks for the scope `admin`; a program that tests
start.

    python mcp_guarded_server.py ISSUER TOKEN PORT         over streamable HTTP on loopback; prints its port
"""

from __future__ import annotations

import socket
import sys

import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer


class OneToken:
    def __init__(self, token: str) -> None:
        self._token = token

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="me", scopes=["admin"]) if token == self._token else None


def main(issuer: str, token: str, port: str) -> None:
    with socket.create_server(("127.0.0.1", int(port))) as bound:
        number = bound.getsockname()[1]
        named = {"issuer_url": issuer, "resource_server_url": f"http://127.0.0.1:{number}/mcp"}
        # A release that does not know the last key leaves it out.
        settings = AuthSettings.model_validate(
            {**named, "required_scopes": ["admin"], "validate_token_resource": False}
        )
        tools = MCPServer("guarded", token_verifier=OneToken(token), auth=settings, log_level="CRITICAL")
        tools.add_tool(len, name="count", structured_output=False)
        server = uvicorn.Server(uvicorn.Config(tools.streamable_http_app(), log_level="critical", ws="none"))
        print(number, flush=True)
        server.run([bound])


if __name__ == "__main__":
    main(*sys.argv[1:])
