"""Start the server, or send it a webhook as Slack would."""

from __future__ import annotations

import argparse
import json
import os
from time import time

import anyio
import httpx
import uvicorn

from .bot import Settings, application, signature


async def send(typed: argparse.Namespace) -> int:
    """Send a message of a person. Returns the status; waits for a server that does not listen yet."""
    message = {"type": "message", "channel": "C1", "user": "U1", "ts": "1700000000.000100", "text": typed.text}
    body = json.dumps({"type": "event_callback", "event_id": typed.event, "event": message}).encode()
    sent_at = str(int(time() - typed.age_s))
    signed = signature(Settings.of(os.environ).secret, sent_at, body)
    headers = {"X-Slack-Request-Timestamp": sent_at, "X-Slack-Signature": signed}
    async with httpx.AsyncClient() as client:
        with anyio.fail_after(60):
            while True:
                try:
                    return (await client.post(typed.url, content=body, headers=headers)).status_code
                except httpx.ConnectError:
                    await anyio.sleep(0.2)


def main() -> None:
    """Do one command."""
    parser = argparse.ArgumentParser(prog="python -m examples.webhook_bot", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serving = commands.add_parser("serve", help="start the server")
    serving.add_argument("--host", default="127.0.0.1")
    serving.add_argument("--port", type=int, default=8000)
    sending = commands.add_parser("send", help="send a webhook, signed with WEBHOOK_BOT_SECRET")
    sending.add_argument("text")
    sending.add_argument("--event", required=True, help="the id of the event")
    sending.add_argument("--age-s", type=float, default=0, help="how old it is")
    sending.add_argument("--url", default="http://127.0.0.1:8000/slack/events")
    typed = parser.parse_args()
    if typed.command == "serve":
        uvicorn.run(application(), host=typed.host, port=typed.port, timeout_graceful_shutdown=5, log_level="warning")
    else:
        print(anyio.run(send, typed))


if __name__ == "__main__":
    main()
