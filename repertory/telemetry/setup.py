"""Setting OpenTelemetry up for this process, and what is made of the providers that it has.

    Telemetry().setup_otlp_exporter()

Agents, graphs and swarms then give spans and metrics. A program that has set providers of its own needs nothing of
this: what they are told is the same. `docs/reference/telemetry.md` names every span, attribute and metric.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from repertory.app import wings
from repertory.errors import Invalid
from repertory.forking import call_in_children
from repertory.telemetry.content import CapturePolicy, Scrub, captures, safely
from repertory.telemetry.metrics import unwatch_host as unwatch_host
from repertory.telemetry.metrics import watch_host as watch_host
from repertory.telemetry.prometheus import serve_metrics as serve_metrics

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from repertory.telemetry.spans import OtelTelemetry


class _Known:
    """The telemetry of this process, made of its providers, and the policy of content on its spans."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.policy: CapturePolicy | None = None
        """The policy of content; None until a program sets one, or the first call takes that of the environment."""
        self.made: tuple[object, object, CapturePolicy, OtelTelemetry] | None = None
        self.set_up: list[Telemetry] = []
        """The telemetries with exporters that are to be flushed."""


_known = _Known()


def _forget_parent() -> None:
    """Give a forked child a lock of its own, which nobody holds."""
    _known.lock = threading.Lock()


call_in_children(_forget_parent)


def telemetry_of(tracers: Any, meters: Any) -> OtelTelemetry | None:
    """The telemetry of calls for the program's providers, None for one that is not set. Made once for the same ones.
    None, and a line in the log, when a provider fails.
    """
    made = _known.made
    if made is not None and made[0] is tracers and made[1] is meters and made[2] is _known.policy:
        return made[3]
    return safely(partial(_made_for, tracers, meters), None, "nothing is traced: a provider has failed")


def _made_for(tracers: Any, meters: Any) -> OtelTelemetry:
    from opentelemetry import trace  # it is here: a provider is set

    from repertory.telemetry.measures import Measures  # loaded with the first call that is traced
    from repertory.telemetry.spans import NAME, OtelTelemetry
    from repertory.version import __version__

    policy = _policy()
    tracer = (tracers or trace.NoOpTracerProvider()).get_tracer(NAME, __version__)
    measures = None if meters is None else Measures(meters.get_meter(NAME, __version__))
    found = OtelTelemetry(tracer, measures, policy, time.perf_counter)
    _known.made = (tracers, meters, policy, found)
    return found


def _policy() -> CapturePolicy:
    if _known.policy is None:
        _known.policy = CapturePolicy(capture=captures())
    return _known.policy


def flush_telemetry(timeout_s: float) -> bool:
    """Have every exporter that was set up here send what it holds. Blocks for at most about that time. True if all was
    sent; whatever an exporter raises is logged.
    """
    by = time.monotonic() + timeout_s
    sent = True
    for each in tuple(_known.set_up):
        sent = each.flush(max(0.0, by - time.monotonic())) and sent
    return sent


