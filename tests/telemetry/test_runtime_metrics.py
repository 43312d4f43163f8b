"""The metrics of runtimes: what a real scrape says, that the documents and the dashboard name what is there, and that a
program without OpenTelemetry pays for none of it. Our decisions: `docs/design/services.md`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, AgentSpec, Graph, Runtime, ScriptedModel, SQLiteSessions, Swarm, ToolContext, tool
from repertory.core.turns.activity import Activity
from repertory.errors import Invalid, StoreUnavailable
from repertory.telemetry.metrics import Reading, Watch
from tests.source_tree import ROOT

prometheus_parser: Any = pytest.importorskip("prometheus_client.parser", reason="the extra `telemetry` is missing")
sdk: Any = pytest.importorskip("opentelemetry.sdk.metrics")
readers: Any = pytest.importorskip("opentelemetry.sdk.metrics.export")

pytestmark = pytest.mark.real_time

DASHBOARD = ROOT / "examples/dashboards/repertory.json"
RUN_BOUND_S = 60


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def scraped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a program of its own was answered; it sets the meter provider, which can be done once in a process."""
    folder = tmp_path_factory.mktemp("metrics")
    command = [sys.executable, "-m", "tests.telemetry.metrics_program", str(folder), request.param]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_BOUND_S, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def values(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By the samples' names, then by their own labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in prometheus_parser.text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("repertory"):
                labels = tuple(sorted(item for item in sample.labels.items() if not item[0].startswith("otel_scope")))
                found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_a_scrape_of_a_runtime_at_work_has_its_numbers(scraped: dict[str, Any]) -> None:
    status, content_type, text = scraped["app"]
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = values(text)
    states = {labels[0][1]: value for labels, value in found["repertory_session_count"].items()}
    assert {state: count for state, count in states.items() if count} == {"idle": 2, "runs": 1}
    assert found["repertory_call_waiting"][()] == 1
    kinds = {labels[0][1]: value for labels, value in found["repertory_actor_count"].items()}
    assert kinds["AgentActor"] == 3
    assert found["repertory_commits_total"][()] == found["repertory_commit_duration_seconds_count"][()] > 0
    assert found["repertory_commit_records_total"][()] >= 6
    assert found["repertory_call_wait_duration_seconds_count"][()] >= 1
    assert found["repertory_peer_room"][()] == 7
    assert found["repertory_peer_busy"][()] == 1
    tries = {tuple(value for _, value in labels): n for labels, n in found["repertory_delivery_tries_total"].items()}
    assert tries["up", "delivered"] >= 3
    assert tries["down", "failed"] == 1
    assert tries["gone", "failed"] >= 1
    to = {labels[0][1]: value for labels, value in found["repertory_delivery_dead_letters_total"].items()}
    assert to == {"up": 0, "down": 0, "gone": 1}
    to = {labels[0][1]: value for labels, value in found["repertory_delivery_waiting"].items()}
    assert to == {"up": 0, "down": 1, "gone": 0}
    ages = {labels[0][1]: value > 0 for labels, value in found["repertory_delivery_waiting_age_seconds"].items()}
    assert ages == {"up": False, "down": True, "gone": False}
    breaker = found["repertory_memory_breaker"]
    assert {dict(labels)["repertory_memory_breaker_state"] for labels, value in breaker.items() if value} == {"closed"}


def test_the_small_server_answers_as_the_app_does_and_nothing_else(scraped: dict[str, Any]) -> None:
    head, _, body = scraped["served"].partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert f"content-length: {len(body)}" in head
    assert values(body).keys() == values(scraped["app"][2]).keys()
    assert scraped["elsewhere"].startswith("HTTP/1.1 404")
    assert scraped["posted"] == 405
    assert scraped["openmetrics"].startswith("application/openmetrics-text")


def test_no_scrape_ends_the_server_whatever_it_accepts_and_whichever_collector_fails(scraped: dict[str, Any]) -> None:
    assert scraped["failing"].startswith("HTTP/1.1 500")
    assert scraped["odd"].startswith("HTTP/1.1 200 OK")


def test_a_name_that_a_web_page_lets_lead_here_gets_no_metrics(scraped: dict[str, Any]) -> None:
    known = {"scraped.example:9464": "200", "localhost": "200", "[::1]:80": "200", "10.1.2.3": "200"}
    assert scraped["names"] == known | dict.fromkeys(("rebound.example", "", "localhost@x"), "421")


def test_a_drain_says_its_phase_and_what_was_counted_stays(scraped: dict[str, Any]) -> None:
    phases = values(scraped["draining"])["repertory_drain_phase"]
    assert [labels[0][1] for labels, value in phases.items() if value] == ["refuse"]
    during, ended = values(scraped["app"][2]), values(scraped["ended"])
    assert ended["repertory_commits_total"][()] >= during["repertory_commits_total"][()] > 0
    assert sum(ended["repertory_session_count"].values()) == 0


def names_in(table: str) -> Iterator[str]:
    return (name for name in re.findall(r"^\| `(repertory\.[a-z_.]+)` \|", table, re.MULTILINE))


def prometheus_names(name: str, kind: str, unit: str) -> set[str]:
    flat = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
    if kind == "counter":
        return {f"{flat}_total"}
    return {f"{flat}_{end}" for end in ("bucket", "count", "sum")} if kind == "histogram" else {flat}


def test_the_table_of_the_documents_has_every_metric_and_no_other(scraped: dict[str, Any]) -> None:
    text = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(repertory\.[a-z_.]+)` \| (\w+) \| `([^`]+)` \|", text, re.MULTILINE)
    documented = set[str]().union(*(prometheus_names(*row) for row in rows))
    made = set(values(scraped["app"][2]))
    tools = {f"repertory_tool_duration_seconds_{part}" for part in ("bucket", "count", "sum")}
    seldom = {"repertory_actor_dead_letters_total", *tools}  # There are none.
    assert made - documented == set()
    assert documented - made <= seldom


def test_the_dashboard_asks_for_metrics_and_labels_that_exist(scraped: dict[str, Any]) -> None:
    found = values(scraped["app"][2])
    made = set(found) | {"repertory_actor_dead_letters_total", "repertory_tool_duration_seconds_bucket"}
    labels = {name for by_labels in found.values() for each in by_labels for name, _ in each}
    labels |= {"repertory_actor_kind", "repertory_dead_letter_reason"}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    named = set(re.findall(r"repertory_\w+", " ".join(expressions)))
    assert named - labels <= made
    families = {
        re.sub(r"_(bucket|count|sum)$", "", name) if "_seconds_" in name or "size_" in name else name for name in made
    }
    shown = {
        re.sub(r"_(bucket|count|sum)$", "", name) if "_seconds_" in name or "size_" in name else name for name in named
    }
    assert families - shown == set(), "a metric that the dashboard does not show"


# -------------------------------------------------------------------------------- in this process, without a provider


@pytest.fixture
def watch() -> Watch:
    return Watch()


def histograms(reader: Any) -> dict[str, Any]:
    data = reader.get_metrics_data()
    return {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.mark.anyio
async def test_a_program_without_a_provider_is_watched_for_nothing(watch: Watch, tmp_path: Path) -> None:
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db")) as runtime:
        assert not watch.use_provider()
        host = runtime._host  # type: ignore[attr-defined] - what a runtime hands over
        watch.begin(host, lambda: None)
        assert host.buffers.commits.observe is None
        await runtime.agent(AgentSpec(model=ScriptedModel(["hi"]))).session("s").invoke("x")
        reading: Reading = await anyio.to_thread.run_sync(watch.read)
        assert reading.counts.commits >= 1
    watch.end(host)
    assert watch.read().counts.commits >= reading.counts.commits
    assert not watch.read().sessions


@pytest.mark.anyio
async def test_graphs_and_swarms_that_wait_for_a_person_are_counted_as_agents_are(watch: Watch) -> None:
    @tool
    async def pay(tool_context: ToolContext) -> str:
        """Pay."""
        return str(tool_context.interrupt("pay?"))

    def clerk() -> Agent:
        return Agent(ScriptedModel([{"toolUse": {"name": "pay"}}]), tools=[pay], callback_handler=None, name="clerk")

    async with Runtime(idle_timeout_s=10_000) as runtime:
        watch.begin(runtime._host, lambda: None)  # type: ignore[attr-defined]
        for made in (Graph({"clerk": clerk()}, id="graph"), Swarm([clerk()], id="swarm")):
            session = runtime.orchestrator(made.id, lambda _, made=made: made).session("s")
            assert (await session.invoke("pay")).interrupts
        watch._reading = None
        reading: Reading = await anyio.to_thread.run_sync(watch.read)
        assert reading.sessions == {Activity.ASKS: 4}  # Each with its node.
        assert [seen.state for seen in runtime.look(idle=False).sessions] == ["asks"] * 4


@pytest.mark.anyio
async def test_a_counter_never_goes_back_when_runtimes_come_and_go(watch: Watch, tmp_path: Path) -> None:
    seen: list[int] = []
    for number in range(3):
        async with Runtime(sessions=SQLiteSessions(tmp_path / f"{number}.db")) as runtime:
            watch.begin(runtime._host, lambda: None)  # type: ignore[attr-defined]
            await runtime.agent(AgentSpec(model=ScriptedModel(["hi"]))).session("s").invoke("x")
            watch._reading = None
            seen.append(watch.read().counts.commits)
    assert seen == sorted(seen)
    assert seen[0] < seen[-1]


@pytest.mark.anyio
async def test_failed_commits_are_told_by_the_class_of_their_error(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = readers.InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[reader])
    monkeypatch.setattr("repertory.telemetry.metrics.meter_provider", lambda: provider)
    assert watch.use_provider()
    watch._note_commit(3, 0.25, None)
    watch._note_commit(1, 0.5, StoreUnavailable("the store is away", session="secret-session"))
    points = histograms(reader)["repertory.commit.duration"]
    assert sorted((dict(point.attributes).get("error.type", ""), point.sum) for point in points) == [
        ("", 0.25),
        ("StoreUnavailable", 0.5),
    ]
    (sizes,) = histograms(reader)["repertory.commit.size"]
    assert (sizes.count, sizes.sum) == (2, 4)
    provider.shutdown()


@pytest.mark.anyio
@pytest.mark.parametrize("address", ["9464", "localhost:", "localhost:many", ":80"])
async def test_an_address_that_is_none_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from repertory.telemetry import prometheus

    monkeypatch.setattr(prometheus, "_registry", lambda: None)
    async with Runtime() as runtime:
        with pytest.raises(Invalid):
            await runtime.serve_metrics(address)


def test_bare_calls_and_runtimes_import_no_telemetry_by_themselves() -> None:
    program = (
        "import anyio, sys\n"
        "from repertory import Agent, AgentSpec, Runtime, ScriptedModel\n"
        "async def main():\n"
        "    await Agent(ScriptedModel(['hi']), callback_handler=None).invoke_async('x')\n"
        "    async with Runtime() as runtime:\n"
        "        await runtime.agent(AgentSpec(model=ScriptedModel(['hi']))).session('s').invoke('x')\n"
        "anyio.run(main)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry') or name.endswith('host.metrics')])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=RUN_BOUND_S, check=True
    )
    assert ran.stdout.strip() == "[]"
