"""A project of Django in one file, whose ASGI server starts and stops a runtime.

`uvicorn tests.worker.django_host:app`.

Django itself has no part in a server's start and end, so the application around it has. The database is `$DATABASE`.
`python -m tests.worker.django_host FILE` is a management command: it does the jobs of a queue in a file, and ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management.base import BaseCommand
from django.http import HttpRequest, JsonResponse
from django.urls import path

from repertory import AgentSpec, Runtime, SQLiteQueue, SQLiteSessions, Worker
from tests.worker.obedient_model import ObedientModel

Message = MutableMapping[str, Any]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="not one", USE_TZ=True)
django.setup()
runtime = Runtime(sessions=SQLiteSessions(os.environ["DATABASE"]), drain_timeout_s=5, on_fatal="signal")
helper = runtime.agent(AgentSpec(name="helper", model=ObedientModel()))


async def say(request: HttpRequest, session: str) -> JsonResponse:
    """One turn."""
    import json

    said = json.loads(request.body)
    return JsonResponse({"text": str(await helper.session(session).invoke(said["text"]))})


async def health(request: HttpRequest) -> JsonResponse:
    del request
    return JsonResponse({"healthy": runtime.healthy}, status=200 if runtime.healthy else 503)


urlpatterns = [path("sessions/<session>/messages", say), path("healthz", health)]
_django = get_asgi_application()


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Django, and the start and the end of the server around it."""
    if scope["type"] != "lifespan":
        await _django(scope, receive, send)
        return
    await receive()
    await runtime.start()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    report = await runtime.stop()
    print(f"stopped ok={report.ok}", flush=True)
    await send({"type": "lifespan.shutdown.complete"})


class Command(BaseCommand):
    """`manage.py work FILE`."""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("file")

    def handle(self, *_: Any, **options: Any) -> None:
        async def work() -> None:
            async with runtime:
                stats = await Worker(runtime, SQLiteQueue(options["file"])).run(until_empty=True)
            self.stdout.write(f"finished {stats.finished}")

        anyio.run(work)


if __name__ == "__main__":
    Command().run_from_argv(["manage.py", "work", *sys.argv[1:]])
