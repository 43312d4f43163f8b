"""The OpenAPI document: it is valid, and what it says holds for requests that nobody would think of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.app.embedding_process import serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
SHORT = {"wait_s": 0}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service."""
    folder = tmp_path_factory.mktemp("served")
    with serving("uvicorn-asyncio", folder / "a.db", "tests.app.asgi_service:app") as server:
        yield f"http://127.0.0.1:{server._port}"


@pytest.fixture
def document(service: str) -> Any:
    """Its document, as the service gives it."""
    return schemathesis.openapi.from_url(f"{service}/openapi.json")


SCHEMA = schemathesis.pytest.from_fixture("document")


@pytest.mark.real_time
@SCHEMA.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation_answers_as_the_document_says(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)
