"""Programs that commands run: `module:runtime`, as web servers name an application."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from repertory.app.configuration.sources import find_modules_in, load_named
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.app.host.runtime import Runtime


def load_target(text: str) -> Runtime:
    """The `Runtime` of `module:name`, or what the function of that name returns. Modules in the working directory are
    found. Errors: `Invalid` saying what is not there, or what it is instead.
    """
    find_modules_in(Path.cwd())
    found: Any = load_named(text)
    from repertory.app.host.runtime import Runtime  # the target has loaded it

    if not isinstance(found, Runtime) and callable(found):
        found = found()
    if not isinstance(found, Runtime):
        raise Invalid("a target is a Runtime, or a function that makes one", target=text, got=type(found).__name__)
    return found