class Telemetry:
    """Sets OpenTelemetry up in this process, step by step: `Telemetry().setup_otlp_exporter().setup_meter()`.

    If `scrub` fails, nothing is shown of that value. `capture_content` and `scrub` hold for the whole process: the
    object that was made last counts.

    The `OTEL_*` variables hold: endpoints, headers, samplers, limits, resource attributes. A `Runtime` flushes the
    exporters at the end of its drain, and the process shuts them down when it exits.

    Args:
        tracer_provider: Where exporters of spans are added; None for a new one, which becomes that of the process.
        service_name: The resource's, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` say otherwise.
        capture_content: Whether spans show messages, system prompts, and what tools are given and return; None as
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` says, which is no unless it is set.
        scrub: Called with each such value before it is shown, as JSON values or text; returns what may be shown, or
            None for nothing.

    Attributes:
        meter_provider: The meter provider that `setup_meter` made; None before.
        resource: What all spans and metrics are labeled with.

    Raises:
        ImportError: When a package of OpenTelemetry is missing, with what to install. Install the extra that the
            message names.
        Invalid: For a `scrub` that cannot be called. Correct the argument.
    """

    extra = "repertory[telemetry]"
    """The extra that installs all the packages."""

    def __init__(
        self,
        tracer_provider: Any = None,
        *,
        service_name: str = "repertory",
        capture_content: bool | None = None,
        scrub: Scrub | None = None,
    ) -> None:
        if scrub is not None and not callable(scrub):
            raise Invalid("scrub is a function of one argument", got=type(scrub).__name__)
        self.meter_provider: Any = None
        self.resource = self._resource(service_name)
        self.tracer_provider = tracer_provider
        if tracer_provider is None:
            self.tracer_provider = self._load("opentelemetry.sdk.trace").TracerProvider(resource=self.resource)
            self._load("opentelemetry.trace").set_tracer_provider(self.tracer_provider)
        capture = captures() if capture_content is None else capture_content
        with _known.lock:
            _known.policy = CapturePolicy(capture=capture, scrub=scrub)
            _known.set_up.append(self)
        wings.flush_exporters = flush_telemetry

    def setup_console_exporter(self, **options: Any) -> Self:
        """Print each span when it ends.

        Args:
            options: Those of `ConsoleSpanExporter`.
        """
        export = self._load("opentelemetry.sdk.trace.export")
        self.tracer_provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter(**options)))
        return self

    def setup_otlp_exporter(self, **options: Any) -> Self:
        """Send spans to a collector over HTTP, in batches.

        Args:
            options: Those of `OTLPSpanExporter`.
        """
        exporter = self._load("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter(**options)
        batches = self._load("opentelemetry.sdk.trace.export").BatchSpanProcessor(exporter)
        self.tracer_provider.add_span_processor(batches)
        return self

    def setup_baggage_processor(self, baggage_key_predicate: Any = None) -> Self:
        """Put baggage on every span: the keys that the predicate, or one of several, accepts; None for all.

        Args:
            baggage_key_predicate: A function of a key, or several; True puts the key on spans. None takes all.
        """
        baggage = self._load("opentelemetry.processor.baggage")
        given = baggage.ALLOW_ALL_BAGGAGE_KEYS if baggage_key_predicate is None else baggage_key_predicate
        self.tracer_provider.add_span_processor(baggage.BaggageSpanProcessor(given))
        return self

    def setup_meter(self, enable_console_exporter: bool = False, enable_otlp_exporter: bool = False) -> Self:
        """Make the process's meter provider, which prints its metrics, sends them to a collector, or both.

        Args:
            enable_console_exporter: True prints metrics.
            enable_otlp_exporter: True sends metrics to a collector.
        """
        export, readers = self._load("opentelemetry.sdk.metrics.export"), list[Any]()
        if enable_console_exporter:
            readers.append(export.PeriodicExportingMetricReader(export.ConsoleMetricExporter()))
        if enable_otlp_exporter:
            otlp = self._load("opentelemetry.exporter.otlp.proto.http.metric_exporter")
            readers.append(export.PeriodicExportingMetricReader(otlp.OTLPMetricExporter()))
        metrics = self._load("opentelemetry.sdk.metrics")
        self.meter_provider = metrics.MeterProvider(metric_readers=readers, resource=self.resource)
        self._load("opentelemetry.metrics").set_meter_provider(self.meter_provider)
        return self

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Send what the exporters hold. Blocks for about `timeout_s` at most; True if all was sent.

        Args:
            timeout_s: Seconds to wait for the exporters.
        """
        by = time.monotonic() + timeout_s
        sent = True
        for provider in (self.tracer_provider, self.meter_provider):
            remaining_ms = max(1, round((by - time.monotonic()) * 1000))
            sent = _quietly(partial(getattr(provider, "force_flush", _nothing), remaining_ms)) and sent
        return sent

    def shutdown(self) -> None:
        """Send what the exporters hold, and stop them: later spans go nowhere. The process does it when it exits."""
        with _known.lock:
            if self in _known.set_up:
                _known.set_up.remove(self)
        for provider in (self.tracer_provider, self.meter_provider):
            _quietly(getattr(provider, "shutdown", _nothing))

    def _resource(self, service_name: str) -> Resource:
        """The resource of all spans and metrics: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` come first."""
        resources = self._load("opentelemetry.sdk.resources")
        found: Resource = resources.Resource.create()
        named = str(found.attributes.get("service.name", "unknown_service"))
        if named.startswith("unknown_service"):
            return found.merge(resources.Resource({"service.name": service_name}))
        return found

    def _load(self, name: str) -> Any:
        try:
            return import_module(name)
        except ImportError as error:
            package = next((what for prefix, what in _PACKAGES.items() if name.startswith(prefix)), _API)
            what = package if name.startswith("opentelemetry.processor") else f"'{self.extra}'"
            msg = f"{type(self).__name__} needs {package}: pip install {what}"
            raise ImportError(msg, name=name) from error


_API = "opentelemetry-api"
_PACKAGES: Mapping[str, str] = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.processor": "opentelemetry-processor-baggage",
}


def _nothing(*given: object) -> None:
    """Do nothing, for a provider that is not there, or has nothing to flush."""
    del given


def _quietly(work: Callable[[], object]) -> bool:
    """True if the work was done. An exporter may be anybody's code: what it raises is logged."""
    return safely(lambda: work() is not False, False, "an exporter has failed")
