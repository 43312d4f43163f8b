"""The SDK's functions that set OpenTelemetry up, under the SDK's names: `Telemetry` does the same."""

from __future__ import annotations

from typing import Any

from repertory.telemetry.setup import Telemetry


class StrandsTelemetry(Telemetry):
    """`Telemetry` under the SDK's name, with its argument alone."""

    def __init__(self, tracer_provider: Any = None) -> None:
        super().__init__(tracer_provider)
