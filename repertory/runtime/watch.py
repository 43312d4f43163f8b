"""Being told when another actor has ended for good. A restart is not an end."""

from __future__ import annotations

from dataclasses import dataclass

from repertory.runtime.exit import ExitReason
from repertory.runtime.ref import ActorRef


@dataclass(frozen=True, slots=True)
class Down:
    """An actor that was watched has stopped and will not be restarted. Handled by `on_down`."""

    ref: ActorRef[object]
    reason: ExitReason


def watch(watcher: ActorRef[object], target: ActorRef[object]) -> None:
    """Have `Down` put into the watcher's system lane when the target ends; at once if it has ended. Once per pair."""
    if target.ended is not None:
        watcher.mailbox.offer_system(Down(target, target.ended))
    elif target.watchers is None:
        target.watchers = {watcher: None}
    else:
        target.watchers[watcher] = None


def unwatch(watcher: ActorRef[object], target: ActorRef[object]) -> None:
    """Undo `watch`."""
    if target.watchers is not None:
        target.watchers.pop(watcher, None)


def announce_end(target: ActorRef[object], reason: ExitReason) -> None:
    """The target has ended for good: tell who watches."""
    target.ended = reason
    watchers, target.watchers = target.watchers, None
    for watcher in watchers or ():
        if watcher.ended is None:
            watcher.mailbox.offer_system(Down(target, reason))
