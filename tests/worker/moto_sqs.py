"""moto's SQS as a process of its own, on a free port of loopback.

Run as a program it serves until its standard input is closed. moto looks at a message and takes it in two steps, so one
request is served at a time; one that waits for messages looks again and again, and lets others through meanwhile.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ACCOUNT = "123456789012"
REGION = "us-east-1"


@contextmanager
def moto_sqs(log: Path) -> Iterator[str]:
    """The URL of a running server, ended with the block."""
    from tests.backends.objects.moto_s3 import moto_process  # the program itself runs by its path

    with moto_process(__file__, log) as url:
        yield url


def asked(url: str, action: str, **fields: object) -> dict[str, Any]:
    """The answer to a request of SQS's JSON protocol, without a client."""
    head = {
        "Content-Type": "application/x-amz-json-1.0",
        "X-Amz-Target": f"AmazonSQS.{action}",
        "Authorization": f"AWS4-HMAC-SHA256 Credential=x/20260101/{REGION}/sqs/aws4_request, Signature=x",
    }
    request = urllib.request.Request(url, data=json.dumps(fields).encode(), headers=head)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return dict(json.loads(answer.read() or b"{}"))


def made_queue(url: str, name: str, *, fifo: bool, aside: bool = True) -> str:
    """The URL of a new queue, with a dead letter queue of its own."""
    end, kind = (".fifo", {"FifoQueue": "true"}) if fifo else ("", {})
    attributes: dict[str, str] = dict(kind)
    if aside:
        asked(url, "CreateQueue", QueueName=f"{name}-aside{end}", Attributes=kind)
        target = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}-aside{end}"
        attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 100})
    return str(asked(url, "CreateQueue", QueueName=f"{name}{end}", Attributes=attributes)["QueueUrl"])


def serve() -> None:
    """Print the port, then serve until standard input ends."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    application = DomainDispatcherApplication(create_backend_app)
    turn = threading.Lock()

    def once(environ: dict[str, Any], body: bytes, start: Any) -> list[bytes]:
        again = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        with turn:
            answer = application(again, start)
            try:
                return list(answer)
            finally:
                if hasattr(answer, "close"):
                    answer.close()

    def served(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if not str(environ.get("HTTP_X_AMZ_TARGET", "")).endswith(".ReceiveMessage"):
            return once(environ, body, start_response)
        fields = json.loads(body)
        until = time.monotonic() + int(fields.pop("WaitTimeSeconds", 0))
        body = json.dumps({**fields, "WaitTimeSeconds": 0}).encode()
        while True:
            heads: list[tuple[Any, ...]] = []
            answer = once(environ, body, lambda *head, heads=heads: heads.append(head))
            if b'"Messages"' in b"".join(answer) or time.monotonic() >= until or not heads[0][0].startswith("200"):
                start_response(*heads[0])
                return answer
            threading.Event().wait(0.02)

    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    server = make_server("127.0.0.1", 0, served, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve()
