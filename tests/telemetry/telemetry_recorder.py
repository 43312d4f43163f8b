"""Providers of OpenTelemetry for one test, which write down what they are told."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from repertory.telemetry import setup as telemetry
from repertory.telemetry.content import CapturePolicy


class Recorder:
    """What was recorded, in the order in which spans ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        found = [each for each in self.spans if span.parent and each.context.span_id == span.parent.span_id]
        return found[0] if found else None

    def path(self, span: ReadableSpan) -> list[str]:
        """The names of the span and those above it, the outermost first."""
        above = self.parent(span)
        return [*([] if above is None else self.path(above)), span.name]

    def points(self, metric: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        found = [] if data is None else [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return [point for each in found if each.name == metric for point in each.data.data_points]

    def everything(self) -> str:
        """All that left the process."""
        data = self.reader.get_metrics_data()
        return "".join(span.to_json() for span in self.spans) + ("" if data is None else data.to_json())


@contextmanager
def recording(monkeypatch: pytest.MonkeyPatch, policy: CapturePolicy | None = None) -> Generator[Recorder]:
    recorder = Recorder()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: recorder.tracers)
    monkeypatch.setattr(trace, "get_tracer", lambda name: recorder.tracers.get_tracer(name))
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: recorder.meters)
    monkeypatch.setattr(telemetry._known, "policy", policy or CapturePolicy())
    yield recorder
    recorder.tracers.shutdown()
    recorder.meters.shutdown()
