"""`import repertory` is light, and importing any of its modules does nothing. Our decisions."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests.source_tree import PACKAGE, ROOT, read

pytestmark = pytest.mark.real_time

LOADED_WHEN_NEEDED = [
    "aiobotocore",
    "aiofiles",
    "aiohttp",
    "anthropic",
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "anyio._core._eventloop",
    "asyncio",
    "botocore",
    "cedarpy",
    "httpx",
    "httpx2",
    "litellm",
    "mcp",
    "ollama",
    "openai",
    "prompt_toolkit",
    "pydantic_monty",
    "opentelemetry",
    "pydantic",
    "rich",
    "sqlite3",
    "ssl",
    "trio",
    "uvloop",
    "writerai",
]


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter that writes no byte code."""
    command = [sys.executable, "-B", "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)


def test_import_repertory_loads_no_heavy_library() -> None:
    program = "import sys, repertory; print(*(name for name in sys.argv[1:] if name in sys.modules))"
    done = _run(program, *LOADED_WHEN_NEEDED)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.split(), f"loaded by `import repertory`: {done.stdout}"


def test_the_first_agent_loads_no_heavy_library_and_no_store() -> None:
    done = _run("import sys; from repertory import Agent, Runtime, tool; Agent(); print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert loaded.intersection(LOADED_WHEN_NEEDED) == {"anyio._core._eventloop"}
    stores = {name for name in loaded if name.startswith("repertory.backends.sessions.") and name.count(".") > 3}
    assert not stores, stores


def test_every_public_name_can_be_had_and_is_listed_by_dir() -> None:
    done = _run(
        "import repertory\n"
        "missing = [name for name in repertory.__all__ if getattr(repertory, name, None) is None]\n"
        "unlisted = set(repertory.__all__) - set(dir(repertory))\n"
        "repeated = len(repertory.__all__) - len(set(repertory.__all__))\n"
        "assert repertory.__all__ and not missing and not unlisted and not repeated, (missing, unlisted, repeated)"
    )
    assert done.returncode == 0, done.stderr


def test_a_name_that_does_not_exist_is_an_attribute_error_that_says_so() -> None:
    done = _run("import repertory; repertory.Agnet")
    assert "AttributeError" in done.stderr
    assert "Agnet" in done.stderr


def test_importing_any_module_does_nothing() -> None:
    """No network, no process, no thread, no file written, no environment read, no signal or logging set up."""
    done = _run(GUARD, *(file.module for file in read(PACKAGE)))
    assert done.returncode == 0, done.stdout + done.stderr


GUARD = """
import importlib, logging, os, signal, sys

FORBIDDEN = ("socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.mkdir",
    "os.rename", "os.remove", "os.rmdir", "os.putenv", "os.unsetenv", "os.chmod", "_thread.start_new_thread",
    "sqlite3.connect", "tempfile.mkdtemp", "tempfile.mkstemp", "signal.pthread_kill")
effects = []

def ours():
    frame = sys._getframe(2)
    while frame:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("repertory"):
            return name
        if not name.startswith(("os", "_collections_abc", "collections", "pathlib", "__main__", "posixpath")):
            return None
        frame = frame.f_back

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

def audit(event, arguments):
    writes = event == "open" and arguments[2] & WRITING
    if writes or event in FORBIDDEN:
        effects.append(f"{current}: {event} {arguments[:1]}")
        raise PermissionError(effects[-1])

class Environment(type(os.environ)):
    def __getitem__(self, key):
        reader = ours()
        if reader:
            effects.append(f"{current}: {reader} read the environment: {key}")
        return super().__getitem__(key)

os.environ.__class__ = Environment
signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
handlers = list(logging.root.handlers)
sys.addaudithook(audit)
for current in sys.argv[1:]:
    importlib.import_module(current)
current = "all"
effects += [f"signal {n}" for n, handler in signals.items() if signal.getsignal(n) is not handler]
effects += ["logging was set up"] * (handlers != logging.root.handlers)
print("\\n".join(effects))
sys.exit(bool(effects))
"""


def test_what_is_published_holds_the_whole_package_and_nothing_else(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    (archive,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    pages = [path for path in PACKAGE.rglob("*") if path.suffix in {".html", ".css", ".js", ".svg", ".pyi"}]
    package = {path.relative_to(ROOT).as_posix() for path in (*PACKAGE.rglob("*.py"), *pages)}
    package.add("repertory/py.typed")
    with zipfile.ZipFile(wheel) as built:
        assert {name for name in built.namelist() if ".dist-info/" not in name} == package
    with tarfile.open(archive) as built:
        names = {name.partition("/")[2] for name in built.getnames()}
    assert names - package == {
        ".gitignore",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "SECURITY.md",
        "pyproject.toml",
        "requirements.lock",
    }
    assert package <= names
    assert not [name for name in names if "demo" in name]
