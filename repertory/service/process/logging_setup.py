"""Logs and telemetry of a process that `repertory` runs, and nobody else sets up."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from repertory.logs import TurnIds
from repertory.service.configuration.decisions.tables import LogsTable, TelemetryTable

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """Each record as a JSON object on one line, with its fields as members."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        line: dict[str, object] = {"time": at, "level": record.levelname, "logger": record.name}
        line |= {"process": record.process, "text": record.getMessage(), **fields}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(settings: LogsTable, *, many: bool) -> None:
    """Write records to standard error, unless the program has set logging up. `many`: with the process's id."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    process = " [%(process)d]" if many else ""
    text = logging.Formatter(f"%(asctime)s %(levelname)s{process} %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if settings.format == "json" else text)
    handler.addFilter(TurnIds())
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("repertory").setLevel(settings.level.upper())


def set_telemetry_up(settings: TelemetryTable | None) -> None:
    """Send spans and metrics as the table says. Errors: `ImportError` naming what to install."""
    if settings is None or (settings.traces == "off" and settings.metrics == "off"):
        return
    from repertory.telemetry.setup import Telemetry  # an extra

    telemetry = Telemetry(service_name=settings.service_name, capture_content=settings.capture_content)
    if settings.traces == "otlp":
        telemetry.setup_otlp_exporter()
    elif settings.traces == "console":
        telemetry.setup_console_exporter()
    if settings.metrics != "off":
        telemetry.setup_meter(
            enable_otlp_exporter=settings.metrics == "otlp", enable_console_exporter=settings.metrics == "console"
        )
