"""An agent that many people share. Each has a conversation of their own, and an allowance of tokens and cost a day.

    python -m examples.agent_with_a_budget ask marta What is 12 * 12?
    python -m examples.agent_with_a_budget ask marta           # goes on with a question that reached the limit
    python -m examples.agent_with_a_budget used                # what everybody has used today

Who has nothing left is refused before anything is stored or sent. A turn that uses up the rest ends before its next
model call; it is kept, and goes on when the person asks again on the next day.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.to_thread

from repertory import (
    AfterModelCallEvent,
    AgentSpec,
    Model,
    RepertoryError,
    Runtime,
    SQLiteSessions,
    calculator,
    named_model,
)

from .allowances import Accounts, Limits, Meter, OverBudget

LIMITS = Path(__file__).with_name("limits.toml")


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    model: str = "offline"
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, `bedrock`, the id of a Bedrock model, or `offline`."""
    data: Path = Path("~/.repertory/examples/agent_with_a_budget")
    """`BUDGET_DATA`: the folder of the conversations and the accounts."""
    limits: Path = LIMITS
    """`BUDGET_LIMITS`: the file with the allowances and the prices."""

    @staticmethod
    def read(environ: Mapping[str, str]) -> Settings:
        """The settings of an environment; what is not set has its default."""
        return Settings(
            model=environ.get("REPERTORY_MODEL") or Settings.model,
            data=Path(environ.get("BUDGET_DATA") or Settings.data).expanduser(),
            limits=Path(environ.get("BUDGET_LIMITS") or Settings.limits).expanduser(),
        )


def today() -> str:
    """The day that is charged."""
    return datetime.now(UTC).date().isoformat()


async def book(event: AfterModelCallEvent) -> None:
    """Write down what a model call has used, before the turn goes on."""
    meter: Meter = event.invocation_state["meter"]
    await anyio.to_thread.run_sync(meter.book)


class SharedAgent:
    """One agent, a conversation for each person, and their allowances."""

    def __init__(
        self, runtime: Runtime, model: Model, accounts: Accounts, limits: Limits, day: Callable[[], str] = today
    ) -> None:
        self._accounts, self._limits, self._day = accounts, limits, day
        self._meters: dict[str, Meter] = {}
        self._opening = anyio.Lock()
        self._agent = runtime.agent(
            AgentSpec(
                name="helper",
                model=model,
                tools=[calculator],
                system_prompt="You help the people of a small company. Answer briefly.",
                hooks=[book],
            )
        )

    async def ask(self, user: str, text: str | None) -> str:
        """The answer to a person; without a text, to what they asked last.

        Errors: `OverBudget`, before the turn or in its middle; those of a turn.
        """
        meter = await self._meter(user)
        try:
            result = await self._agent.session(user).invoke(
                text, budget=meter.budget, invocation_state={"meter": meter}
            )
        finally:
            with anyio.CancelScope(shield=True):  # summaries and the like, which no hook of this agent has seen
                await anyio.to_thread.run_sync(meter.book)
        if result.stop_reason in ("limit_total_tokens", "limit_cost"):
            raise OverBudget(f"{meter.reason}. Your question is kept: ask again without a text")
        return str(result)

    async def _meter(self, user: str) -> Meter:
        """The meter of a person for today. Errors: `OverBudget` when nothing is left."""
        day = self._day()
        async with self._opening:
            meter = self._meters.get(user)
            if meter is None or meter.day != day:
                meter = await anyio.to_thread.run_sync(Meter, self._accounts, user, day, self._limits)
                self._meters[user] = meter
        if reason := await anyio.to_thread.run_sync(lambda: meter.reason):
            raise OverBudget(reason)
        return meter


async def ask(settings: Settings, user: str, text: str | None) -> None:
    """One question of one person. A service keeps the runtime and the agent, and calls `ask` for each request."""
    accounts, limits = Accounts(settings.data / "accounts.db"), Limits.read(settings.limits)
    async with Runtime(sessions=SQLiteSessions(settings.data / "sessions.db")) as runtime:
        print(await SharedAgent(runtime, named_model(settings.model), accounts, limits).ask(user, text))


def show(settings: Settings) -> None:
    """Print what everybody has used today."""
    limits = Limits.read(settings.limits)
    print(f"{'user':12}{'tokens':>10}{'of':>10}{'USD':>10}{'of':>10}")
    for user, used in Accounts(settings.data / "accounts.db").of_day(today()):
        allowed = limits.of(user)
        print(f"{user:12}{used.tokens:>10,}{allowed.tokens:>10,}{used.cost:>10.4f}{allowed.cost:>10.4f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 1 for an error; 3 when the allowance is used up."""
    parser = argparse.ArgumentParser(prog="shared_agent", description="An agent with an allowance for each person.")
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask", help="ask something as one person")
    asking.add_argument("user")
    asking.add_argument("text", nargs="*")
    commands.add_parser("used", help="print what everybody has used today")
    options = parser.parse_args(arguments)
    settings = Settings.read(os.environ)
    try:
        if options.command == "used":
            show(settings)
        else:
            anyio.run(ask, settings, options.user, " ".join(options.text) or None)
    except OverBudget as refusal:
        print(f"Refused: {refusal}.", file=sys.stderr)
        return 3
    except (RepertoryError, ImportError, OSError, ValueError, TypeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0
