"""A plugin of pytest for the SDK's own tests: `import strands` means this package, and what is private to the SDK, or
not here, is a stand-in that fails when it is used. Without it a file whose first lines name such a thing could not be
looked at.
"""

from __future__ import annotations

import dis
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

import repertory.strands
from repertory.compat.modules import MirrorModule, install

LIBRARIES = {
    "anthropic": "anthropic",
    "boto3": "boto3",
    "genai": "google.genai",
    "litellm": "litellm",
    "metrics_api": "opentelemetry.metrics",
    "ollama": "ollama",
    "openai": "openai",
    "uuid": "uuid",
    "writerai": "writerai",
}
"""What modules of the SDK import whole, so that tests find it there and replace a member of it."""


class _StandInType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"{cls.__name__}.{name}")

    def __iter__(cls) -> Any:
        return iter(())

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


def stand_in(name: str) -> type:
    """A class that may be named, subclassed and subscribed, and not be made."""

    def fail(self: object, *arguments: object, **keywords: object) -> None:
        raise AssertionError(f"{name} is not here")

    fields = {"__init__": fail, "__class_getitem__": classmethod(lambda cls, of: cls)}
    return _StandInType(name, (Exception,), fields)


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"{self.__name__}.{name}")


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


class _StandInFinder(MetaPathFinder):
    """Finds what no other finder has found, or has refused."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, _StandInLoader(), is_package=True) if _is_mirrored(fullname) else None


def _is_mirrored(name: str) -> bool:
    return name.startswith(f"{repertory.strands.__name__}.")


def _spared(finder: Any) -> None:
    found = finder.find_spec

    def find_spec(fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        try:
            return found(fullname, path, target)
        except ImportError:
            return None

    finder.find_spec = find_spec


def _imports(frame: FrameType) -> bool:
    """False where a function of a test reads the attribute itself: it wants the error."""
    code = frame.f_code
    is_import = dis.opname[code.co_code[frame.f_lasti]] == "IMPORT_FROM"
    return is_import or code.co_name == "<module>" or "/test_" not in code.co_filename


def _stand_in() -> None:
    named = MirrorModule.__getattr__

    def find(self: MirrorModule, name: str) -> object:
        try:
            return named(self, name)
        except (AttributeError, ImportError):
            if name in LIBRARIES:
                return import_module(LIBRARIES[name])
            if name.startswith("__") or not (name.startswith("_") or _imports(sys._getframe(1))):
                raise
            return stand_in(f"{self.__name__}.{name}")

    MirrorModule.__getattr__ = find
    for each in sys.meta_path:
        if type(each).__name__ == "_MirrorFinder":
            _spared(each)
    sys.meta_path.append(_StandInFinder())


install()
_stand_in()
