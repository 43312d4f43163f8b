"""From `repertory.toml` to a `Runtime`: everything that it refers to is found, or told with its key, all at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from repertory import HumanInTheLoop, NullConversationManager, SlidingWindowConversationManager, webhook_secret
from repertory.core.tenants import stored_id
from repertory.errors import Invalid
from repertory.plugins.assistant import ASSISTANT_PROMPT
from repertory.service.configuration.building import ConfiguredRuntime, answer_links_from, runtime_from, tokens_from
from repertory.service.configuration.decisions.reading import WrongConfiguration
from repertory.service.configuration.sources import Sources, find_modules_in, load_configuration

SHOP = '''
from pydantic import BaseModel
from repertory import OfflineModel, tool

@tool
def price(item: str) -> str:
    """Tell a price."""
    return "3"

@tool
def stock(item: str) -> str:
    """Tell the stock."""
    return "7"

both = [price, stock]

def plain(item):
    return item

class Ticket(BaseModel):
    title: str

def model():
    return OfflineModel()

def broken():
    raise ValueError("a secret that the model was given: hunter22")

class Watch:
    def register_hooks(self, registry):
        pass
'''
WHOLE = """
[runtime]
drain_timeout_s = 7
[sessions]
kind = "sqlite"
path = "data/agents.db"
[memory.notes]
kind = "sqlite"
path = "data/notes.db"
scope = "shop"
[mcp.files]
command = "true"
env = { KEY = { env = "FILES_KEY" } }
[agents.clerk]
model = { python = "shop_of_tests:model" }
aux_model = "offline"
system_prompt_file = "prompt.txt"
tools = ["shop_of_tests:both", "repertory:calculator"]
hooks = ["shop_of_tests:Watch"]
output = "shop_of_tests:Ticket"
memory = ["notes"]
limits = { turns = 3 }
[agents.other]
model = { provider = "openai", api_key = { file = "key.txt" }, settings = { params = { temperature = 0.2 } } }
mcp = ["files"]
conversation = { kind = "summarizing" }
[service.tokens]
acme = { env = "ACME" }
"""
ENVIRON = {"FILES_KEY": "files-key-0123456789", "ACME": "acme-token-0123456789"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, a prompt and a key."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_of_tests.py").write_text(SHOP)
    (tmp_path / "prompt.txt").write_text("Be kind.")
    (tmp_path / "key.txt").write_text("sk-of-the-file\n")
    return tmp_path


def build(
    folder: Path, text: str, environ: dict[str, str] | None = None, *, several: bool = False
) -> ConfiguredRuntime:
    path = folder / "repertory.toml"
    path.write_text(text)
    sources = Sources(load_configuration(path), folder, ENVIRON if environ is None else environ)
    tokens_from(sources)
    answer_links_from(sources)
    return runtime_from(sources, several=several)


def faults_of(folder: Path, text: str, environ: dict[str, str] | None = None) -> list[tuple[str, str]]:
    with pytest.raises(WrongConfiguration) as caught:
        build(folder, text, environ)
    return [(fault.key, fault.text) for fault in caught.value.faults]


def test_everything_that_a_configuration_names_is_made(folder: Path) -> None:
    configured = build(folder, WHOLE)
    runtime, agents = configured.runtime, configured.agents
    assert configured.memory is not None
    assert list(agents) == ["clerk", "other"]
    assert runtime.sessions is not None
    assert runtime.sessions.key == str(folder / "data/agents.db")
    agent = agents["clerk"].session("ada").agent
    assert agent.system_prompt == "Be kind."
    assert {"price", "stock", "calculator", "search_memory"} <= set(agent.tool_names)
    assert not (folder / "data").exists()


ASSISTANTS = """
[agents.plain]
model = { python = "shop_of_tests:model" }
assistant = true
[agents.clerk]
model = { python = "shop_of_tests:model" }
tools = ["shop_of_tests:both"]
limits = { turns = 3 }
[agents.clerk.assistant]
instructions_file = "prompt.txt"
folder = "."
shell = true
ask = ["*"]
tool_search = true
[agents.own]
model = { python = "shop_of_tests:model" }
system_prompt = "Only this."
conversation = { kind = "null" }
assistant = {}
[agents.none]
model = { python = "shop_of_tests:model" }
assistant = false
"""


def test_an_agent_of_a_file_is_an_assistant_with_what_its_table_says(folder: Path) -> None:
    agents = {name: each.session("ann").agent for name, each in build(folder, ASSISTANTS).agents.items()}
    plain, clerk, own, none = (agents[name] for name in ("plain", "clerk", "own", "none"))
    assert (plain.system_prompt, plain.interventions) == (ASSISTANT_PROMPT, ())
    assert plain.tool_names == ["retrieve_offloaded_content"]
    assert clerk.system_prompt == f"{ASSISTANT_PROMPT}\n\nBe kind."
    assert {"write_file", "shell", "price", "stock", "search_tools"} <= set(clerk.tool_names)
    assert [type(each) for each in clerk.interventions] == [HumanInTheLoop]
    assert (own.system_prompt, own.tool_names) == ("Only this.", [])
    assert isinstance(own.conversation_manager, NullConversationManager)
    assert (none.system_prompt, none.tool_names, none.interventions) == (None, [], ())
    assert isinstance(none.conversation_manager, SlidingWindowConversationManager)


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_configured_agent_answers_and_goes_on_in_the_next_runtime(folder: Path) -> None:
    text = '[sessions]\nkind = "sqlite"\npath = "a.db"\n[agents.helper]\nmodel = "offline"\n'
    async with (configured := await to_thread.run_sync(build, folder, text)).runtime:
        await configured.agents["helper"].session("ada").invoke("My cat is called Byron.")
    async with (configured := await to_thread.run_sync(build, folder, text)).runtime:
        answer = await configured.agents["helper"].session("ada").invoke("Do you remember my cat?")
    assert str(answer) == "[offline] Your cat is Byron."


REMEMBERS = """
[sessions]
kind = "sqlite"
path = "a.db"
remember = true
[memory.said]
kind = "sqlite"
path = "a.db"
[memory.notes]
kind = "sqlite"
path = "notes.db"
scope = "shop"
[agents.helper]
model = "offline"
memory = ["said", "notes"]
[service.tokens]
acme = { plain = "acme-token-00000" }
Globex = { plain = "globex-token-000" }
"""


@pytest.mark.anyio
@pytest.mark.real_time
async def test_what_one_tenant_says_is_remembered_for_no_other(folder: Path) -> None:
    configured = await to_thread.run_sync(build, folder, REMEMBERS)
    memory = configured.memory
    assert memory is not None
    async with configured.runtime:
        helper = configured.agents["helper"]
        first = helper.session(stored_id("acme", "first"))
        await first.invoke("My cat is called Byron.")
        assert first.agent.memory_manager is not None
        await first.agent.memory_manager.add("The cat eats fish.", {"stores": ["notes"]})
        found = {
            tenant: {entry.store_name for entry in await memory(stored_id(tenant, "x")).search("cat Byron fish")}
            for tenant in ("acme", "Globex", "gone", "")
        }
        assert found == {"acme": {"said", "notes"}, "Globex": set(), "gone": set(), "": set()}
        answers = {
            tenant: str(await helper.session(stored_id(tenant, "second")).invoke("Do you remember my cat?"))
            for tenant in ("acme", "Globex")
        }
        assert ["Byron" in answer for answer in answers.values()] == [True, False]
        assert memory(stored_id("acme", "a")) is memory(stored_id("acme", "b"))


def test_without_tokens_a_memory_has_its_scope_alone(folder: Path) -> None:
    configured = build(folder, REMEMBERS.partition("[service.tokens]")[0])
    assert configured.memory is not None
    assert configured.memory("acme~ada") is configured.memory("")


AGENT = '[agents.a]\nmodel = "offline"\n'
FAULTS = {
    "a variable that is not set": (
        AGENT + '[service.tokens]\nacme = { env = "NOBODY" }',
        [("service.tokens.acme", "the variable NOBODY of the environment is not set")],
    ),
    "a token that is short": (
        AGENT + '[service.tokens]\nacme = { env = "SHORT" }',
        [("service.tokens.acme", "a token has 16 characters at least")],
    ),
    "one token for two": (
        AGENT + '[service.tokens]\nacme = { env = "ACME" }\nbees = { env = "ACME" }',
        [("service.tokens.bees", "another tenant has the same token")],
    ),
    "links with a short secret": (
        AGENT + '[service.answer_links]\nbase_url = "https://a.example"\nsecret = { env = "SHORT" }',
        [("service.answer_links", "the secret of answer links is a text of at least 32 characters")],
    ),
    "links with a secret that is not set": (
        AGENT + '[service.answer_links]\nbase_url = "https://a.example"\nsecret = { env = "NOBODY" }',
        [("service.answer_links.secret", "the variable NOBODY of the environment is not set")],
    ),
    "links of no address": (
        AGENT + '[service.answer_links]\nbase_url = "a.example"\nsecret = { env = "LONG" }',
        [("service.answer_links", "base_url is the URL of the service")],
    ),
    "a secret's file that is missing": (
        '[agents.a.model]\nprovider = "openai"\napi_key = { file = "no.txt" }',
        [("agents.a.model.api_key", "cannot be read: No such file")],
    ),
    "a prompt that is missing": (
        AGENT + 'system_prompt_file = "no.txt"',
        [("agents.a.system_prompt_file", "cannot be read: No such file")],
    ),
    "no such module": (
        AGENT + 'tools = ["no_such_shop:price"]',
        [("agents.a.tools[0]", "there is no module `no_such_shop` in the folder")],
    ),
    "no such name": (
        AGENT + 'tools = [\n"shop_of_tests:prise"]',
        [("agents.a.tools[0]", "there is no `prise` in `shop_of_tests`; did you mean `price`?")],
    ),
    "a module that fails": (
        AGENT + 'tools = ["failing_shop:price"]',
        [("agents.a.tools[0]", "`failing_shop` cannot be imported: ZeroDivisionError (at ")],
    ),
    "a module that needs another": (
        AGENT + 'tools = ["needing_shop:price"]',
        [("agents.a.tools[0]", "`needing_shop` cannot be imported: it needs `no_such_thing`")],
    ),
    "no tool": (AGENT + 'tools = ["shop_of_tests:Ticket"]', [("agents.a.tools[0]", "")]),
    "no class": (AGENT + 'output = "shop_of_tests:price"', [("agents.a.output", "the output is a class")]),
    "no model": (
        '[agents.a]\nmodel = { python = "shop_of_tests:SHOP" }',
        [("agents.a.model.python", "there is no `SHOP`")],
    ),
    "a factory of no model": (
        '[agents.a]\nmodel = { python = "shop_of_tests:both" }',
        [("agents.a.model.python", "this is no model")],
    ),
    "a provider with a typo": (
        '[agents.a]\nmodel = "antropic:claude"',
        [("agents.a.model", 'there is no such provider; did you mean "anthropic"?')],
    ),
    "a setting that a model does not have": (
        '[agents.a.model]\nprovider = "openai"\nsettings = { temprature = 1 }',
        [("agents.a.model.settings", "temprature")],
    ),
    "a model of another provider": (
        '[agents.a]\nmodel = "gpt-5.4"',
        [("agents.a.model", "no id of a Bedrock model")],
    ),
    "a folder of an assistant that is missing": (
        AGENT + 'assistant = { folder = "no", instructions_file = "no.txt", skills = ["no/skills"] }',
        [
            ("agents.a.assistant.folder", "there is no folder"),
            ("agents.a.assistant.skills[0]", "there is no folder and no file"),
            ("agents.a.assistant.instructions_file", "cannot be read: No such file"),
        ],
    ),
    "a question before a tool with a typo": (
        AGENT + 'assistant = { folder = ".", ask = ["write_files"] }',
        [("agents.a.assistant", 'there is no tool of this name; did you mean "write_file"?')],
    ),
    "certificates that are missing": (
        AGENT + '[peers.tls]\ncertificate = "c"\nkey = "k"\nca = "a"',
        [("peers.tls.certificate", "there is no file"), ("peers.tls.key", ""), ("peers.tls.ca", "")],
    ),
    "a peers' secret that is short": (
        AGENT + '[peers]\nsecret = { env = "SHORT" }',
        [("peers", "secret has at least 16 characters")],
    ),
    "many at once": (
        AGENT + 'tools = ["no_such_shop:x"]\n[agents.b]\nmodel = "antropic"\n[service.tokens]\nx = { env = "NOBODY" }',
        [
            ("service.tokens.x", "not set"),
            ("agents.a.tools[0]", "no module"),
            ("agents.b.model", "no such provider"),
        ],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_made_is_told_with_its_key(folder: Path, name: str) -> None:
    (folder / "failing_shop.py").write_text("print(1 / 0)")
    (folder / "needing_shop.py").write_text("import no_such_thing")
    text, wanted = FAULTS[name]
    found = faults_of(folder, text, {**ENVIRON, "SHORT": "short", "LONG": "x" * 40})
    assert [key for key, _ in found] == [key for key, _ in wanted]
    for (_, told), (_, says) in zip(found, wanted, strict=True):
        assert says in told


def test_no_secret_stands_in_a_fault_or_in_what_was_made(folder: Path) -> None:
    secret = "sk-nobody-may-read-this-0123456789"
    text = '[agents.a]\nmodel = { provider = "anthropic", api_key = { env = "KEY" }, settings = { nonsense = 1 } }\n'
    text += '[sessions]\nkind = "postgres"\nurl = { env = "KEY" }\n'
    told = str(faults_of(folder, text, {"KEY": secret}))
    assert "nonsense" in told
    assert "sk-nobody" not in told
    whole = WHOLE.replace('{ file = "key.txt" }', '{ env = "KEY" }')
    made = build(folder, whole, {**ENVIRON, "KEY": secret})
    assert "sk-nobody" not in repr(made)


def test_a_module_that_raises_is_told_by_the_kind_of_its_error(folder: Path) -> None:
    text = '[agents.a]\nmodel = { python = "shop_of_tests:broken" }'
    with pytest.raises(WrongConfiguration) as caught:
        build(folder, text)
    assert str(caught.value).startswith(f"{folder}/repertory.toml: agents.a.model.python: it cannot be made: Value")
    assert "hunter22" not in str(caught.value)


def test_several_processes_share_sessions_without_a_table_of_peers(folder: Path) -> None:
    build(folder, AGENT, several=True)


def test_a_file_that_cannot_be_read_is_told(folder: Path) -> None:
    with pytest.raises(Invalid, match="there is no configuration file"):
        load_configuration(folder / "no.toml")
    with pytest.raises(Invalid, match="cannot be read"):
        load_configuration(folder)
    (folder / "sparse.toml").touch()
    os.truncate(folder / "sparse.toml", 1 << 40)  # takes no room on the disk
    with pytest.raises(Invalid, match="bytes at most"):
        load_configuration(folder / "sparse.toml")
    (folder / "latin.toml").write_bytes(b"[agents.a]\nmodel = '\xe9'")
    with pytest.raises(WrongConfiguration, match=r"latin.toml: no TOML: line 2 is not UTF-8"):
        load_configuration(folder / "latin.toml")


def test_modules_beside_the_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_of_tests.py").write_text("from repertory import calculator")
    find_modules_in(tmp_path)
    build(tmp_path, AGENT + 'tools = ["beside_of_tests:calculator"]')


BACKGROUND = """
[agents.clerk]
model = "offline"
background_tasks = { always = ["search"], max_concurrency = 2, timeout = 60.0, wait_for_completion = false }
[agents.other]
model = "offline"
background_tasks = true
"""


def test_a_file_says_which_tools_run_in_the_background(folder: Path) -> None:
    agents = build(folder, BACKGROUND).agents
    wanted = {"always": ("search",), "never": (), "max_concurrency": 2, "timeout": 60.0, "wait_for_completion": False}
    assert agents["clerk"].spec.background_tasks == wanted
    assert agents["other"].spec.background_tasks is True
    with pytest.raises(WrongConfiguration, match=r"agents\.clerk\.background_tasks: .*one mode of execution"):
        build(folder, BACKGROUND.replace("max_con", 'never = ["search"], max_con'))


DELIVERIES = """
[agents.clerk]
model = "offline"
[deliveries.shop]
url = "https://shop.example/hook"
secret = { file = "hook.txt" }
on = ["question"]
agents = ["clerk"]
[service.answer_links]
secret = { file = "links.txt" }
base_url = "https://agents.example.com"
"""


def test_a_file_names_webhooks(folder: Path) -> None:
    (folder / "hook.txt").write_text(webhook_secret())
    (folder / "links.txt").write_text("x" * 32)
    destinations = build(folder, DELIVERIES).runtime.host.destinations
    assert destinations is not None
    shop = destinations.find("shop")
    assert shop is not None
    assert (shop.events, shop.agents) == (frozenset({"question"}), frozenset({"clerk"}))
    with pytest.raises(WrongConfiguration, match=r"deliveries\.shop\.agents: there is no agent of this name: nobody"):
        build(folder, DELIVERIES.replace('agents = ["clerk"]', 'agents = ["nobody"]'))
    (folder / "hook.txt").write_text("hunter22")
    with pytest.raises(WrongConfiguration, match=r"deliveries\.shop: ") as caught:
        build(folder, DELIVERIES)
    assert "hunter22" not in str(caught.value)


QUOTAS = """
[quotas]
store = "data/quotas.db"
models = { "gpt-5" = { tokens_per_minute = 1000, each_tenant = { requests_per_minute = 5 } } }
[agents.clerk]
model = { provider = "openai", model_id = "gpt-5", api_key = { file = "key.txt" } }
aux_model = "offline"
"""


def test_models_with_a_quota_wait_for_it_and_others_do_not(folder: Path) -> None:
    spec: Any = build(folder, QUOTAS).agents["clerk"].spec
    assert spec.model.gate is not None
    assert spec.aux_model.gate is None


def test_faults_of_quotas_are_told_with_their_keys(folder: Path) -> None:
    wrong = QUOTAS.replace("1000", "0").replace('"data/quotas.db"', "{ env = 'NOWHERE' }")
    assert next(key for key, _ in faults_of(folder, wrong)).startswith("quotas.models")
    assert faults_of(folder, QUOTAS.replace('"data/quotas.db"', "{ env = 'NOWHERE' }"))[0][0] == "quotas.store"
