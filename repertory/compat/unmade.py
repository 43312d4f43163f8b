"""Classes of the SDK that cannot be made here: programs may import them, ask `isinstance`, and register callbacks."""

from __future__ import annotations

from repertory.actors.hooks.events import BaseHookEvent
from repertory.compat.table import MODULES, UNMADE, reason_absent
from repertory.errors import Invalid


def __getattr__(name: str) -> type:
    path = next((path for path, names in MODULES.items() if names.get(name) == f"{UNMADE}{name}"), None)
    if path is None:
        raise AttributeError(name)

    def refuse(cls: type, *arguments: object, **options: object) -> None:
        raise Invalid(f"{name} cannot be made here: {reason_absent(path)}")

    bases = (BaseHookEvent,) if name.endswith("Event") else ()
    return globals().setdefault(name, type(name, bases, {"__init__": refuse}))
