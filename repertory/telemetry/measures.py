"""The metrics of calls: what the conventions name for models, and the time of turns and tools.

Instruments are made once per meter provider. Buckets are those that the conventions recommend.
Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from repertory.core.tokens import prompt_tokens

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter
    from opentelemetry.util.types import AttributeValue

    from repertory.core.messages import Usage

TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_CHUNK_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
CHUNK_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_USAGE = "gen_ai.client.token.usage"
OPERATION_DURATION = "gen_ai.client.operation.duration"
TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
TIME_PER_CHUNK = "gen_ai.client.operation.time_per_output_chunk"
TURN_DURATION = "repertory.turn.duration"
TOOL_DURATION = "repertory.tool.duration"


class Measures:
    """The instruments of one meter provider."""

    def __init__(self, meter: Meter) -> None:
        self._tokens = meter.create_histogram(
            TOKEN_USAGE,
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=TOKENS,
        )
        self._operation = _seconds(meter, OPERATION_DURATION, "GenAI operation duration.")
        text = "Time from the request to the first chunk of the answer."
        self._first_chunk = _seconds(meter, TIME_TO_FIRST_CHUNK, text, FIRST_CHUNK_SECONDS)
        self._chunk = _seconds(meter, TIME_PER_CHUNK, "Time from one chunk of an answer to the next.", CHUNK_SECONDS)
        self._turn = _seconds(
            meter, TURN_DURATION, "Time of a call of an agent, a graph or a swarm, once it is served."
        )
        self._tool = _seconds(meter, TOOL_DURATION, "Time of one attempt of a tool.")

    def model_call(
        self, attributes: Mapping[str, AttributeValue], duration_s: float, first_s: float | None, usage: Usage | None
    ) -> None:
        """One attempt of a model call. `first_s`: until the first piece of the answer, None without one."""
        self._operation.record(duration_s, attributes)
        if first_s is not None:
            self._first_chunk.record(first_s, attributes)
        if usage is not None and usage["totalTokens"]:
            self._tokens.record(prompt_tokens(usage), {**attributes, "gen_ai.token.type": "input"})
            self._tokens.record(usage["outputTokens"], {**attributes, "gen_ai.token.type": "output"})

    def chunk(self, attributes: Mapping[str, AttributeValue], duration_s: float) -> None:
        """One chunk of an answer after the first; the time since the one before."""
        self._chunk.record(duration_s, attributes)

    def turn(self, attributes: Mapping[str, AttributeValue], duration_s: float) -> None:
        self._turn.record(duration_s, attributes)

    def tool_call(self, attributes: Mapping[str, AttributeValue], duration_s: float) -> None:
        self._tool.record(duration_s, attributes)


def _seconds(meter: Meter, name: str, description: str, buckets: Sequence[float] = SECONDS) -> Histogram:
    return meter.create_histogram(name, unit="s", description=description, explicit_bucket_boundaries_advisory=buckets)
