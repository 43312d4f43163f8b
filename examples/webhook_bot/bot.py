"""The bot: a webhook becomes a job on disk before it is answered with 200, and a worker in the same process does it.

Slack repeats a webhook that is not answered within three seconds, and anybody may repeat one that was recorded. So:

- the signature covers the body and the time, and a time of more than five minutes ago is refused;
- the event's id is the token of the job, so the turn happens once;
- the answer to an event is noted once it is sent (`replies.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from repertory import (
    AgentResult,
    AgentSpec,
    Model,
    MultiAgentResult,
    OfflineModel,
    Runtime,
    SQLiteQueue,
    SQLiteSessions,
    TurnJob,
    Worker,
    named_model,
)

from .replies import OnceReplies, ReplyFile, SlackReplies

AGENT = "bot"
OLD_S = 300
"""How old a webhook may be."""
BODY_BYTES_MAX = 256 * 1024


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    secret: str = field(default="", repr=False)
    """`WEBHOOK_BOT_SECRET`: the signing secret of the Slack app. The bot does not start without one."""
    token: str = field(default="", repr=False)
    """`WEBHOOK_BOT_TOKEN`: the bot token of the Slack app, `xoxb-...`. Empty: answers go to a file."""
    slack: str = "https://slack.com"
    """`WEBHOOK_BOT_SLACK`: where Slack is."""
    data: Path = Path("webhook_bot_data")
    """`WEBHOOK_BOT_DATA`: the folder of the sessions, the jobs and the answers."""
    model: str = ""
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, a Bedrock id, and so on. Empty: rules, without an account."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        """Read them."""
        return cls(
            environ.get("WEBHOOK_BOT_SECRET", cls.secret),
            environ.get("WEBHOOK_BOT_TOKEN", cls.token),
            environ.get("WEBHOOK_BOT_SLACK", cls.slack),
            Path(environ.get("WEBHOOK_BOT_DATA", cls.data)),
            environ.get("REPERTORY_MODEL", cls.model),
        )


def signature(secret: str, sent_at: str, body: bytes) -> str:
    """What Slack sends as `X-Slack-Signature`."""
    return "v0=" + hmac.new(secret.encode(), f"v0:{sent_at}:".encode() + body, hashlib.sha256).hexdigest()


def is_genuine(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether a webhook is Slack's, and not an old one."""
    sent_at, signed = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
    if not sent_at.isascii() or not sent_at.isdigit() or abs(now - int(sent_at)) > OLD_S:
        return False
    return hmac.compare_digest(signature(secret, sent_at, body).encode(), signed.encode())


def job_of(webhook: Mapping[str, Any]) -> TurnJob | None:
    """The turn that an event asks for. None for what is no message of a person, such as one of the bot itself."""
    event = webhook.get("event", {})
    if event.get("type") not in ("message", "app_mention") or event.get("bot_id") or event.get("subtype"):
        return None
    if not event.get("text"):
        return None
    channel, thread = event["channel"], event.get("thread_ts") or event["ts"]
    return TurnJob(
        AGENT,
        f"{channel}-{thread}",  # a thread is a conversation
        event["text"],
        token=webhook["event_id"],
        attributes={"channel": channel, "thread": thread},
    )


class Bot:
    """The server's part and the worker's part, which share the queue."""

    def __init__(self, settings: Settings) -> None:
        os.makedirs(settings.data, exist_ok=True)
        self._secret = settings.secret
        self._queue = SQLiteQueue(settings.data / "jobs.db")
        send = (
            SlackReplies(settings.slack, settings.token)
            if settings.token
            else ReplyFile(settings.data / "replies.jsonl")
        )
        self._replies = OnceReplies(send, settings.data / "answered.db")
        self._runtime = Runtime(
            sessions=SQLiteSessions(settings.data / "conversations.db"), drain_timeout_s=10, on_fatal="signal"
        )
        model: Model = named_model(settings.model) if settings.model else OfflineModel()
        self._runtime.agent(AgentSpec(name=AGENT, model=model, system_prompt="You answer in a Slack thread. Be brief."))

    async def receive(self, request: Request) -> Response:
        """A webhook. It is answered when its job is on disk; with 5xx, Slack sends it again."""
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > BODY_BYTES_MAX:
                return Response(status_code=413)
        if not is_genuine(self._secret, request.headers, body, time()):
            return Response(status_code=401)
        webhook = json.loads(body)
        if webhook.get("type") == "url_verification":
            return JSONResponse({"challenge": webhook["challenge"]})
        if job := job_of(webhook):
            await self._queue.send(job)
        return Response()

    async def answer(self, job: TurnJob, outcome: AgentResult | MultiAgentResult | Exception) -> None:
        """Send an answer to the thread. It may be called again for a job whose answer was sent."""
        text = str(outcome) if isinstance(outcome, AgentResult) else "That did not work. Somebody will look at it."
        await self._replies.send(job.token, str(job.attributes["channel"]), str(job.attributes["thread"]), text)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        """The worker runs as long as the server. At the end running turns are finished, and others given back."""
        async with self._runtime:
            await Worker(self._runtime, self._queue, on_done=self.answer).start()
            yield


def application(settings: Settings | None = None) -> Starlette:
    """The application for a server."""
    settings = settings or Settings.of(os.environ)
    if not settings.secret:
        raise SystemExit("WEBHOOK_BOT_SECRET is not set: without it anybody could send webhooks")
    bot = Bot(settings)
    return Starlette(routes=[Route("/slack/events", bot.receive, methods=["POST"])], lifespan=bot.lifespan)
