"""The manifests in examples/kubernetes are valid, agree with their program and each other, and their pods work."""

from __future__ import annotations

import importlib.util
import math
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import kubernetes_validate
import pytest
import yaml
from fastapi.routing import APIRoute

from repertory import PostgresSessions, Sessions
from tests.postgres_server import needed, programs, shared_server
from tests.service.embedding_process import Server, started
from tests.source_tree import ROOT

FOLDER = ROOT / "examples/kubernetes"
VERSION = "1.37"
"""Of Kubernetes: the schemas of the package that is installed."""
USUAL_CONNECTIONS = 97
"""Of a PostgreSQL server that nobody has configured: 100, of which three are kept for its administrator."""
SPARE_S = 5
"""What is left of the grace period when everything took as long as it may."""

MANIFESTS: Mapping[str, dict[str, Any]] = {
    each["kind"]: each for each in yaml.safe_load_all((FOLDER / "service.yaml").read_text(encoding="utf-8"))
}
POD: Mapping[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
PORTS: Mapping[str, int] = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
LABELS: Mapping[str, str] = POD["metadata"]["labels"]
ENVIRONMENT = {
    "POD_IP": "10.1.2.3",
    "DATABASE_URL": MANIFESTS["Secret"]["stringData"]["DATABASE_URL"],
    "PEER_SECRET": MANIFESTS["Secret"]["stringData"]["PEER_SECRET"],
    "API_TOKEN": MANIFESTS["Secret"]["stringData"]["API_TOKEN"],
    "VERSION": LABELS["app.kubernetes.io/version"],
}
"""What a pod finds."""


def load(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> ModuleType:
    """The program, as a pod with this environment loads it."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("kubernetes_example", FOLDER / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def option(name: str) -> str:
    """The value of an option of the container's command."""
    command: list[str] = CONTAINER["command"]
    return command[command.index(name) + 1]


def test_every_manifest_is_what_kubernetes_takes() -> None:
    assert sorted(MANIFESTS) == [
        "Deployment",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Secret",
        "Service",
    ]
    for manifest in MANIFESTS.values():
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_the_schemas_refuse_a_name_that_kubernetes_does_not_know() -> None:
    spec = {**MANIFESTS["PodDisruptionBudget"]["spec"], "maxUnavailible": 1}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**MANIFESTS["PodDisruptionBudget"], "spec": spec}, VERSION, strict=True)


def test_the_program_finds_what_it_needs_and_the_pod_has_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {each["name"] for each in CONTAINER["env"]} == set(ENVIRONMENT)
    load(monkeypatch, ENVIRONMENT)
    for name in ENVIRONMENT:
        with pytest.raises(KeyError, match=name):
            load(monkeypatch, {other: value for other, value in ENVIRONMENT.items() if other != name})
    kept = MANIFESTS["Secret"]["stringData"]
    used = [each["valueFrom"]["secretKeyRef"] for each in CONTAINER["env"] if "secretKeyRef" in each["valueFrom"]]
    assert {(each["name"], each["key"]) for each in used} == {
        (MANIFESTS["Secret"]["metadata"]["name"], k) for k in kept
    }
    (version,) = (each["valueFrom"] for each in CONTAINER["env"] if each["name"] == "VERSION")
    found = re.fullmatch(r"metadata\.labels\['(.+)'\]", version["fieldRef"]["fieldPath"])
    assert found is not None
    assert found[1] in LABELS
    assert CONTAINER["image"].endswith(f":{LABELS[found[1]]}")


def test_ports_and_probes_are_those_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(monkeypatch, ENVIRONMENT)
    assert {"http": int(option("--port")), "peers": program.PEER_PORT} == PORTS
    routes = {
        route.path for route in program.app.routes if isinstance(route, APIRoute) and "GET" in (route.methods or ())
    }
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        assert CONTAINER[probe]["httpGet"]["path"] in routes
        assert CONTAINER[probe]["httpGet"]["port"] in PORTS
    assert [each["targetPort"] for each in MANIFESTS["Service"]["spec"]["ports"]] == ["http"]
    rules = MANIFESTS["NetworkPolicy"]["spec"]["ingress"]
    assert {port["port"]: "from" in rule for rule in rules for port in rule["ports"]} == {"http": False, "peers": True}


def test_a_pod_is_killed_later_than_its_requests_and_its_drain_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(monkeypatch, ENVIRONMENT)
    pause_s = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    requests_s = int(option("--timeout-graceful-shutdown"))
    drain_s = program.runtime._host._settings.drain_timeout_s
    assert drain_s == program.DRAIN_S
    assert POD["spec"]["terminationGracePeriodSeconds"] >= pause_s + requests_s + drain_s + SPARE_S


