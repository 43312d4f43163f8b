"""Machines and sites that requests come from: their names and addresses, and headers that tell."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset(("localhost", "127.0.0.1", "::1"))


def is_loopback(address: str) -> bool:
    """True for an address, or a name, that only this machine can reach."""
    ip = address.partition("%")[0]
    return address in LOOPBACK_NAMES or (is_address(ip) and ip_address(ip).is_loopback)


def is_address(name: str) -> bool:
    """True for an address, which cannot be made to lead elsewhere as a name can."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def host_name(host: str) -> str:
    """The name of a header `Host`, without its port; empty for one that is malformed."""
    try:
        split = urlsplit(f"//{host}")
        return (split.hostname or "").rstrip(".") if split.path == "" and "@" not in host else ""
    except ValueError:
        return ""


def is_of_other_site(origin: str, fetch_site: str, host: str) -> bool:
    """True if the page that makes the request is not one of this host. `origin`, `fetch_site`, `host`: the headers
    `Origin`, `Sec-Fetch-Site`, which browsers send with reads too, and `Host`; empty without them.
    """
    if fetch_site not in ("", "same-origin", "none"):
        return True
    try:
        return bool(origin) and urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:
        return True


def bearer_of(headers: Mapping[str, str]) -> str:
    """The secret in the header `Authorization`; empty without one."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""
