"""Repertory runs LLM agents as supervised actors over a durable journal.

Every public name is importable from here and is loaded when it is first used, so `import repertory` costs next to
nothing. Which names there are, and where each is made, stands in `__init__.pyi`, for type checkers too.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from importlib.util import find_spec

from repertory.app import wings
from repertory.app.agent import extensions
from repertory.stubs import homes_of
from repertory.version import __version__ as __version__

_HOMES = homes_of(__spec__.loader.get_data(f"{__path__[0]}/__init__.pyi"))
_NAMES = sorted(_HOMES)
globals()["__all__"] = _NAMES  # Type checkers read the stub.


def _telemetry() -> wings.TelemetryWing:
    from repertory.telemetry import setup as telemetry  # loaded when used

    return telemetry


def _inspector() -> object:
    from repertory.inspector import server  # loaded when used

    return server


class _Extensions:
    """The makers of `extensions.Extensions`, and a wing."""

    @cached_property
    def webhooks(self):
        from repertory.webhooks import sending  # loaded when used

        return sending

    @cached_property
    def tool_folder(self):
        from repertory.compat.foreign_tools import ToolFolder

        return ToolFolder

    @cached_property
    def intervention_registry(self):
        from repertory.plugins.interventions import InterventionRegistry

        return InterventionRegistry

    @cached_property
    def foreign_tools(self):
        from repertory.compat.foreign_tools import foreign_tools

        return foreign_tools

    @cached_property
    def managed_context(self):
        from repertory.plugins.context_plugins import managed_context

        return managed_context

    @cached_property
    def hooked_or_placed(self):
        from repertory.compat.hooked_managers import hooked_or_placed

        return hooked_or_placed


_extensions = _Extensions()
extensions.made_by = _extensions
wings.telemetry, wings.inspector, wings.webhooks = _telemetry, _inspector, lambda: _extensions.webhooks
if any(find_spec(package) is None for package in ("starlette", "jinja2")):
    _NAMES.remove("Inspector")  # `from repertory import *` works without the extra `inspect` too.


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise _no_such_name(name)
    module, _, attribute = home.partition(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def _no_such_name(name: str) -> Exception:
    """The error for a name that is none. `from repertory import ...` drops an `AttributeError`, and its text with it;
    `hasattr` and everybody else need one.
    """
    from difflib import get_close_matches  # loaded when used
    from traceback import extract_stack

    same = [each for each in _NAMES if each.lower() == name.lower()]
    close = same or get_close_matches(name, _NAMES, 1, 0.8)
    if not close or name.startswith("_") or find_spec(f"{__name__}.{name}") is not None:
        return AttributeError(f"module 'repertory' has no attribute {name!r}")
    text = f"repertory has no {name!r}: did you mean {close[0]!r}?"
    imported = extract_stack(limit=3)[0].name == "_handle_fromlist"
    return ImportError(text, name=name) if imported else AttributeError(text)


def __dir__() -> list[str]:
    return sorted([*_NAMES, "__version__"])
