"""The names of what nodes do: one for each execution, the same whenever it is gone on with.

A node's own journal knows by it whether the execution was answered, begun or neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repertory.core.orchestration.run import Run


def execution_token(orchestrator: str, run: Run, node: str, visit: int) -> str:
    """The idempotency token of a node's execution in a run; `visit` counts those before it."""
    return f"{_named(orchestrator, run, node)}{visit}"


def visit_of(token: str, orchestrator: str, run: Run, node: str) -> int | None:
    """Which execution of the node that is; None when it is none of this run."""
    visit = token.removeprefix(_named(orchestrator, run, node))
    return int(visit) if visit != token and visit.isdecimal() else None


def _named(orchestrator: str, run: Run, node: str) -> str:
    return f"{orchestrator}:{run.number}@{run.begun_at}:{node}:"
