"""The examples in docstrings run, as doctest runs them."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.source_tree import PACKAGE, SourceFile, read

FILES = [file for file in read(PACKAGE) if ">>> " in file.text]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.module)
def test_examples_in_docstrings_run(file: SourceFile) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testmod(importlib.import_module(file.module), optionflags=flags)
    assert results.attempted
    assert not results.failed
