"""Sends events to addresses, each by one request, in a thread: nothing that a receiver answers makes it last or grow.

The addresses are checked as those of the tools that make requests are (`toolbox/web_requests.py`), redirects are not
followed, and of the answer only its status and head count.
"""

from __future__ import annotations

import json
import time
from secrets import token_bytes
from urllib.parse import urlsplit

import anyio

from repertory.actors.delivery_events import SendEvent
from repertory.backends.worker_threads import run_foreign
from repertory.core.deliveries import DeliveryEvent, TryFailed
from repertory.core.json_bytes import encoded
from repertory.errors import HttpRequestError, Invalid
from repertory.toolbox.web_requests import Connections, HttpRequest, ask_by_urllib, check_address
from repertory.version import __version__
from repertory.webhooks.decisions import read_secrets, signed_headers, verdict, written_secret

_KEY_BYTES = 32


def webhook_secret() -> str:
    """A new secret for webhooks: `whsec_` and 32 random bytes. The receiver checks signatures with it.

    Examples:
        >>> from repertory import webhook_secret
        >>> webhook_secret().startswith("whsec_")
        True
    """
    return written_secret(token_bytes(_KEY_BYTES))


def check_secrets(secrets: object) -> None:
    """Errors: `Invalid` for what is no secret of a webhook, or no list of them."""
    read_secrets(secrets)


def _check_written(url: str) -> None:
    """Refuse an address that no request could be made to. Errors: `Invalid`, without the address."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Invalid("the address of a webhook is plain ASCII: write other characters as %20, and a host as xn--...")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise Invalid("the address of a webhook has a wrong host or port") from None
    if "@" in parts.netloc:
        raise Invalid("the address of a webhook has no user and password: its signature says who sends")


def sender(url: str, secrets: object, timeout_s: float, *, public: bool) -> SendEvent:
    """A function that sends events to an address. `public`: the address comes from a caller, so it is one of HTTPS,
    and no host is asked that only this network reaches. Errors: `Invalid`.
    """
    keys = read_secrets(secrets)
    _check_written(url)
    schemes = ("https",) if public else ("https", "http")
    try:
        check_address(url, HttpRequest("POST", url, {}, schemes=schemes))
    except HttpRequestError as error:
        raise Invalid(str(error).removeprefix("Request failed: "), url=url) from None

    async def send(event: DeliveryEvent) -> TryFailed | None:
        body = json.dumps(encoded(event.to_dict()), ensure_ascii=False, allow_nan=False)
        body = body.encode(errors="replace").decode()
        now = time.time()
        request = HttpRequest(
            "POST",
            url,
            {
                "Content-Type": "application/json",
                "User-Agent": f"repertory/{__version__}",
                **signed_headers(event.id, now, body.encode(), keys),
            },
            body,
            timeout_s,
            head_only=True,
            schemes=schemes,
            public=public,
        )
        opened = Connections()
        try:
            with anyio.fail_after(timeout_s):
                answer = await run_foreign(lambda: ask_by_urllib(request, opened), grace_s=0.5, give_up=opened.cut)
        except TimeoutError:
            return TryFailed(error=f"no answer within {timeout_s:g} s")
        except HttpRequestError as error:
            # Without the address, which may have a secret: journals, logs and lists have its name alone.
            return TryFailed(error=str(error).partition(" url=")[0])
        return verdict(answer.status, {name.lower(): value for name, value in answer.headers}, time.time())

    return send
