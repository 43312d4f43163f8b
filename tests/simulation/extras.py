"""Runs the tests of what extras bring against their oldest and their newest releases, each in a fresh environment.

    python -m tests.simulation.extras [oldest] [newest] [beside]

`oldest`: each library of an extra as old as its range allows. `newest`: whatever the index has. `beside`: what is
installed next to `strands-agents[all]`, with LiteLLM. Needs uv and the package index.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/backends/models",
    "tests/backends/tools",
    "tests/backends/objects",
    "tests/compat/test_a2a.py",
    "tests/plugins/test_authorization.py",
    "tests/mcp/test_mcp_client.py",
)
_BOUND = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9.]+)")
_NAMED = ("a2a-sdk", "aiobotocore", "anthropic", "cedarpy", "google-genai", "mcp", "ollama", "openai", "writer-sdk")
BESIDE = ("strands-agents[all]", "repertory[all,litellm] @ {root}")


def oldest() -> list[str]:
    """The lower bounds of the libraries that speak to services, as pins."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds = {match[1]: match[2] for needs in extras.values() for need in needs if (match := _BOUND.match(need))}
    return [f"{name}=={_first(version)}" for name, version in sorted(bounds.items()) if name in _NAMED]


def _first(version: str) -> str:
    """The first release of a bound: `2` is `2.0.0`, `1.68` is `1.68.0`."""
    return ".".join([*version.split("."), "0", "0"][:3])


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    print("extras:", *command, flush=True)
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def environment(folder: Path, kind: str) -> Path:
    """The interpreter of a new environment with everything that the tests need."""
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("extras: needs uv: pip install uv")
    run(uv, "venv", "--quiet", "--python", sys.executable, folder / kind)
    python = folder / kind / "bin" / "python"
    needs = [f"{ROOT}[all]"]
    pins: list[str] = []
    if kind == "oldest":
        pins = oldest()
    elif kind == "beside":
        needs = [need.format(root=f"file://{ROOT}") for need in BESIDE]
    constraints = folder / f"{kind}.txt"
    constraints.write_text("\n".join(pins))
    run(uv, "pip", "install", "--quiet", "--python", python, "-c", constraints, *needs)
    dev = folder / f"{kind}-dev.txt"
    dev.write_text(subprocess.run([uv, "pip", "freeze", "--python", python], capture_output=True, text=True).stdout)
    held = [line for line in dev.read_text().splitlines() if line.partition("==")[0] in _NAMED]
    constraints.write_text("\n".join(held))
    run(uv, "pip", "install", "--quiet", "--python", python, "-c", constraints, "--group", ROOT / "pyproject.toml:dev")
    run(uv, "pip", "uninstall", "--quiet", "--python", python, "repertory")
    run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "--no-build-isolation", "-e", ROOT)
    print("extras:", kind, *held, flush=True)
    return python


def main() -> None:
    kinds = sys.argv[1:] or ["oldest", "newest", "beside"]
    with tempfile.TemporaryDirectory(prefix="repertory-extras-") as folder:
        for kind in kinds:
            python = environment(Path(folder), kind)
            run(python, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", *TESTS)


if __name__ == "__main__":
    main()
