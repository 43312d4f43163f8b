"""What telemetry adds to a plain turn: nothing without a provider, little with one that exports in batches.

Three agents take their turns one after the other, many times, and the medians of the rounds are compared. `bare` asks
for no provider, as a program without OpenTelemetry. `idle`: OpenTelemetry is imported and no provider is set. `batch`:
spans and metrics go to a batch processor and a reader that drop them. The same spans and measurements by OpenTelemetry
alone are measured beside it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import anyio
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from bench.harness import Figure, report
from repertory import Agent, ScriptedModel

ROUNDS = 60
TURNS = 25
IDLE_BAR = 1.02
BATCH_US = 150.0


class Drop(SpanExporter):
    """Takes spans and keeps none."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def agent() -> Agent:
    model = ScriptedModel(["ok"], loop=True)
    return Agent(model, callback_handler=None)


async def turns_us(asked: Agent) -> float:
    began = time.perf_counter()
    for _ in range(TURNS):
        await asked.invoke_async("hello")
    return (time.perf_counter() - began) / TURNS * 1e6


def bare_us(tracer: trace.Tracer, instruments: Sequence[metrics.Histogram]) -> float:
    """The same spans and measurements by OpenTelemetry alone, with fewer attributes."""
    said = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "ScriptedModel", "gen_ai.agent.name": "anna"}
    began = time.perf_counter()
    for _ in range(TURNS):
        with (
            tracer.start_as_current_span("call", attributes=said) as call,
            tracer.start_as_current_span("step", attributes=said),
            tracer.start_as_current_span("chat", attributes=said) as chat,
        ):
            chat.set_attributes(said)
            call.set_attributes(said)
        for instrument in instruments:
            instrument.record(1.0, said)
    return (time.perf_counter() - began) / TURNS * 1e6


async def measured() -> dict[str, float]:
    """Microseconds per turn, by variant: medians of interleaved rounds."""
    tracers, meters = TracerProvider(), MeterProvider([InMemoryMetricReader()])
    tracers.add_span_processor(BatchSpanProcessor(Drop(), max_queue_size=100_000))
    no_tracers, no_meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    tracer, meter = tracers.get_tracer("bare"), meters.get_meter("bare")
    instruments = [meter.create_histogram(f"bare.{number}") for number in range(5)]
    taken: dict[str, list[float]] = {"bare": [], "idle": [], "batch": [], "opentelemetry": []}
    async with agent() as bare, agent() as idle, agent() as batch:
        bare._parts.find_telemetry = None
        for _ in range(ROUNDS):
            for name, asked in (("bare", bare), ("idle", idle), ("batch", batch)):
                use(*((tracers, meters) if name == "batch" else (no_tracers, no_meters)))
                taken[name].append(await turns_us(asked))
            taken["opentelemetry"].append(bare_us(tracer, instruments))
    tracers.shutdown()
    meters.shutdown()
    return {name: median(values) for name, values in taken.items()}


def use(tracers: Any, meters: Any) -> None:
    trace.get_tracer_provider = lambda: tracers  # set_tracer_provider works once in a process
    metrics.get_meter_provider = lambda: meters


def main() -> int:
    found = anyio.run(measured)
    added, alone = found["batch"] - found["idle"], found["opentelemetry"]
    return report(
        [
            Figure("turn without a provider | that asks for none", found["idle"], found["bare"], IDLE_BAR, "us"),
            Figure("added by a batch exporter", added, BATCH_US, 1.0, "us"),
            Figure("the same spans and measurements by OpenTelemetry alone", alone, BATCH_US, None, "us"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
