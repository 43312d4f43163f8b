"""A `Runtime` as an HTTP service, for any ASGI server: `app = asgi_app(runtime)`.

`docs/guides/services/serving.md` shows it. Needs the extra `serve`.
"""

from __future__ import annotations

try:
    import starlette
except ImportError as error:
    raise ImportError(f"repertory.asgi needs starlette ({error}): pip install 'repertory[serve]'") from error

from repertory.app.asgi.app import asgi_app
from repertory.app.asgi.problems import Problem, problem_of, problem_response
from repertory.app.asgi.service import Authenticate, Caller, Service, bearer_tokens
from repertory.core.callers import CallerRules
from repertory.core.serving.admission import ServiceLimits

del starlette

__all__ = [
    "Authenticate",
    "Caller",
    "CallerRules",
    "Problem",
    "Service",
    "ServiceLimits",
    "asgi_app",
    "bearer_tokens",
    "problem_of",
    "problem_response",
]
