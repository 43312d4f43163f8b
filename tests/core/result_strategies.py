"""Results of agents, nodes and runs, and JSON, made by chance: they hold nothing that JSON cannot hold."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from repertory.core.budget import Spent
from repertory.core.interrupts import Interrupt
from repertory.core.result import AgentResult, StepMetrics, ToolMetrics, TurnMetrics
from repertory.core.run_results import MultiAgentResult, NodeResult, Status

NAMES = st.text(min_size=1, max_size=6)
COUNTS = st.integers(0, 2**53)
FIGURES = st.floats(0, 1e9)
KEYS = st.sampled_from(["a", "type", "__bytes_encoded__", "data", "ä", ""])
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text()
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
USAGES: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"inputTokens": COUNTS, "outputTokens": COUNTS, "totalTokens": COUNTS}, optional={"cacheReadInputTokens": COUNTS}
)
TOOLS = st.builds(ToolMetrics, call_count=COUNTS, error_count=COUNTS, total_time=FIGURES)
METRICS = st.builds(
    TurnMetrics,
    cycles=st.lists(st.builds(StepMetrics, USAGES, FIGURES, FIGURES, COUNTS), max_size=3).map(tuple),
    tool_metrics=st.dictionaries(NAMES, TOOLS, max_size=2),
    duration_s=FIGURES,
    left_out=st.dictionaries(NAMES, st.sampled_from(["failed", "late", "skipped"]), max_size=2),
)
BLOCKS: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda text: {"text": text}, st.text()),
    st.builds(lambda body: {"image": {"format": "png", "source": {"bytes": body}}}, st.binary()),
    st.builds(lambda given: {"toolUse": {"toolUseId": "t1", "name": "look", "input": given}}, JSON),
)
MESSAGES: st.SearchStrategy[Any] = st.builds(
    lambda content: {"role": "assistant", "content": content}, st.lists(BLOCKS, max_size=3)
)
INTERRUPTS = st.lists(st.builds(Interrupt, NAMES, NAMES, JSON, JSON, st.none() | FIGURES), max_size=2)
AGENT_RESULTS = st.builds(
    AgentResult,
    st.sampled_from(["end_turn", "interrupt", "cancelled", "limit_time"]),
    st.none() | MESSAGES,
    metrics=METRICS,
    state=st.dictionaries(NAMES, JSON, max_size=2),
    interrupts=INTERRUPTS,
    structured_output=JSON,
    replayed=st.booleans(),
)
LATENCIES: st.SearchStrategy[Any] = st.fixed_dictionaries({"latencyMs": FIGURES})


def node_results(outcomes: st.SearchStrategy[Any]) -> st.SearchStrategy[NodeResult]:
    """Results of nodes with these outcomes."""
    return st.builds(
        NodeResult, outcomes, COUNTS, st.sampled_from(Status), USAGES, LATENCIES, COUNTS, interrupts=INTERRUPTS
    )


def run_results(nodes: st.SearchStrategy[NodeResult]) -> st.SearchStrategy[MultiAgentResult]:
    """Results of runs of these nodes."""
    return st.builds(
        MultiAgentResult,
        st.sampled_from(Status),
        st.dictionaries(NAMES, nodes, max_size=2),
        USAGES,
        LATENCIES,
        COUNTS,
        COUNTS,
        INTERRUPTS,
        run=COUNTS,
        resumed=st.booleans(),
        replayed=st.booleans(),
        reason=st.none() | st.text(),
        spent=st.dictionaries(NAMES, st.builds(Spent, COUNTS, COUNTS, COUNTS, FIGURES, COUNTS), max_size=2),
    )


RUN_RESULTS = run_results(
    node_results(st.recursive(AGENT_RESULTS, lambda inner: run_results(node_results(inner)), max_leaves=2))
)
