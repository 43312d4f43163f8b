"""The page at `/`: what the service answers, and a small place to talk to its agents.

The page is one file, the same for everybody, and holds nothing of the service: its script asks the API as any client,
with the token that its reader types. So it is given without a token, and a policy of contents lets it load, run and
reach nothing else.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request

    from repertory.service.http.service import Caller, RequestHandler

LINKS = {"openapi": "openapi.json", "health": "healthz", "readiness": "readyz", "agents": "v1/agents"}
"""The answer to a program that asks for `/`, relative to it."""


_PAGE = Path(__file__).with_name("index.html").read_bytes()  # With the module: later, an event loop may run.


def index_page() -> RequestHandler:
    """The handler. Browsers, which ask for HTML by its name, get the page; others get links as JSON."""
    headers = _headers(_PAGE)

    async def index(request: Request, caller: Caller) -> Response:
        del caller
        if "text/html" in request.headers.get("accept", ""):
            return Response(_PAGE, headers=headers, media_type="text/html")
        return JSONResponse(LINKS, headers={"vary": "accept"})

    return index


def _headers(page: bytes) -> Mapping[str, str]:
    """The policy lets the script and the styles of the page run, by their hashes, and no others."""
    hashes = {
        name: b64encode(sha256(found[1]).digest()).decode()
        for name in (b"script", b"style")
        if (found := re.search(b"<%s>(.*)</%s>" % (name, name), page, re.DOTALL))
    }
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes[b'script']}'; style-src 'sha256-{hashes[b'style']}';"
        " connect-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return {
        "content-security-policy": policy,
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "vary": "accept",
    }
