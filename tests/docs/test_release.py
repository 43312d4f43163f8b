"""What `make dist` builds: the same bytes each time, nothing but the package, and a program runs with it."""

from __future__ import annotations

import email
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from packaging.requirements import Requirement

import repertory
from tests.docs.markdown import examples
from tests.docs.running import agrees, environment
from tests.simulation.alone import USES
from tests.source_tree import ROOT

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = ("ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "requirements.lock")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EPOCH = "1700000000"


def copied(folder: Path) -> Path:
    """What a release is built of, elsewhere, with other times and modes."""
    folder.mkdir()
    left_out = shutil.ignore_patterns("__pycache__")
    for name in ("repertory", "scripts"):
        shutil.copytree(ROOT / name, folder / name, copy_function=shutil.copyfile, ignore=left_out)
    for name in (*SOURCES, "pyproject.toml", ".gitignore"):
        if (ROOT / name).exists():
            shutil.copyfile(ROOT / name, folder / name)
            (folder / name).chmod(0o600)
    return folder


def built(root: Path, folder: Path) -> Path:
    """A release, built of what is in a folder."""
    command = [sys.executable, "scripts/dist.py", str(folder)]
    surroundings = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    done = subprocess.run(command, cwd=root, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release."""
    return built(ROOT, tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def wheel(release: Path) -> Path:
    """The wheel of the release."""
    (found,) = release.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What the wheel says of itself."""
    with zipfile.ZipFile(wheel) as packed:
        return email.message_from_bytes(packed.read(f"repertory-{PROJECT['version']}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def components(release: Path) -> dict[str, Any]:
    """The list of components."""
    (found,) = release.glob("*.cdx.json")
    return json.loads(found.read_text(encoding="utf-8"))


def test_the_same_sources_give_the_same_bytes_in_another_place(release: Path, tmp_path: Path) -> None:
    again = built(copied(tmp_path / "copy"), tmp_path / "again")
    assert (again / "SHA256SUMS").read_text() == (release / "SHA256SUMS").read_text()


def test_every_file_of_the_release_has_its_checksum(release: Path) -> None:
    lines = (line.split("  ") for line in (release / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    files = {path for path in release.iterdir() if path.name != "SHA256SUMS"}
    assert {path.suffix for path in files} == {".whl", ".gz", ".json"}
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_wheel_has_the_package_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        entries = packed.infolist()
    ours = {entry.filename for entry in entries if not entry.filename.startswith("repertory-")}
    sources = (path for path in (ROOT / "repertory").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert ours == {path.relative_to(ROOT).as_posix() for path in sources}
    assert "repertory/py.typed" in ours
    assert not [entry.filename for entry in entries if stat.S_ISLNK(entry.external_attr >> 16)]


def test_the_source_archive_has_what_the_wheel_is_made_of(release: Path) -> None:
    (archive,) = release.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        members = packed.getmembers()
    top = {member.name.split("/")[1] for member in members}
    assert top == {"repertory", *SOURCES, "pyproject.toml", ".gitignore", "PKG-INFO"}
    assert all(member.isfile() for member in members)


def test_the_wheel_says_what_it_is(metadata: Message) -> None:
    assert metadata["Name"] == "repertory"
    assert metadata["Version"] == PROJECT["version"] == repertory.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Project-URL" not in metadata
    assert "Home-page" not in metadata
    classifiers = metadata.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    versions = [line.rpartition(" ")[2] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert versions == list(PYTHONS)
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])


def test_the_page_of_the_wheel_is_the_readme_and_renders(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = str(metadata.get_payload())
    assert page.strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    html = MarkdownIt("commonmark").enable("table").render(page)
    assert html.startswith("<h1>Repertory</h1>")
    assert "<table>" in html
    assert '<pre><code class="language-python">' in html


def test_the_license_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        text = packed.read(f"repertory-{PROJECT['version']}.dist-info/licenses/LICENSE").decode()
    assert text == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.match(r"\s+Apache License\n\s+Version 2\.0, January 2004\n", text)
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_list_of_components_has_what_extras_bring_and_not_what_developers_need(components: dict[str, Any]) -> None:
    assert (components["bomFormat"], components["specVersion"]) == ("CycloneDX", "1.6")
    assert components["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    listed = {part["name"]: part for part in components["components"]}
    needed = {Requirement(need).name for need in PROJECT["dependencies"]}
    assert {name for name, part in listed.items() if part["scope"] == "required"} >= needed | {"idna", "pydantic-core"}
    extras = {Requirement(need).name for needs in PROJECT["optional-dependencies"].values() for need in needs}
    assert set(listed) >= extras - {"repertory", "litellm"}  # the lock has all extras but the one of litellm
    assert not {"pytest", "ruff", "mypy", "moto", "django"} & set(listed)
    assert all(part["hashes"] and part["purl"].startswith("pkg:pypi/") for part in listed.values())
    parts = [components["metadata"]["component"], *components["components"]]
    refs = [part["bom-ref"] for part in parts]
    assert sorted(refs) == [each["ref"] for each in components["dependencies"]]
    assert {below for each in components["dependencies"] for below in each["dependsOn"]} < set(refs)


def test_the_campaign_of_extras_uses_each_of_them() -> None:
    assert set(USES) == set(PROJECT["optional-dependencies"]) - {"all"}


def test_a_program_runs_where_nothing_but_the_wheel_and_what_it_needs_is_installed(wheel: Path, tmp_path: Path) -> None:
    python = fresh(tmp_path / "venv")
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    for name in sorted(closure("repertory")):
        put(name, packages)
    install(wheel, python)
    program = examples(ROOT / "README.md")[0]
    folder = tmp_path / "empty"
    folder.mkdir()
    surroundings = environment(folder)
    del surroundings["PYTHONPATH"]

    def run(command: Path, *arguments: str) -> str:
        done = subprocess.run(
            [command, *arguments], cwd=folder, env=surroundings, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert agrees(program.prints or "", run(python, "-c", program.source))
    assert run(python.with_name("repertory"), "--version").strip() == f"repertory {PROJECT['version']}"
    assert Path(run(python, "-c", "import repertory; print(repertory.__file__)").strip()).is_relative_to(packages)


def fresh(folder: Path) -> Path:
    """The interpreter of an environment without anything."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def install(wheel: Path, python: Path) -> None:
    """Install the wheel alone, without an index, by what has made this environment."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-compile"]
    if importlib.util.find_spec("pip") is None:
        command = ["uv", "pip", "install", "--python", str(python)]
    subprocess.run([*command, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)


def closure(name: str) -> set[str]:
    """What a package needs without extras: the packages of the lock that are installed here."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for line in importlib.metadata.requires(waiting.pop()) or []:
            need = Requirement(line)
            if need.name not in found and (need.marker is None or need.marker.evaluate({"extra": ""})):
                found.add(need.name)
                waiting.append(need.name)
    return found


def put(name: str, packages: Path) -> None:
    """Copy a package from this environment into another one."""
    origin = importlib.metadata.distribution(name)
    for file in origin.files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(origin.locate_file(file), target)
