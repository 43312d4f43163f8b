"""`docs/reference/configuration.md`: its keys are those of the code, and its configurations are right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from repertory.service.configuration.decisions.reading import WrongConfiguration, read_configuration
from repertory.service.configuration.decisions.tables import configuration_schema
from tests.docs.configuration_keys import keys_as_markdown
from tests.docs.markdown import documents
from tests.source_tree import ROOT

PAGE = ROOT / "docs/reference/configuration.md"
BLOCKS = [
    (path, found[1])
    for path in documents()
    for found in re.finditer(r"^```toml\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if "[agents." in found[1]
]


def test_the_table_of_keys_is_that_of_the_code() -> None:
    _, _, keys = PAGE.read_text(encoding="utf-8").partition("<!-- keys -->\n\n")
    assert keys == keys_as_markdown()


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_configuration_in_the_documents_is_right(number: int) -> None:
    path, text = BLOCKS[number]
    assert read_configuration(text, str(path)).values.agents


def test_the_faults_on_the_page_are_told_as_there() -> None:
    shown = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("repertory.toml:")]
    text = '[agents.support]\nmodel = "anthropic"\nsytem_prompt = "x"\n\n\n\n\n[service]\nport = 70000\n\n'
    text += '[service.tokens]\nshop = "x"\n'
    with pytest.raises(WrongConfiguration) as caught:
        read_configuration(text, "repertory.toml")
    assert list(map(str, caught.value.faults)) == shown


def test_the_schema_is_json(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(configuration_schema()))
