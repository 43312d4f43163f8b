"""A knowledge base on loopback: what the services' models say of its requests, held strictly.

`GetKnowledgeBase`, `Retrieve` and `IngestKnowledgeBaseDocuments` over HTTP. A document replaces the one of its id, and
is found at once, by the share of the question's words that it has; one without any is not found. Documents of an S3
data source are read from the bucket. `plan` says what goes wrong with a request.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.backends.sessions.agentcore_memory import ServiceError, check
from tests.backends.sessions.agentcore_server import Drop, Hang, Plan, Say

KNOWLEDGE_BASE = "KB12345678"
CUSTOM = "DSCUSTOM00"
S3 = "DSS3000000"
_STATUS = {"ThrottlingException": 429, "AccessDeniedException": 403, "ResourceNotFoundException": 404}


@dataclass
class Document:
    """What was taken in."""

    id: str
    text: str
    attributes: dict[str, Any]
    location: dict[str, Any]


@dataclass
class FakeKnowledgeBase:
    """The knowledge base named `KNOWLEDGE_BASE`, with a data source of each type. Calls may come from any thread."""

    kind: str = "VECTOR"
    s3_url: str | None = None
    """Of the server that has the buckets."""
    page_results: int = 100
    ingest_status: str = "STARTING"
    documents: dict[str, Document] = field(default_factory=dict)
    accepted: list[dict[str, Any]] = field(default_factory=list)
    """Requests that took documents in, in order."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def get_knowledge_base(self, params: dict[str, Any]) -> dict[str, Any]:
        self._check(params)
        configuration = {"type": self.kind}
        return {"knowledgeBase": {"knowledgeBaseId": KNOWLEDGE_BASE, "knowledgeBaseConfiguration": configuration}}

    def ingest(self, params: dict[str, Any]) -> dict[str, Any]:
        self._check(params)
        if params["dataSourceId"] not in (CUSTOM, S3):
            raise ServiceError("ResourceNotFoundException", f"DataSource {params['dataSourceId']} not found")
        found = [self._document(each) for each in params["documents"]]
        with self._lock:
            self.accepted.append(params)
            if self.ingest_status != "FAILED":
                self.documents.update({document.id: document for document in found})
        detail = {"knowledgeBaseId": KNOWLEDGE_BASE, "dataSourceId": params["dataSourceId"], "identifier": {}}
        return {"documentDetails": [{**detail, "status": self.ingest_status, "statusReason": "said so"}]}

    def retrieve(self, params: dict[str, Any]) -> dict[str, Any]:
        self._check(params)
        ((by_kind, search),) = params["retrievalConfiguration"].items()
        if by_kind != ("managedSearchConfiguration" if self.kind == "MANAGED" else "vectorSearchConfiguration"):
            raise ServiceError("ValidationException", f"{by_kind} does not fit a knowledge base of type {self.kind}")
        words = _words(params["retrievalQuery"]["text"])
        with self._lock:
            documents = [each for each in self.documents.values() if _allowed(each, search.get("filter"))]
        scored = [(len(words & _words(each.text)) / max(len(words), 1), each) for each in documents]
        ranked = sorted((each for each in scored if each[0] > 0), key=lambda each: -each[0])[
            : search["numberOfResults"]
        ]
        start = int(params.get("nextToken", "0"))
        end = start + self.page_results
        answer: dict[str, Any] = {"retrievalResults": [_result(score, each) for score, each in ranked[start:end]]}
        if len(ranked) > end:
            answer["nextToken"] = str(end)
        return answer

    def _check(self, params: dict[str, Any]) -> None:
        if params["knowledgeBaseId"] != KNOWLEDGE_BASE:
            raise ServiceError("ResourceNotFoundException", f"KnowledgeBase {params['knowledgeBaseId']} not found")

    def _document(self, said: dict[str, Any]) -> Document:
        content, metadata = said["content"], said.get("metadata", {})
        if content["dataSourceType"] == "CUSTOM":
            custom = content["custom"]
            name = custom["customDocumentIdentifier"]["id"]
            attributes = {each["key"]: _plain(each["value"]) for each in metadata.get("inlineAttributes", ())}
            location = {"type": "CUSTOM", "customDocumentLocation": {"id": name}}
            return Document(name, custom["inlineContent"]["textContent"]["data"], attributes, location)
        uri = content["s3"]["s3Location"]["uri"]
        attributes = {}
        if metadata:
            said_beside = json.loads(read_object(str(self.s3_url), metadata["s3Location"]["uri"]))
            attributes = {key: _plain(each["value"]) for key, each in said_beside["metadataAttributes"].items()}
        return Document(
            uri, read_object(str(self.s3_url), uri).decode(), attributes, {"type": "S3", "s3Location": {"uri": uri}}
        )


