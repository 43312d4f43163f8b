"""Tracing and metrics: what the agent system tells of its calls, as spans and measurements of OpenTelemetry.

What belongs here: everything that speaks to OpenTelemetry's API, by the semantic conventions for generative AI. It is
loaded when a call is served in a program that has set a provider, and needs `opentelemetry-api` alone.

Start with `spans.py`; `content.py` decides what of messages may be shown, `measures.py` has the metrics, and
`propagation.py` takes traces from one process to the next.
"""
