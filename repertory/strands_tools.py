"""The tools of the `strands-agents-tools` package, under the name that `sed 's/from strands/from repertory.strands/'`
gives it.

They are that package's own, run with `repertory.strands` in the place of the SDK, unless the SDK is loaded already.
Errors: `ImportError` where the package is not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from repertory.compat.modules import install

_PACKAGE = "strands_tools"


def _tools(name: str) -> ModuleType:
    if "strands" not in sys.modules:
        install()
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name == _PACKAGE:
            raise ImportError(f"{name} needs: pip install strands-agents-tools", name=name) from error
        raise


class _Alias(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = _tools(module.__name__.removeprefix("repertory."))


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, _Alias(), is_package=True) if fullname.startswith(f"{__name__}.") else None


__path__: list[str] = []
sys.meta_path.append(_Finder())


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return _tools(f"{_PACKAGE}.{name}")
