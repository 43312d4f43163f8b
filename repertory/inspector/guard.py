"""The guard of the pages: it decides who may see them, and who may change something.

A browser sends requests to the pages that the user did not ask for: other sites make it, and a name that suddenly leads
to this machine (DNS rebinding) makes them look like our own. So the host that a request names must be one of ours,
changes need a token that only our pages know, and where others can reach the address, everything needs the secret that
the browser gives once. Decisions are functions of the request; nothing here waits.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from repertory.core.origins import LOOPBACK_NAMES, host_name, is_address, is_loopback, is_of_other_site
from repertory.errors import Invalid

TOKEN_CHARS_MIN = 16
COOKIE = "repertory_inspect"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""The headers of every answer."""

Verdict = Literal["welcome", "wrong host", "not local", "secret needed", "other site", "forged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The parts of one request that a decision depends on."""

    method: str
    host: str
    """The header `Host`, as it was sent."""
    client: str
    """The address that the request came from; empty where the server does not say."""
    cookie: str = ""
    bearer: str = ""
    """The secret of the header `Authorization`."""
    origin: str = ""
    fetch_site: str = ""
    """The header `Sec-Fetch-Site`."""
    fetch_mode: str = ""
    """The header `Sec-Fetch-Mode`: `navigate` where the user follows a link."""
    form_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The rules of one inspector."""

    token: str | None = None
    """The secret that browsers give once; None where only this machine is served."""
    hosts: Collection[str] = ()
    """The names under which it is reached, besides those of this machine itself."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """The key that signs cookies and form tokens. It is new at every start, so that they end with the process."""

    def __post_init__(self) -> None:
        """Check the settings. Errors: `Invalid` for a short secret, for names without a secret, and for `*`."""
        if "*" in self.hosts:
            raise Invalid("an inspector is reached by names: no name stands for all of them", hosts=sorted(self.hosts))
        if self.token is not None and len(self.token) < TOKEN_CHARS_MIN:
            raise Invalid(f"the token of an inspector has at least {TOKEN_CHARS_MIN} characters", got=len(self.token))
        if self.hosts and self.token is None:
            raise Invalid("an inspector that others can reach needs a token", hosts=sorted(self.hosts))

    def judge(self, visit: Visit) -> Verdict:
        """The verdict on a request, the log-in form apart."""
        if not self.knows_host(visit.host):
            return "wrong host"
        if self.token is None and visit.client and not is_loopback(visit.client):
            return "not local"
        if self.token is not None and not (self.owns(visit.cookie) or self._is_secret(visit.bearer)):
            return "secret needed"
        if visit.fetch_mode not in ("", "navigate") and is_of_other_site("", visit.fetch_site, visit.host):
            return "other site"
        if visit.method not in ("GET", "HEAD") and not self._comes_from_us(visit):
            return "forged"
        return "welcome"

    def knows_host(self, host: str) -> bool:
        """True if requests may name this host. An address cannot be made to lead elsewhere, as a name can."""
        name = host_name(host)
        return name in LOOPBACK_NAMES or name in self.hosts or (self.token is not None and is_address(name))

    def lets_in(self, visit: Visit, given: str) -> bool:
        """True if the log-in form gave the secret, and is ours."""
        return self._is_secret(given) and self._same_site(visit)

    def new_cookie(self) -> str:
        """The value of a cookie that proves the secret was given, and that forms belong to."""
        name = secrets.token_urlsafe(18)
        return f"{name}.{self._sign('cookie', name)}"

    def form_token(self, cookie: str) -> str:
        """The token in forms on pages for the browser with this cookie."""
        return self._sign("form", cookie)

    def owns(self, cookie: str) -> bool:
        """True for a cookie that this guard has made."""
        name, _, signature = cookie.partition(".")
        return hmac.compare_digest(signature.encode(), self._sign("cookie", name).encode())

    def _is_secret(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _comes_from_us(self, visit: Visit) -> bool:
        right = hmac.compare_digest(visit.form_token.encode(), self.form_token(visit.cookie).encode())
        return right and self.owns(visit.cookie) and self._same_site(visit)

    def _same_site(self, visit: Visit) -> bool:
        return not is_of_other_site(visit.origin, visit.fetch_site, visit.host)

    def _sign(self, what: str, value: str) -> str:
        return hmac.new(self.key, f"{what}\0{value}".encode(), sha256).hexdigest()
