"""`ContextInjector`: tells the model something in single calls, such as the time, without it being part of the
conversation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from repertory.actors.hooks.injections import Injection, InjectionPredicate, RenderContent
from repertory.app.agent.plugins import Plugin
from repertory.app.host.tracing import tell_left_out
from repertory.core.injection import OCCASIONS, Occasion
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.hooks.registry import HookRegistry

TIMEOUT_S = 2.0
"""How long a call of the model waits for a renderer that was given no other bound."""
_NAME = "context-injector"


class ContextInjector(Plugin):
    """Adds what `render_content` gives to the last message of the user's, in one model call at a time.

    `render_content(context)`, synchronous or not, gives a text, content blocks, or None for nothing; see
    `InjectionContext`. It is asked again for each call, and what it gives is never kept: not in `agent.messages`, the
    journal or a snapshot. The model is shown it as it is, so escape in it what others have written.

    `trigger`: `userTurn` (None means this) when the user has just said something, `everyTurn` also between the tools of
    a turn, or a function of the `InjectionContext`, synchronous or not, that says whether. `timeout_s`: seconds for
    trigger and renderer together. What fails or takes longer is logged, the call is made without it, and the result
    says so (`metrics.left_out`), as does an event on the caller's span. Several
    injectors are asked at the same time, and their texts stand in the order of the plugins. `name`: in the log; those
    without one are numbered, and two with the same are refused.

    Errors: `Invalid` for a trigger or a time that is none.
    """

    def __init__(
        self,
        render_content: RenderContent,
        *,
        name: str | None = None,
        trigger: Occasion | InjectionPredicate | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not callable(render_content):
            raise Invalid(
                "render_content is a function of an InjectionContext", got=repr(cast("object", render_content))
            )
        if trigger is not None and trigger not in OCCASIONS and not callable(trigger):
            raise Invalid(f"a trigger is {' or '.join(OCCASIONS)}, or a function", got=trigger)
        if not 0 < timeout_s < math.inf:
            raise Invalid("timeout_s is a positive number of seconds", got=timeout_s)
        self.name = name or _NAME
        self.may_repeat = not name
        self._render = render_content
        self._trigger: Occasion | InjectionPredicate = trigger or "userTurn"
        self._timeout_s = timeout_s

    def init_agent(self, agent: Any) -> None:
        """Have the agent's model calls ask this injector."""
        hooks = cast("HookRegistry", agent.hooks)
        injection = Injection(
            name=_free_name(self.name, hooks) if self.may_repeat else self.name,
            render=self._render,
            trigger=self._trigger,
            timeout_s=self._timeout_s,
            told=tell_left_out,
        )
        hooks.add_injection(injection)


def _free_name(name: str, hooks: HookRegistry) -> str:
    taken = {injection.name for injection in hooks.injections}
    number = 1
    while (numbered := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return numbered
