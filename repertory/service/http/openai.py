"""The OpenAI-compatible API: agents as models, for clients that exist. Start with `openai_requests.py`, which says how
a request that is sent again is recognized.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from repertory.service.http.openai_chat import ChatCompletions
from repertory.service.http.openai_requests import Clients, rendered, told
from repertory.service.http.openai_responses import Responses

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from repertory.service.http.service import Caller, Service


def routes(service: Service) -> list[BaseRoute]:
    """The routes of the API, below `/v1`."""
    clients = Clients(service)
    chat, responses = ChatCompletions(clients), Responses(clients)
    table: list[tuple[str, str, Callable[[Request, Caller], Awaitable[Response]]]] = [
        ("GET", "/v1/models", clients.models),
        ("GET", "/v1/models/{model}", clients.model),
        ("POST", "/v1/chat/completions", chat.create),
        ("POST", "/v1/responses", responses.create),
        ("GET", "/v1/responses/{response}", responses.retrieve),
        ("POST", "/v1/responses/{response}/cancel", responses.cancel),
        ("POST", "/v1/conversations", responses.new_conversation),
        ("GET", "/v1/conversations/{conversation}", responses.conversation),
    ]
    return [
        Route(path, endpoint=service.endpoint(told(handler), render=rendered), methods=[method])
        for method, path, handler in table
    ]
