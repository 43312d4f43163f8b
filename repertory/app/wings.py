"""The wings that agents and runtimes use without knowing them: `repertory/__init__.py` says how each is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus

    from repertory.actors.delivery_events import SendEvent
    from repertory.backends.telemetry_ports import CallTelemetry


class TelemetryWing(Protocol):
    """Spans and metrics, by OpenTelemetry. `tracers`, `meters`: the program's providers; None for one not set."""

    def telemetry_of(self, tracers: Any, meters: Any) -> CallTelemetry | None: ...
    def watch_host(self, host: Any, cluster: Callable[[], Any] = ...) -> None: ...
    def unwatch_host(self, host: Any) -> None: ...
    async def serve_metrics(
        self, address: str, hosts: Collection[str], until: anyio.Event, task_status: TaskStatus[str]
    ) -> None: ...


class WebhooksWing(Protocol):
    """Webhooks: `secrets` sign them, `public` says that the address comes from a caller."""

    def check_secrets(self, secrets: object) -> None: ...
    def sender(self, url: str, secrets: object, timeout_s: float, *, public: bool) -> SendEvent: ...


telemetry: Callable[[], TelemetryWing]
webhooks: Callable[[], WebhooksWing]
inspector: Callable[[], Any]
"""Loads the inspector, whose `serve_runtime` carries out `Runtime.serve_inspector`."""
flush_exporters: Callable[[float], bool] | None = None
"""Has exporters send what they hold within the given seconds; set by the telemetry that has some."""
