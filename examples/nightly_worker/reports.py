"""The agent that writes reports, and when it does.

Each shop has a session, with a timer of the id `nightly`. The timer is stored with the session, and fires in whatever
worker runs then. A night that nobody worked is made up for by the next worker: one report tells all that is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from repertory import AfterInvocationEvent, AgentSpec, Message, Model, ScriptedModel, ToolContext, named_model, tool

TIMER = "nightly"
DAY_S = 86_400.0
PROMPT = "Write tonight's report: read the new sales, and save a report of a few lines for the owner of the shop."


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    data: Path = Path("nightly_worker_data")
    """`NIGHTLY_WORKER_DATA`: the folder of the sales, the reports and the sessions."""
    at: time = time(2)
    """`NIGHTLY_WORKER_AT`: the hour and minute, such as 02:00."""
    zone: str = "UTC"
    """`NIGHTLY_WORKER_ZONE`: whose clock that is, such as Europe/Berlin."""
    model: str = ""
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, a Bedrock id, and so on. Empty: rules, without an account."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        """Read them."""
        return cls(
            Path(environ.get("NIGHTLY_WORKER_DATA", cls.data)),
            time.fromisoformat(environ.get("NIGHTLY_WORKER_AT", cls.at.isoformat())),
            environ.get("NIGHTLY_WORKER_ZONE", cls.zone),
            environ.get("REPERTORY_MODEL", cls.model),
        )

    def shops(self) -> list[str]:
        """Every shop with sales: one file each, `sales/SHOP.csv`, with lines of day, item and price."""
        return sorted(path.stem for path in (self.data / "sales").glob("*.csv"))

    def next_night(self, now: datetime | None = None) -> datetime:
        """The next time of day that is set, also across a change of the clock."""
        here = (now or datetime.now(ZoneInfo(self.zone))).astimezone(ZoneInfo(self.zone))
        tonight = datetime.combine(here.date(), self.at, here.tzinfo)
        return tonight if tonight > here else datetime.combine(here.date() + timedelta(days=1), self.at, here.tzinfo)


def agent_of(settings: Settings, hooks: Sequence[Callable[[AfterInvocationEvent], None]] = ()) -> AgentSpec:
    """The agent of all shops. Its tools find the shop in the id of the session."""

    @tool(effects=False)
    def new_sales(agent: Any) -> str:
        """Read the sales since the last report, a line each: day, item, price."""
        told = agent.state.get("lines_told") or 0
        lines = _lines(settings, agent.session_id)[told:]
        return "\n".join(lines) or "nothing"

    # It runs again if a kill cuts it short, and then writes the same file. What it has told, and when it is due next,
    # are stored with its result.
    @tool(idempotent=True)
    def save_report(text: str, agent: Any, tool_context: ToolContext) -> str:
        """Save the report."""
        lines = _lines(settings, agent.session_id)
        reports = settings.data / "reports"
        reports.mkdir(exist_ok=True)
        name = f"{agent.session_id}-{lines[-1].partition(',')[0]}.txt" if lines else f"{agent.session_id}.txt"
        (reports / name).write_text(text + "\n", encoding="utf-8")
        agent.state.set("lines_told", len(lines))
        tool_context.wake_at(settings.next_night(), PROMPT, every_s=DAY_S, id=TIMER)
        return f"saved as {name}"

    model: Model = named_model(settings.model) if settings.model else ScriptedModel([rules], loop=True)
    return AgentSpec(name="reporter", model=model, tools=[new_sales, save_report], hooks=hooks)


def _lines(settings: Settings, shop: str) -> list[str]:
    path = settings.data / "sales" / f"{shop}.csv"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def rules(messages: Sequence[Message], tools: object, system_prompt: object) -> Any:
    """Stand in for a model, so that everything else can be tried without an account."""
    results = [
        str(part.get("text", part))
        for block in messages[-1]["content"]
        if "toolResult" in block
        for part in block["toolResult"]["content"]
    ]
    if not results:
        return {"toolUse": {"name": "new_sales", "input": {}}}
    if results[0].startswith("saved"):
        return results[0]
    sales = [line.split(",") for line in results[0].splitlines() if "," in line]
    text = f"{len(sales)} sales, {sum(float(price) for _, _, price in sales):.2f} in all"
    return {"toolUse": {"name": "save_report", "input": {"text": text}}}
