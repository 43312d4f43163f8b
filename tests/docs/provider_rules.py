"""The tables of `docs/reference/provider-rules.md`, made of the rules of the referees.

`python -m tests.docs.reference` writes them anew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from repertory.testing.referees import anthropic, bedrock, gemini, mistral, ollama, openai_chat, openai_responses
from repertory.testing.referees.rules import ServiceRule
from tests.source_tree import ROOT

PAGE = ROOT / "docs/reference/provider-rules.md"
TABLES: Mapping[str, Mapping[str, ServiceRule]] = {
    module.__name__.rpartition(".")[2]: module.RULES
    for module in (anthropic, bedrock, gemini, mistral, ollama, openai_chat, openai_responses)
}
"""The rules of each table of the page, by the module of their referee."""
_TABLE = re.compile(r"<!-- rules: (\w+) -->\n.*?<!-- rules end -->\n", re.DOTALL)
_THREAD = re.compile(r"/([^/]+/[^/]+)/(?:issues|pull)/(\d+)")


def written() -> str:
    """The text of the page with its tables as the rules are today."""
    return _TABLE.sub(lambda found: _table(found[1]), PAGE.read_text(encoding="utf-8"))


def link(source: str) -> str:
    """The address of a source as a link with a short text."""
    address = urlsplit(source)
    text = address.netloc.removeprefix("www.")
    if text == "github.com":
        thread = _THREAD.fullmatch(address.path)
        text = f"{thread[1]}#{thread[2]}" if thread else "/".join(address.path.split("/")[1:3])
    return f"[{text}]({source})"


def _table(name: str) -> str:
    head = [f"<!-- rules: {name} -->", "", "| rule | holds for | the rule | source |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_row, TABLES[name].values()), "", "<!-- rules end -->", ""])


def _row(rule: ServiceRule) -> str:
    advice = "" if rule.refused else " *(advice)*"
    return f"| `{rule.id}` | {rule.applies_to} | {rule.words}{advice} | {link(rule.source)} |"
