"""A `Runtime` as an HTTP service, for any ASGI server: `app = asgi_app(runtime)`.

`docs/guides/services/serving.md` shows it. Needs the extra `serve`.
"""

from __future__ import annotations

try:
    import starlette
except ImportError as error:
    raise ImportError(f"repertory.asgi needs starlette ({error}): pip install 'repertory[serve]'") from error

from repertory.core.admission import ServiceLimits
from repertory.core.callers import CallerRules
from repertory.service.http.app import asgi_app
from repertory.service.http.problems import Problem, problem_of, problem_response
from repertory.service.http.service import Authenticate, Caller, Service, bearer_tokens

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
