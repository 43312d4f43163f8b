"""Makes the modules of `repertory.strands` from its table: each is made when it is imported, and each name in it is
loaded when it is used.
"""

from __future__ import annotations

import logging
import runpy
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from repertory.compat.table import DEPRECATED, MODULES, UNMADE, location_now, reason_absent

ROOT = "repertory.strands"
_SDK = "strands"


class MirrorModule(ModuleType):
    """One module of the SDK: a name for each of its public names."""

    def __getattr__(self, name: str) -> object:
        path = _path_of(self)
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        target = MODULES[path].get(name)
        if target is None:
            whole = f"{path}.{name}" if path else name
            if whole in MODULES:
                return import_module(f"{ROOT}.{whole}")
            refuse_absent(whole)
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        home, _, attribute = target.partition(":")
        if target.startswith(UNMADE):
            from repertory.compat import unmade as found  # loaded when used
        else:
            found = import_module(home)
        value = getattr(found, attribute)
        moved = location_now(path, name)
        message = DEPRECATED.get(f"{path}.{name}")
        if moved is not None:
            now = name if name in MODULES[moved] else attribute
            message = f"{name} has been moved to production: use {now} of strands.{moved}"
        if message is None:
            setattr(self, name, value)
        else:
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """A name of the table stays what it is when a module of the same name is imported: `vended_tools.notebook`."""
        if not (isinstance(value, ModuleType) and name in MODULES.get(_path_of(self), {})):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *MODULES[_path_of(self)]})


def _path_of(module: ModuleType) -> str:
    return module.__name__.removeprefix(ROOT).removeprefix(".")


def refuse_absent(path: str) -> None:
    """Raises `ImportError` for what the SDK has and this package has not, and names what to use instead."""
    reason = reason_absent(path)
    if reason is not None:
        raise ImportError(f"strands.{path} is not here: {reason}", name=f"{ROOT}.{path}")


class _MirrorLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MirrorModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        path = _path_of(module)
        warns = {name for name in MODULES[path] if location_now(path, name) or f"{path}.{name}" in DEPRECATED}
        vars(module)["__all__"] = sorted(MODULES[path].keys() - warns)
        module.__doc__ = f"What `strands.{path}` of the Strands Agents SDK is here."


class _InstallLoader(Loader):
    """`import repertory.strands.install`: from now on `import strands` means this package."""

    def exec_module(self, module: ModuleType) -> None:
        install()


class _MirrorFinder(MetaPathFinder):
    """Finds the modules below `repertory.strands`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{ROOT}."):
            return None
        name = fullname.removeprefix(f"{ROOT}.")
        if name == "install":
            return ModuleSpec(fullname, _InstallLoader())
        if name in MODULES:
            return ModuleSpec(
                fullname, _MirrorLoader(), is_package=any(each.startswith(f"{name}.") for each in MODULES)
            )
        refuse_absent(name)
        return None


def mirror(package: ModuleType) -> None:
    """Make the package one of these modules, and those below it importable."""
    package.__class__ = MirrorModule
    if not any(isinstance(each, _MirrorFinder) for each in sys.meta_path):
        sys.meta_path.append(_MirrorFinder())


# The SDK's own name for all this.


class _SameModule(Loader):
    """Gives a module of `repertory.strands` under the SDK's name as well."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(module.__name__.replace(_SDK, ROOT, 1))


class _SdkFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _SDK and not fullname.startswith(f"{_SDK}."):
            return None
        return ModuleSpec(fullname, _SameModule(), is_package=True)


def install() -> None:
    """Make `import strands` mean `repertory.strands`, in this process and from now on. A second call does nothing.

    Errors: `ImportError` when the real SDK is loaded already, since its objects and these would meet.
    """
    if any(isinstance(each, _SdkFinder) for each in sys.meta_path):
        return
    loaded = sys.modules.get(_SDK)
    if loaded is not None:
        where = getattr(loaded, "__file__", None)
        raise ImportError(f"the SDK itself is loaded already, from {where}: import this module first", name=_SDK)
    sys.meta_path.insert(0, _SdkFinder())
    from repertory.app.agent.agent import Agent  # loaded when used
    from repertory.backends.models.provider import SettingsPolicy  # loaded when used
    from repertory.compat.programs import sdk_text  # loaded when used
    from repertory.core.result import AgentResult  # loaded when used

    Agent.tracks_messages = True
    AgentResult.written = sdk_text
    SettingsPolicy.warns = True
    logging.getLogger("repertory").parent = logging.getLogger(_SDK)  # Its programs set levels and handlers there.


def run_program() -> None:
    """Run the program that the command line names, as it is, with the arguments behind it."""
    usage = "usage: python -m repertory.strands PROGRAM [ARGUMENT ...]"
    if sys.argv[1:2] in (["-h"], ["--help"]):
        sys.stdout.write(f"{usage}\n\nRun a program of strands-agents as it is: its imports find Repertory.\n")
        return
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(usage)
    if not Path(sys.argv[1]).exists():
        sys.exit(f"there is no program {sys.argv[1]!r}")
    install()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
