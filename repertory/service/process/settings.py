"""The settings of a service, as a parent tells its workers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from repertory.core.origins import is_loopback

TOKEN = "REPERTORY_SERVE_TOKEN"
"""The variable of the environment with the secret of callers, where no configuration has tokens."""


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The settings that all processes of a service share."""

    target: str | None = None
    """`module:runtime`; None for a configuration."""
    configuration: str | None = None
    """The path of the configuration; None for a target."""
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    """The path of a Unix socket, instead of host and port."""
    workers: int = 1
    loop: Literal["asyncio", "trio"] = "asyncio"
    names: tuple[str, ...] = ()
    """Names by which it is reached without a secret, besides those of this machine."""
    origins: tuple[str, ...] = ()
    """The origins of web pages that may call."""
    index: bool = True
    """True answers `/` with a page to talk to agents."""

    @property
    def is_reached_by_others(self) -> bool:
        """True if other machines reach the address."""
        return self.uds is None and not is_loopback(self.host)


class ServedReport(Struct, frozen=True, kw_only=True):
    """The report of a worker that answers requests now."""

    agents: tuple[str, ...]
    sessions: str
    drain_timeout_s: float

    def line(self, url: str, workers: int) -> str:
        """The one line that an operator reads."""
        named = ", ".join(self.agents) or "no agents"
        processes = f", {workers} workers" if workers > 1 else ""
        return f"repertory serves {named} at {url} (sessions: {self.sessions}{processes}; Ctrl-C ends it)"
