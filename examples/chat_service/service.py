"""The application: the agent, where its conversations are kept, how the processes find each other, and the page.

    uvicorn --factory examples.chat_service.service:application --timeout-graceful-shutdown 15

Every process answers for every conversation. A call goes to the process that has the conversation; if that is killed,
another one opens it and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from repertory import AgentSpec, Model, OfflineModel, Peers, PostgresSessions, Runtime, SQLiteSessions, named_model
from repertory.asgi import Caller, ServiceLimits, asgi_app, bearer_tokens

PAGE = Path(__file__).with_name("page.html")
AGENT = "chat"
PROMPT = "You are a friendly conversation partner. Answer in a few sentences."


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    database: str = "chat_service_data/chat.db"
    """`CHAT_SERVICE_DATABASE`: `postgresql://...` for several machines, or a file for the processes of one."""
    listen: str | None = None
    """`CHAT_SERVICE_LISTEN`: where the other processes reach this one, such as 10.0.0.5:7000. Without it: a socket that
    only this machine has.
    """
    secret: str | None = field(default=None, repr=False)
    """`CHAT_SERVICE_SECRET`: what all processes know, at least 16 characters; needed with `listen`, on loopback too."""
    token: str | None = field(default=None, repr=False)
    """`CHAT_SERVICE_TOKEN`: what callers must send, at least 16 characters. Without it only this machine may call."""
    version: str = ""
    """`CHAT_SERVICE_VERSION`: of the program. New conversations go to the highest one, so a deploy moves them over."""
    model: str = ""
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, a Bedrock id, and so on. Empty: rules, without an account."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        """Read them."""
        return cls(
            environ.get("CHAT_SERVICE_DATABASE", cls.database),
            environ.get("CHAT_SERVICE_LISTEN"),
            environ.get("CHAT_SERVICE_SECRET"),
            environ.get("CHAT_SERVICE_TOKEN"),
            environ.get("CHAT_SERVICE_VERSION", cls.version),
            environ.get("REPERTORY_MODEL", cls.model),
        )


def place_of(settings: Settings) -> PostgresSessions | SQLiteSessions:
    """Where conversations are kept."""
    if settings.database.startswith("postgres"):
        return PostgresSessions(settings.database)
    Path(settings.database).parent.mkdir(parents=True, exist_ok=True)
    return SQLiteSessions(settings.database)


def runtime_of(settings: Settings) -> Runtime:
    """The runtime of one process, with its agent."""
    runtime = Runtime(
        sessions=place_of(settings),
        peers=Peers(listen=settings.listen, secret=settings.secret, version=settings.version),
        drain_timeout_s=10,  # after the server has waited for its requests
        on_fatal="signal",
    )
    model: Model = named_model(settings.model) if settings.model else OfflineModel()
    runtime.agent(AgentSpec(name=AGENT, model=model, system_prompt=PROMPT))
    return runtime


async def page(request: Request) -> Response:
    """The page. It asks the API of the same server, which `GET /openapi.json` describes."""
    return FileResponse(PAGE, headers={"Content-Security-Policy": "default-src 'self' 'unsafe-inline'"})


def application(settings: Settings | None = None) -> Starlette:
    """The application of one process. A server enters the runtime when it starts, and drains it when it stops."""
    settings = settings or Settings.of(os.environ)
    authenticate = bearer_tokens({settings.token: Caller(tenant="chat")}) if settings.token else None
    app = asgi_app(
        runtime_of(settings),
        authenticate=authenticate,
        limits=ServiceLimits(rate_per_s=20, burst=40),
    )
    app.add_route("/", page)
    return app
