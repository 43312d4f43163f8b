"""The destinations of a runtime, as a program names them: addresses of webhooks, and functions."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypedDict, cast

import anyio

from repertory.actors.delivery_events import Destination, Destinations, SendEvent
from repertory.app import wings
from repertory.backends.worker_threads import run_foreign
from repertory.core.deliveries import (
    GIVE_UP_S,
    RETRY_S,
    DeliveryEvent,
    DeliveryType,
    TryFailed,
    check_event_types,
    check_plan,
)
from repertory.core.ids import check_id
from repertory.core.interrupts import Interrupt
from repertory.errors import AlreadyExists, Invalid
from repertory.logs import WARNING, note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.core.messages import Json

TIMEOUT_S = 20.0
_log = logging.getLogger("repertory.deliveries")
_NOTHING = "graphs and swarms deliver nothing, so a destination of all agents gets none of their events"

EventReceiver: TypeAlias = Callable[[DeliveryEvent], Awaitable[object] | object]
"""A function of the program that takes an event. It may be async."""


class DeliveryOptions(TypedDict, total=False):
    """The options of a destination."""

    name: str | None
    """The name in the journals, and for `deliver_to`; a function needs one. None for the address."""
    secret: str | Sequence[str] | None
    """The secret that signs a webhook, `whsec_` and base64; the runtime's without. Of several, each signs. A function
    has none.
    """
    agents: Collection[str] | None
    """The names of the agents whose events are delivered; None for all."""
    timeout_s: float
    """Seconds that a try may take: 20."""
    retry_s: Sequence[float]
    """Seconds from one try to the next; the last one is repeated. From 5 s to a day."""
    give_up_s: float
    """Seconds after which a try that fails is the last one: 3 days."""
    answer_link: Callable[[Interrupt], str] | None
    """Makes the link by which a person answers a question, such as `AnswerLinks(...).link`; None for no links. It is
    called with the question as a call returns it: with its tool, its input and who may answer.
    """


class NamedDestinations(Destinations):
    """The destinations of a runtime."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str | Sequence[str] | None) -> None:
        """`secret`: signs webhooks that have no secret of their own. Errors: `Invalid` for what is none."""
        super().__init__()
        self._secret = secret
        if secret is not None:
            wings.webhooks().check_secrets(secret)
            self.address_of = self._made_of_address

    def add(
        self, to: str | EventReceiver, on: object, options: DeliveryOptions, orchestrators: Collection[str]
    ) -> None:
        """Add a destination. `orchestrators`: the names of graphs and swarms. Errors: `Invalid`, `AlreadyExists`."""
        unknown = {*options} - {*DeliveryOptions.__optional_keys__}
        if unknown:
            raise Invalid("a destination has no such option", got=sorted(unknown))
        events, given = check_event_types(on), options.get("name")
        name = check_id(given, "name") if given is not None else to if isinstance(to, str) else None
        if name is None:
            raise Invalid("a function that takes deliveries has a name, which the journals keep: name='billing'")
        agents, timeout_s = options.get("agents"), options.get("timeout_s", TIMEOUT_S)
        plan = check_plan(options.get("retry_s", RETRY_S), options.get("give_up_s", GIVE_UP_S))
        if isinstance(agents, str):
            raise Invalid("agents is a list of names", got=agents)
        if isinstance(to, str):
            secret = options.get("secret", self._secret)
            if secret is None:
                raise Invalid("a webhook is signed: give a secret, such as that of repertory.webhook_secret()")
            send = wings.webhooks().sender(to, secret, check_plan([timeout_s], 1.0).retry_s[0], public=False)
        elif callable(cast("object", to)):
            _check_receiver(to, options)
            send = partial(_call, to, check_plan([timeout_s], 1.0).retry_s[0])
        else:
            raise Invalid("deliveries go to the address of a webhook, or to a function", got=type(to).__name__)
        link = options.get("answer_link")
        if link is not None:
            if not callable(cast("object", link)):
                raise Invalid("answer_link is a function that makes the link of a question", got=type(link).__name__)
            send = partial(_with_links, link, send)
        if name in self.by_name:
            raise AlreadyExists("there is a destination of this name", name=name)
        made = Destination(
            name=name,
            events=frozenset(events),
            agents=None if agents is None else frozenset(agents),
            send=send,
            plan=plan,
        )
        check_delivers_none([made], orchestrators)
        self.by_name[name] = made

    def _made_of_address(self, name: str) -> Destination | None:
        if "://" not in name or self._secret is None:
            return None
        send: SendEvent = wings.webhooks().sender(name, self._secret, TIMEOUT_S, public=True)
        return Destination(name=name, events=frozenset[DeliveryType](), agents=None, send=send)


def check_delivers_none(destinations: Iterable[Destination], orchestrators: Collection[str]) -> None:
    """Refuse a destination of a graph or swarm, which delivers nothing, and warn where one is of all agents. Errors:
    `Invalid`.
    """
    for destination in destinations:
        if named := sorted((destination.agents or frozenset[str]()).intersection(orchestrators)):
            raise Invalid("graphs and swarms deliver nothing: name agents", got=named, destination=destination.name)
        if destination.agents is None and destination.events and orchestrators:
            note(_log, WARNING, _NOTHING, destination=destination.name, orchestrators=[*orchestrators])


def _check_receiver(receiver: EventReceiver, options: DeliveryOptions) -> None:
    """Refuse a function that no event can be given to, and a secret that would sign nothing. Errors: `Invalid`."""
    if options.get("secret") is not None:
        raise Invalid("a function gets events unsigned: a secret is for the address of a webhook")
    try:
        signature = inspect.signature(receiver)
    except (TypeError, ValueError):  # Some functions written in C do not say what they take.
        return
    try:
        signature.bind(None)
    except TypeError:
        raise Invalid("a function that takes deliveries is called with one event", got=str(signature)) from None


async def _with_links(link: Callable[[Interrupt], str], send: SendEvent, event: DeliveryEvent) -> TryFailed | None:
    """Send the event with the link of each of its questions. An error of the program's function is a failed try."""
    asked = event.data.get("interrupts")
    if event.type == "question" and isinstance(asked, list):
        linked: list[Json] = []
        for one in cast("list[dict[str, Json]]", asked):
            expires_at = cast("float | None", one.get("expires_at"))
            question = Interrupt(
                id=str(one["id"]),
                name=str(one["name"]),
                reason=one["reason"],
                expires_at=expires_at,
                tool=cast("str | None", one.get("tool")),
                input=one.get("input"),
                session_id=event.session_id,
                may_answer=tuple(cast("list[str]", one.get("may_answer") or [])),
            )
            linked.append({**one, "answer_link": link(question)})
        event = replace(event, data={**event.data, "interrupts": linked})
    return await send(event)


async def _call(receiver: EventReceiver, timeout_s: float, event: DeliveryEvent) -> TryFailed | None:
    """Give the event to a function of the program. Its errors are failed tries."""
    with anyio.move_on_after(timeout_s):
        if any(map(inspect.iscoroutinefunction, (receiver, type(receiver).__call__))):
            await cast("Awaitable[object]", receiver(event))
        else:
            made = await run_foreign(lambda: receiver(event), grace_s=0.5)
            if inspect.isawaitable(made):
                await made
        return None
    return TryFailed(error=f"it took longer than {timeout_s:g} s")
