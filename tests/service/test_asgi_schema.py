"""The OpenAPI document: it is valid, and what it says holds for requests that nobody would think of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from repertory import AgentSpec, OfflineModel, Runtime
from repertory.asgi import Caller, asgi_app, bearer_tokens
from repertory.service.http.http_api import operations
from repertory.service.http.service import Service
from repertory.service.http.stored import StoredSessions
from tests.service.asgi_client import Client
from tests.service.embedding_process import serving

SHAPE = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
CHECKS = {GenerationMode.POSITIVE: SHAPE, GenerationMode.NEGATIVE: [*SHAPE, negative_data_rejection]}
SERVICE = Service(Runtime())
TABLE = operations(SERVICE, StoredSessions(SERVICE, None))
OPERATIONS = sorted((one.method, one.path if one.top else f"/v1{one.path}") for one in TABLE)
NOTHING_TO_GET_WRONG = ("/healthz", "/readyz", "/v1/agents", "/v1/orchestrators")
CASES = [
    (method, path, mode)
    for method, path in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or path not in NOTHING_TO_GET_WRONG
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a service that keeps its sessions in SQLite."""
    folder = tmp_path_factory.mktemp("served")
    with serving("uvicorn-asyncio", folder / "a.db", "tests.service.asgi_service:app") as server:
        yield f"http://127.0.0.1:{server._port}"


@pytest.fixture(scope="module")
def schema(address: str) -> Any:
    """The document that it gives."""
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.mark.real_time
@pytest.mark.parametrize(("method", "path", "mode"), CASES, ids=lambda value: getattr(value, "value", value))
def test_an_operation_answers_as_the_document_says(
    schema: Any, address: str, method: str, path: str, mode: GenerationMode, request: pytest.FixtureRequest
) -> None:
    @seed(request.getfixturevalue("seed"))
    @settings(max_examples=15, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        served = {"agent": "offline", "orchestrator": "team"}  # Of any other one nothing more is asked.
        named = served.keys() & (case.path_parameters or {}).keys() if mode is GenerationMode.POSITIVE else ()
        for name in named:
            case.path_parameters[name] = served[name]
            case.path_parameters["session"] = case.path_parameters.get("session", "")[:2] or "ada"
        answer = case.call(base_url=address)
        # Who waits for less than opening a session takes is told to come again.
        patience_s = case.body.get("timeout_s") if isinstance(case.body, dict) else None
        hurried = isinstance(patience_s, int | float) and patience_s < 1
        told = hurried and answer.status_code == 503 and "retry-after" in answer.headers
        case.validate_response(answer, checks=[*([] if told else [not_a_server_error]), *CHECKS[mode]])

    check()


@pytest.mark.anyio
async def test_the_document_is_one_of_openapi_3_1_and_names_every_operation_once() -> None:
    runtime = Runtime()
    runtime.agent(AgentSpec(name="helper", model=OfflineModel()))
    for callers in (None, bearer_tokens({"s" * 16: Caller("acme")})):
        async with Client(asgi_app(runtime, authenticate=callers)) as client:
            document = (await client.get("/openapi.json")).json()
        assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []
        told = [(method.upper(), path) for path, item in document["paths"].items() for method in item]
        assert sorted(told) == OPERATIONS
        ids = [one["operationId"] for item in document["paths"].values() for one in item.values()]
        assert len(set(ids)) == len(ids)
        secured = [path for path, item in document["paths"].items() if any("security" in one for one in item.values())]
        assert (len(secured) > 10) == (callers is not None)
        assert "/healthz" not in secured
        answer = document["paths"]["/v1/agents/{agent}/sessions/{session}/turns"]["post"]["responses"]["200"]
        assert next(iter(answer["content"])) == "application/json", "what generators of clients read"
