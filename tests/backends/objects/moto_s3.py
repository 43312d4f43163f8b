"""moto's S3 as a process of its own, on a free port of loopback, with one bucket named `bucket`.

Run as a program it serves until its standard input is closed. Requests are served one at a time, since moto checks a
condition and writes in two steps.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUCKET = "bucket"


@contextmanager
def moto_process(program: str, log: Path) -> Iterator[str]:
    """The URL of a program that serves one of moto's services as this one does, ended with the block."""
    with log.open("wb") as errors:
        command = [sys.executable, program]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline().decode().strip()
            assert port, f"moto did not start: {log.read_text()}"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.stdin.close()
            process.wait(10)
            process.stdout.close()


@contextmanager
def moto_s3(log: Path) -> Iterator[str]:
    """The URL of a running server, ended with the block."""
    with moto_process(__file__, log) as url:
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=20).close()
        yield url


def serve() -> None:
    """Print the port, then serve until standard input ends."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    application = DomainDispatcherApplication(create_backend_app)
    turn = threading.Lock()

    def one_at_a_time(environ: dict[str, object], start_response: object) -> list[bytes]:
        with turn:
            answer = application(environ, start_response)
            try:
                return list(answer)
            finally:
                if hasattr(answer, "close"):
                    answer.close()

    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve()
