"""What a command runs: `module:attribute`, the runtime of a program."""

from __future__ import annotations

import inspect
import os
import re
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.app.host.runtime import Runtime

FORM = "a runtime is named module:attribute, such as service:runtime"
_NAME = re.compile(r"([\w.]+):([\w.]+)")


def load_target(text: str) -> Runtime:
    """The runtime of this name: `module:attribute`, where the attribute is a `Runtime` with its agents, or a function
    without arguments that returns one. The module is imported, also from the current folder.

    Errors: `Invalid` for another form, and for what is no runtime; `NotFound` for a module or an attribute that is not
    there. What the module raises while it is imported, and what the function raises, is raised as it is.
    """
    from repertory.app.host.runtime import Runtime  # loaded when used

    named = _NAME.fullmatch(text)
    if named is None:
        raise Invalid(FORM, got=text)
    found: object = _module(named[1])
    for part in named[2].split("."):
        if not hasattr(found, part):
            raise NotFound(f"{named[1]} has no {part}", target=text)
        found = getattr(found, part)
    if not isinstance(found, Runtime) and callable(found):
        found = found()
    if isinstance(found, Runtime):
        return found
    if inspect.iscoroutine(found):
        found.close()
        raise Invalid("the function that makes the runtime is not async: it only makes it", target=text)
    text_of = f"{text} is no Runtime, and no function that returns one"
    raise Invalid(text_of, got=type(found).__name__)


def _module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFound(f"there is no module {error.name} in {here} or on Python's path", target=name) from error
        raise
