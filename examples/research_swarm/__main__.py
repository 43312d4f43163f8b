"""Ask the team a question, and see who works on it. The same question again gives the report that is there."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import aclosing

import anyio

from repertory import HostedOrchestrator, RepertoryError, SwarmResult

from .team import Settings, research, session_of


async def ask(team: HostedOrchestrator[SwarmResult], question: str) -> bool:
    """Work on a question, or go on with it. Returns whether the report is there. Errors: `RepertoryError`, with
    everything up to then kept.
    """
    # The token names the run: asked again, it goes on or gives its result, and no second run begins.
    events = team.session(session_of(question)).stream(question, idempotency_token="report")
    async with aclosing(events):
        async for event in events:
            match event:
                case {"type": "multiagent_node_start", "node_id": str(name)}:
                    print(f"{name} works", flush=True)
                case {"type": "multiagent_result", "result": SwarmResult() as result}:
                    return show(result)
                case _:
                    pass  # pieces of text, tools and more: docs/guides/agents/graphs.md lists them
    return False


def show(result: SwarmResult) -> bool:
    """Print the answer of the last agent, or why there is none."""
    if result.status.value != "completed":
        print(f"{result.status.value}: {result.reason}", file=sys.stderr)
        return False
    last = result.node_history[-1].node_id
    print(result.results[last].result)
    print(f"({'from an earlier run' if result.replayed else 'done'}, {result.accumulated_usage['totalTokens']} tokens)")
    return True


async def main() -> int:
    """Open the runtime for one question. SIGTERM and Ctrl-C end it; ask again to go on."""
    parser = argparse.ArgumentParser(prog="python -m examples.research_swarm", description=__doc__)
    parser.add_argument("question")
    question = parser.parse_args().question
    done = False
    runtime, team = research(Settings.of(os.environ))
    async with runtime, anyio.create_task_group() as group:
        await group.start(runtime.serve_signals)
        try:
            done = await ask(team, question)
        except RepertoryError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        group.cancel_scope.cancel()
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(anyio.run(main))
