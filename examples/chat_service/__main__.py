"""Start one server of the service. Start as many as you like, on any ports."""

from __future__ import annotations

import argparse

import uvicorn

from .service import application

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.chat_service", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    typed = parser.parse_args()
    # SIGTERM and Ctrl-C: no new requests, 15 s for those that run, then the runtime drains.
    uvicorn.run(application(), host=typed.host, port=typed.port, timeout_graceful_shutdown=15, log_level="warning")