def read_object(s3_url: str, uri: str) -> bytes:
    """An object in a bucket of moto, which wants to know who asks and takes their word for it."""
    key = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20240101/us-east-1/s3/aws4_request"
    asked = urllib.request.Request(f"{s3_url}/{uri.removeprefix('s3://')}", headers={"Authorization": key})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return answer.read()


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def _plain(value: dict[str, Any]) -> Any:
    return next(item for key, item in value.items() if key != "type")


def _allowed(document: Document, wanted: dict[str, Any] | None) -> bool:
    if wanted is None:
        return True
    equals = wanted["equals"]
    return document.attributes.get(equals["key"]) == equals["value"]


def _result(score: float, document: Document) -> dict[str, Any]:
    said: dict[str, Any] = {"content": {"text": document.text, "type": "TEXT"}, "score": score}
    if document.attributes:
        said["metadata"] = document.attributes
    return {**said, "location": document.location, "documentId": document.id}


# ---------------------------------------------------------------------------------------------------------------- HTTP


def _routes() -> list[tuple[str, re.Pattern[str], str, Any, int]]:
    session = import_module("botocore.session").get_session()
    routes: list[tuple[str, re.Pattern[str], str, Any, int]] = []
    for service, names in (
        ("bedrock-agent", ("GetKnowledgeBase", "IngestKnowledgeBaseDocuments")),
        ("bedrock-agent-runtime", ("Retrieve",)),
    ):
        model = session.get_service_model(service)
        for name in names:
            operation = model.operation_model(name)
            path = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", operation.http["requestUri"])
            code = operation.http.get("responseCode", 200)
            routes.append((operation.http["method"], re.compile(path), name, operation.input_shape, code))
    return routes


ROUTES = _routes()
_METHODS = {"GetKnowledgeBase": "get_knowledge_base", "IngestKnowledgeBaseDocuments": "ingest", "Retrieve": "retrieve"}


@dataclass
class KnowledgeBaseServer:
    """A running one."""

    url: str
    base: FakeKnowledgeBase
    plan: Callable[[str, dict[str, Any]], Plan] = lambda operation, params: None
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Operation and parameters, in the order in which they came, repeated ones as often."""
    hung: threading.Event = field(default_factory=threading.Event)
    """Set when a request hangs."""
    closing: threading.Event = field(default_factory=threading.Event)
    """Set to end those that hang."""

    def next_plans(self, operation: str, *plans: Plan) -> None:
        """What happens to the next requests of this operation; nothing goes wrong with those after them."""
        rest = list(plans)
        self.plan = lambda asked, params: rest.pop(0) if rest and asked == operation else None

    def operations(self) -> list[str]:
        """What was asked so far."""
        return [operation for operation, _ in self.requests]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # Head and body in one packet, or each answer takes 40 ms.
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        state: KnowledgeBaseServer = self.server.state
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path.rstrip("/"))
        routes = [route for route in ROUTES if route[0] == self.command and route[1].fullmatch(path)]
        if not routes:
            self._answer(404, {"message": f"no such route: {self.command} {path}"}, "UnknownOperationException")
            return
        _, pattern, operation, shape, status = routes[0]
        found = pattern.fullmatch(path)
        assert found is not None
        params = found.groupdict() | json.loads(body or b"{}")
        state.requests.append((operation, params))
        plan = state.plan(operation, params)
        if isinstance(plan, Say):
            self._answer(plan.status or _STATUS.get(plan.code, 400), {"message": plan.message}, plan.code)
            return
        method = getattr(state.base, _METHODS[operation])
        if isinstance(plan, Drop | Hang):
            if plan.done:
                method(params)
            if isinstance(plan, Hang):
                state.hung.set()
                state.closing.wait(20)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        try:
            check(shape, params, operation)
            self._answer(status, method(params))
        except ServiceError as error:
            self._answer(_STATUS.get(error.code, 400), {"message": error.message}, error.code)

    do_GET = do_POST = do_PUT = _serve  # noqa: N815

    def _answer(self, status: int, value: dict[str, Any], error: str | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if error is not None:
            self.send_header("x-amzn-ErrorType", error)
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # A client has hung up, which is what some tests are about.


@contextmanager
def knowledge_base_server(base: FakeKnowledgeBase | None = None) -> Iterator[KnowledgeBaseServer]:
    """A running server, ended with the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    state = KnowledgeBaseServer(f"http://127.0.0.1:{server.server_port}", base or FakeKnowledgeBase())
    server.state = state  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        thread.join(5)
        server.server_close()