def test_everything_speaks_of_the_same_pods() -> None:
    spec = {kind: manifest["spec"] for kind, manifest in MANIFESTS.items() if "spec" in manifest}
    selectors = [
        spec["Deployment"]["selector"]["matchLabels"],
        spec["Service"]["selector"],
        spec["PodDisruptionBudget"]["selector"]["matchLabels"],
        spec["NetworkPolicy"]["podSelector"]["matchLabels"],
        *(
            each["podSelector"]["matchLabels"]
            for rule in spec["NetworkPolicy"]["ingress"]
            for each in rule.get("from", ())
        ),
    ]
    assert all(selector.items() <= LABELS.items() for selector in selectors)
    assert len(selectors) == 5
    target = spec["HorizontalPodAutoscaler"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", MANIFESTS["Deployment"]["metadata"]["name"])
    assert "replicas" not in spec["Deployment"]  # Each `apply` would undo what the autoscaler has set.
    assert spec["HorizontalPodAutoscaler"]["minReplicas"] > spec["PodDisruptionBudget"]["maxUnavailable"]


def test_the_autoscaler_adds_pods_before_all_places_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(monkeypatch, ENVIRONMENT)
    (metric,) = (each["pods"] for each in MANIFESTS["HorizontalPodAutoscaler"]["spec"]["metrics"] if "pods" in each)
    assert metric["target"]["type"] == "AverageValue"
    assert 0.5 * program.ROOM <= int(metric["target"]["averageValue"]) <= 0.8 * program.ROOM
    scraped = POD["metadata"]["annotations"]
    assert int(scraped["prometheus.io/port"]) == PORTS["http"]
    assert scraped["prometheus.io/path"] in {route.path for route in program.app.routes}
    assert metric["metric"]["name"] == "repertory_busy"


def test_a_server_with_the_usual_number_of_connections_takes_all_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(monkeypatch, ENVIRONMENT)
    surge = int(MANIFESTS["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"].removesuffix("%"))
    pods = math.ceil(MANIFESTS["HorizontalPodAutoscaler"]["spec"]["maxReplicas"] * (1 + surge / 100))
    assert pods * (program.CONNECTIONS + 1) <= USUAL_CONNECTIONS


@pytest.mark.real_time
def test_two_pods_answer_for_each_other_and_one_takes_over_when_the_other_is_stopped(tmp_path: Path) -> None:
    needed(programs())
    database = shared_server()
    database.sql("DROP DATABASE IF EXISTS pods WITH (FORCE)")
    database.sql("CREATE DATABASE pods ENCODING 'UTF8' TEMPLATE template0")
    url = database.url.removesuffix("/postgres") + "/pods"
    command = [*CONTAINER["command"]]
    command[command.index("--port") + 1] = "0"
    command[command.index("--host") + 1] = "127.0.0.1"

    def pod(address: str) -> Any:
        own = {**ENVIRONMENT, "POD_IP": address, "DATABASE_URL": url}
        return started("-m", *command, "--app-dir", str(FOLDER), folder=tmp_path, **own)

    with pod("127.83.1.1") as first, pod("127.83.1.2") as second:
        one, two = Server(first), Server(second)
        for server in (one, two):
            for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
                assert server.get(CONTAINER[probe]["httpGet"]["path"]).status == 200
            told = server.get(POD["metadata"]["annotations"]["prometheus.io/path"]).body
            assert told == "repertory_room 200\nrepertory_busy 0\n"
        found = anyio.run(Sessions(PostgresSessions(url)).cluster)
        assert sorted((peer.address, peer.version) for peer in found.peers) == [
            (f"{address}:{PORTS['peers']}", ENVIRONMENT["VERSION"]) for address in ("127.83.1.1", "127.83.1.2")
        ]
        said, known = "/sessions/marta/messages", ENVIRONMENT["API_TOKEN"]
        for stranger in (None, "another-secret-of-32-characters!"):
            refused = one.post(said, {"text": "My cat is called Byron."}, bearer=stranger)
            assert (refused.status, refused.body["detail"]) == (401, "say who you are")
        wrong = one.post(f"/sessions/{'x' * 1000}/messages", {"text": "My cat is called Byron."}, bearer=known)
        assert (wrong.status, wrong.body["group"]) == (422, "Invalid")
        assert one.post(said, {"text": "My cat is called Byron."}, bearer=known).status == 200
        assert "Byron" in two.post(said, {"text": "Do you remember my cat?"}, bearer=known).body["text"]
        first.signal(signal.SIGTERM)
        assert "Byron" in two.post(said, {"text": "Do you remember my cat?"}, bearer=known).body["text"]
        assert first.exit_code() == -signal.SIGTERM
