"""The structure of the package as numbers that may only fall: whoever makes one smaller lowers it here.

`python -m tests.structure` prints them. Each stands for what a reader has to know before anything can be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

import repertory
from repertory.backends.ports import SessionStore, StoreCapabilities
from tests import structure

LINES_OF_THE_PACKAGE = 173_767
LINES_OF_THE_APP = 17_838
LONGEST_PARAMETER_LIST = 8
FILES_IN_A_FOLDER_OF_TESTS = 58
MEASURES: Mapping[str, tuple[Callable[[], Sequence[str]], int]] = {
    "folders that import each other in a circle": (structure.folders_in_circles, 0),
    "imports of wings in the kernel": (structure.imports_of_wings, 0),
    "files with imports in strings, which no tool sees": (structure.files_that_name_modules, 0),
    "members of the port of session stores": (lambda: structure.members_of_port(SessionStore), 10),
    "flags of session stores": (lambda: structure.flags_of(StoreCapabilities), 4),
    "members of a session store with all of its parts": (structure.port_with_parts, 43),
    "docstrings that begin with a question": (structure.riddles, 0),
    "docstrings without a subject": (structure.without_subject, 0),
    "identifiers that say nothing by themselves": (structure.vague_names, 117),
    "identifiers that have a better name": (structure.old_names, 0),
    "private functions of two statements with one caller": (structure.thin_functions, 331),
    "methods of an agent": (lambda: structure.methods_of(repertory.Agent), 45),
}


@pytest.mark.parametrize("measure", MEASURES)
def test_the_structure_does_not_get_worse(measure: str) -> None:
    count, most = MEASURES[measure]
    found = count()
    assert len(found) <= most, f"{len(found)} {measure}; the last: {', '.join(found[-20:])}"


def test_the_package_its_app_its_parameter_lists_and_the_folders_of_tests_do_not_grow() -> None:
    assert structure.lines().total() <= LINES_OF_THE_PACKAGE
    assert structure.lines()["app"] <= LINES_OF_THE_APP
    assert structure.parameters()[0][0] <= LONGEST_PARAMETER_LIST, structure.parameters()[:3]
    ((folder, files),) = structure.files_of_tests().most_common(1)
    assert files <= FILES_IN_A_FOLDER_OF_TESTS, folder
