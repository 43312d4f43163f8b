"""What programs of the SDK call to set OpenTelemetry up: their own spans and metrics go where they say.

Agents give no spans of their own; making a `StrandsTelemetry` warns of that. `result.metrics` has what a turn took.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


class StrandsTelemetry:
    """Sets OpenTelemetry up in this process, step by step: `StrandsTelemetry().setup_console_exporter()`.

    `tracer_provider`: where exporters are added; None for a new one, which becomes that of the process.
    `tracer_provider.shutdown()` sends what has not been sent.

    Errors: `ImportError` when a package of OpenTelemetry is missing, with its name. That of an exporter is needed when
    the exporter is set up.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        warnings.warn("agents give no spans: only the program's own reach the exporters", UserWarning, stacklevel=2)
        self.tracer_provider = tracer_provider
        self.meter_provider: Any = None
        if tracer_provider is None:
            self.tracer_provider = _load("opentelemetry.sdk.trace").TracerProvider()
            _load("opentelemetry.trace").set_tracer_provider(self.tracer_provider)

    def setup_console_exporter(self, **options: Any) -> StrandsTelemetry:
        """Print each span when it ends. `options`: those of `ConsoleSpanExporter`."""
        export = _load("opentelemetry.sdk.trace.export")
        self.tracer_provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter(**options)))
        return self

    def setup_otlp_exporter(self, **options: Any) -> StrandsTelemetry:
        """Send spans to a collector, in batches. `options`: those of `OTLPSpanExporter`."""
        exporter = _load("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter(**options)
        batches = _load("opentelemetry.sdk.trace.export").BatchSpanProcessor(exporter)
        self.tracer_provider.add_span_processor(batches)
        return self

    def setup_baggage_processor(self, baggage_key_predicate: Any = None) -> StrandsTelemetry:
        """Put baggage on every span: the keys that the predicate, or one of several, accepts; None for all."""
        baggage = _load("opentelemetry.processor.baggage")
        given = baggage.ALLOW_ALL_BAGGAGE_KEYS if baggage_key_predicate is None else baggage_key_predicate
        self.tracer_provider.add_span_processor(baggage.BaggageSpanProcessor(given))
        return self

    def setup_meter(
        self, enable_console_exporter: bool = False, enable_otlp_exporter: bool = False
    ) -> StrandsTelemetry:
        """Make the process's meter provider, which prints its metrics, sends them to a collector, or both."""
        export, readers = _load("opentelemetry.sdk.metrics.export"), list[Any]()
        if enable_console_exporter:
            readers.append(export.PeriodicExportingMetricReader(export.ConsoleMetricExporter()))
        if enable_otlp_exporter:
            otlp = _load("opentelemetry.exporter.otlp.proto.http.metric_exporter")
            readers.append(export.PeriodicExportingMetricReader(otlp.OTLPMetricExporter()))
        self.meter_provider = _load("opentelemetry.sdk.metrics").MeterProvider(metric_readers=readers)
        _load("opentelemetry.metrics").set_meter_provider(self.meter_provider)
        return self


_PACKAGES = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.processor": "opentelemetry-processor-baggage",
}


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = next((what for prefix, what in _PACKAGES.items() if name.startswith(prefix)), "opentelemetry-api")
        msg = f"StrandsTelemetry needs {package}: pip install {package}"
        raise ImportError(msg, name=name) from error
