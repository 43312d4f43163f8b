"""Would another model or prompt have answered as well? Variants answer stored conversations again, side by side.

    python -m examples.evaluation_by_replay record            # stores two conversations to try it with
    python -m examples.evaluation_by_replay compare           # every stored conversation
    python -m examples.evaluation_by_replay compare marta     # one of them

Nothing is written to the conversations, and no tool runs: a tool that is called as in the recorded turn gives the
recorded result. Stop `compare` at any time and start it again: it goes on, and pays for no answer twice. It ends with 1
when a variant misses the bar, so that it can guard a change of the prompt in a pipeline.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from repertory import (
    Agent,
    Evaluation,
    Model,
    RepertoryError,
    ReplayProgress,
    ScoredAnswer,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    TokenPrice,
    Variant,
    named_model,
    replay,
    tool,
)

from .offline import rules

VARIANTS = Path(__file__).with_name("variants.toml")


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    data: Path = Path("~/.repertory/examples/evaluation_by_replay")
    """`EVALUATION_DATA`: the folder of the results."""
    sessions: Path | None = None
    """`EVALUATION_SESSIONS`: the database with the stored conversations, else one in the folder of the results."""
    variants: Path = VARIANTS
    """`EVALUATION_VARIANTS`: the file with the variants and the prices."""
    model: str | None = None
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, `bedrock` or the id of a Bedrock model; else the rules."""
    bar: float = 0.9
    """`EVALUATION_BAR`: the part of the answers that must name every figure of the recorded one."""

    @staticmethod
    def read(environ: Mapping[str, str]) -> Settings:
        """The settings of an environment; what is not set has its default."""
        sessions = environ.get("EVALUATION_SESSIONS")
        return Settings(
            data=Path(environ.get("EVALUATION_DATA") or Settings.data).expanduser(),
            sessions=Path(sessions).expanduser() if sessions else None,
            variants=Path(environ.get("EVALUATION_VARIANTS") or VARIANTS).expanduser(),
            model=environ.get("REPERTORY_MODEL"),
            bar=float(environ.get("EVALUATION_BAR") or Settings.bar),
        )

    @property
    def database(self) -> Path:
        return self.sessions or self.data / "sessions.db"

    @property
    def results(self) -> Path:
        """Where the results are: each model of the environment has a folder of its own."""
        return self.data / "results" / re.sub(r"[^\w.-]+", "-", self.model or "offline")

    def model_named(self, name: str | None) -> Model:
        """The model of a variant, which its own entry names, or else the environment."""
        asked = name or self.model
        return named_model(asked) if asked else rules()

    def read_variants(self) -> tuple[list[Variant], dict[str, TokenPrice]]:
        """The variants of the file, and the prices. Errors: `OSError`; those of a file that is none."""
        table: dict[str, Any] = tomllib.loads(self.variants.read_text(encoding="utf-8"))
        told: dict[str, dict[str, Any]] = table["variants"]
        priced = {"recorded": table.get("recorded", {}), **told}
        prices = {name: TokenPrice(**entry["price"]) for name, entry in priced.items() if "price" in entry}
        variants = [
            Variant(
                name=name,
                model=self.model_named(entry.get("model")),
                system_prompt=entry.get("system_prompt"),
                tools=[price],
            )
            for name, entry in told.items()
        ]
        return variants, prices


@tool(effects=False)
def price(item: str) -> float:
    """Look up what an item costs."""
    return {"loaf": 4.2, "bun": 0.9}[item]


async def record(settings: Settings) -> None:
    """Two conversations, as a program in production has stored them."""
    for customer, prompts in {"marta": ("What does a loaf cost?", "And a bun?", "Bye."), "paul": ("A bun?",)}.items():
        session = SQLiteSessionManager(customer, path=settings.database)
        async with Agent(rules(), tools=[price], session_manager=session) as agent:
            for prompt in prompts:
                await agent.invoke_async(prompt)
        print(f"{customer}: {len(prompts)} turns are stored")


def names_the_figures(answer: ScoredAnswer) -> bool:
    """Whether every figure of the recorded answer is in the new one."""
    figures = re.findall(r"\d+(?:\.\d+)?", answer.recorded.text if answer.recorded else "")
    return all(figure in answer.replayed.text for figure in figures)


def words(answer: ScoredAnswer) -> int:
    """How many words the new answer has."""
    return len(answer.replayed.text.split())


def show(progress: ReplayProgress) -> None:
    """Print a line for each answer as it comes."""
    row = progress.row
    answer = row.replayed.text if row.replayed is not None else f"error: {row.error}"
    print(f"  {progress.done}/{progress.of} turn {row.turn}, {row.variant}: {answer}", flush=True)


async def compare(settings: Settings, chosen: Sequence[str]) -> bool:
    """Compare conversations, or all of them; whether every variant has reached the bar in all."""
    variants, prices = settings.read_variants()
    results = settings.results
    results.mkdir(parents=True, exist_ok=True)
    reached = True
    async with Sessions(SQLiteSessions(settings.database)) as sessions:
        for session in chosen or sorted(info.session_id for info in await sessions.list()):
            print(f"{session}:")
            found = await replay(
                sessions,
                session,
                variant=variants,
                scorers=[names_the_figures, words],
                out=results / f"{session}.jsonl",
                concurrency=1 if settings.model is None else 4,
                prices=prices,
                retry_errors=True,
                on_progress=show,
            )
            await found.write_page(results / f"{session}.html")
            reached = judged(found, settings.bar) and reached
    print(f"The pages are in {results}")
    return reached


def judged(found: Evaluation, bar: float) -> bool:
    """Print the sums of each variant; whether all have reached the bar."""
    reached = True
    for sums in found.summaries:
        share = sums.scores.get("names_the_figures", 0.0)
        reaches = not sums.errors and share >= bar
        reached = reached and reaches
        cost = "an unknown cost"
        if sums.cost is not None and sums.recorded_cost:
            cost = f"{sums.cost / sums.recorded_cost:.0%} of the cost"
        print(
            f"  {sums.variant} {'reaches' if reaches else 'misses'} the bar:"
            f" {share:.0%} of the figures, {cost}, {sums.errors} errors"
        )
    return reached


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 1 when a variant misses the bar; 2 for an error."""
    parser = argparse.ArgumentParser(prog="evaluation", description="Answer stored conversations again, and compare.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="store two conversations to try it with")
    comparing = commands.add_parser("compare", help="answer stored conversations again")
    comparing.add_argument("session", nargs="*", help="a stored conversation (default: all)")
    options = parser.parse_args(arguments)
    settings = Settings.read(os.environ)
    try:
        if options.command == "record":
            anyio.run(record, settings)
            return 0
        return 0 if anyio.run(compare, settings, options.session) else 1
    except (RepertoryError, ImportError, OSError, ValueError, TypeError, KeyError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
