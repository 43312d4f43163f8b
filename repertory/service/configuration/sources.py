"""The things that a configuration refers to: files beside it, secrets, and objects of Python modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from repertory.errors import Invalid, RepertoryError
from repertory.service.configuration.decisions.checks import KeyPath
from repertory.service.configuration.decisions.reading import (
    BYTES_MAX,
    ConfigurationFault,
    ConfigurationFile,
    WrongConfiguration,
    read_configuration,
)
from repertory.service.configuration.decisions.tables import SecretSource

T = TypeVar("T")

FILE_NAME = "repertory.toml"
_SECRET_BYTES_MAX = 64 * 1024


def load_configuration(path: Path) -> ConfigurationFile:
    """The configuration in a file. Errors: `Invalid` without it, and when it cannot be read; `WrongConfiguration` with
    all that is wrong in it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise Invalid("there is no configuration file: write it, or name another", path=str(path)) from error
    except OSError as error:
        raise Invalid("the configuration file cannot be read", path=str(path), cause=error.strerror) from error
    if len(data) > BYTES_MAX:
        raise Invalid(f"a configuration has {BYTES_MAX} bytes at most", path=str(path))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        text = f"no TOML: line {line} is not UTF-8"
        raise WrongConfiguration([ConfigurationFault(str(path), "", text)]) from None
    return read_configuration(text, str(path))


def load_named(name: str) -> object:
    """The object of `module:name`, or of `module:name.attribute`. Errors: `Invalid` saying what is not there, or what
    the module raised when it was imported.
    """
    module_name, _, attributes = name.partition(":")
    if not module_name or not attributes:
        raise Invalid("an object of a module is named module:name", got=name)
    found: Any = _imported(module_name)
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            near = get_close_matches(attribute, dir(found), n=1)
            meant = f"; did you mean `{near[0]}`?" if near else ""
            raise Invalid(f"there is no `{attribute}` in `{getattr(found, '__name__', module_name)}`{meant}")
        found = getattr(found, attribute)
    return found


def _imported(name: str) -> object:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Invalid(f"there is no module `{error.name}` in the folder or on the Python path") from error
        raise Invalid(f"the module `{name}` cannot be imported: it needs `{error.name}`") from error
    except Exception as error:
        raise Invalid(f"the module `{name}` cannot be imported: {_cause(error)}") from error


def call_named(make: Callable[[], T]) -> T:
    """The result of a function of a module. Errors: `Invalid` saying what it raised, and where."""
    try:
        return make()
    except Exception as error:
        raise Invalid(f"it cannot be made: {_cause(error)}") from error


def _cause(error: Exception) -> str:
    text = f": {error}" if isinstance(error, RepertoryError | ImportError) else ""
    return f"{type(error).__name__}{text} (at {_raised_at(error)})"


def _raised_at(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "an unknown place" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def find_modules_in(folder: Path) -> None:
    """Have modules of this folder found, before those of the Python path."""
    if (text := str(folder)) not in sys.path:
        sys.path.insert(0, text)


class Sources:
    """The resolver of the references in one configuration, which collects their faults."""

    def __init__(self, file: ConfigurationFile, folder: Path, environ: Mapping[str, str]) -> None:
        """`folder`: the start of relative paths."""
        self.file = file
        self.folder = folder
        self.faults: list[ConfigurationFault] = []
        self._environ = environ
        self._secrets: set[str] = set()

    def wrong(self, path: KeyPath, text: str) -> None:
        """Note a fault. No secret that was resolved stays in the text."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        self.faults.append(self.file.fault(path, " ".join(text.split())))

    @contextmanager
    def telling(self, path: KeyPath) -> Generator[None]:
        """A block in which the error of a constructor becomes a fault of this key, and ends the block."""
        try:
            yield
        except (RepertoryError, ImportError, TypeError, ValueError, OSError) as error:
            self.wrong(path, str(error) or type(error).__name__)

    def made(self, path: KeyPath, make: Callable[[], T]) -> T | None:
        """The object that `make` returns; None, with a fault, where it refuses."""
        with self.telling(path):
            return make()
        return None

    def called(self, path: KeyPath, make: Callable[[], object]) -> object | None:
        """The object that a function of a module returns; None, with a fault, where it fails, whatever it raises."""
        return self.made(path, lambda: call_named(make))

    def path(self, text: str) -> Path:
        """A path of the configuration: relative to its folder, `~` for the home."""
        return self.folder / Path(text).expanduser()

    def text_of(self, name: str, path: KeyPath) -> str | None:
        """The text of a file; None, with a fault, where it cannot be read."""
        location = self.path(name)
        try:
            with location.open("rb") as file:
                data = file.read(BYTES_MAX + 1)
            if len(data) <= BYTES_MAX:
                return data.decode("utf-8")
            self.wrong(path, f"the file {location} is larger than {BYTES_MAX} bytes")
        except UnicodeDecodeError:
            self.wrong(path, f"the file {location} is not UTF-8")
        except OSError as error:
            self.wrong(path, f"the file {location} cannot be read: {error.strerror}")
        return None

    def secret(self, source: SecretSource, path: KeyPath) -> str | None:
        """The secret; None, with a fault, where it is not set."""
        found: str | None = source.plain
        if source.env is not None:
            found = self._environ.get(source.env)
            if not found:
                self.wrong(path, f"the variable {source.env} of the environment is not set, or empty")
        elif source.file is not None:
            found = self._secret_file(source.file, path)
        if found:
            self._secrets.add(found)
        return found or None

    def _secret_file(self, name: str, path: KeyPath) -> str | None:
        location = self.path(name)
        try:
            with location.open("rb") as file:
                data = file.read(_SECRET_BYTES_MAX + 1)
            text = data.decode("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            self.wrong(path, f"the secret's file {location} cannot be read: {why}")
            return None
        if not text or len(data) > _SECRET_BYTES_MAX:
            self.wrong(path, f"the secret's file {location} is {'too large' if text else 'empty'}")
            return None
        return text

    def text_or_secret(self, given: str | SecretSource, path: KeyPath) -> str | None:
        """The text as it is, or the secret."""
        return self.secret(given, path) if isinstance(given, SecretSource) else given

    def named(self, name: str, path: KeyPath) -> object | None:
        """The object of `module:name`; None, with a fault, where there is none."""
        return self.made(path, lambda: load_named(name))
