"""`repertory.toml`: what is read of it, and that everything wrong is told at once, each with its key."""

from __future__ import annotations

import json
import tomllib
from difflib import get_close_matches
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from repertory.service.configuration.decisions import checks
from repertory.service.configuration.decisions.reading import (
    FAULTS_MAX,
    ConfigurationFault,
    WrongConfiguration,
    every_table,
    expected,
    read_configuration,
)
from repertory.service.configuration.decisions.tables import (
    ModelTable,
    PostgresSessionsTable,
    SecretSource,
    ServiceTable,
    SlidingTable,
    SqliteMemoryTable,
    SqliteSessionsTable,
    configuration_schema,
)

AGENT = '[agents.a]\nmodel = "offline"\n'
WHOLE = '''\
[runtime]
drain_timeout_s = 10
patience = { wait_s = 5 }

[sessions]
kind = "postgres"
url = { env = "DATABASE" }

[memory.notes]
kind = "sqlite"
path = "notes.db"

[mcp.files]
command = "npx"
args = ["-y", "server"]
env = { ROOT = "/srv", KEY = { file = "key" } }

[agents.support]
system_prompt = """
Be kind.
"""
tools = ["mytools:lookup", "repertory:calculator"]
mcp = ["files"]
memory = ["notes"]
conversation = { kind = "sliding", window_size = 20 }
state = { plan = "free" }

[agents.support.model]
provider = "openai"
model_id = "gpt-5.4"
api_key = { env = "OPENAI_API_KEY" }
settings = { temperature = 0.2 }

[service]
port = 9000
cors = ["https://shop.example"]
[service.tokens]
acme = { env = "ACME_TOKEN" }
'''


def faults_of(text: str) -> list[ConfigurationFault]:
    with pytest.raises(WrongConfiguration) as caught:
        read_configuration(text, "repertory.toml")
    return list(caught.value.faults)


def test_a_configuration_becomes_frozen_values() -> None:
    values = read_configuration(WHOLE, "repertory.toml").values
    assert values.runtime.drain_timeout_s == 10.0
    assert isinstance(values.runtime.drain_timeout_s, float)
    assert values.runtime.patience.wait_s == 5.0
    assert values.sessions == PostgresSessionsTable(url=SecretSource(env="DATABASE"))
    assert values.memory == {"notes": SqliteMemoryTable(path="notes.db")}
    assert values.mcp["files"].env == {"ROOT": "/srv", "KEY": SecretSource(file="key")}
    support = values.agents["support"]
    assert support.conversation == SlidingTable(window_size=20)
    assert isinstance(support.model, ModelTable)
    assert support.model.settings == {"temperature": 0.2}
    assert support.tools == ("mytools:lookup", "repertory:calculator")
    assert values.service == ServiceTable(
        port=9000, cors=("https://shop.example",), tokens={"acme": SecretSource(env="ACME_TOKEN")}
    )
    with pytest.raises(AttributeError):
        values.service.port = 1  # type: ignore[misc]


def test_an_agent_with_a_model_is_a_whole_configuration() -> None:
    values = read_configuration(AGENT, "repertory.toml").values
    assert values.sessions == SqliteSessionsTable()
    assert values.service.port == 8000


FAULTS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("no agents", "[service]\nport = 1", [("", "the key `agents` is missing: a table of names")]),
    ("an empty file", "", [("", "the key `agents` is missing")]),
    ("agents that are none", "[agents]", [("agents", "one at least")]),
    ("no TOML", "[agents.a\n", [("", "no TOML: Expected ']' at the end of a table declaration")]),
    (
        "a key twice",
        AGENT + 'model = "x"',
        [("", "no TOML: Cannot overwrite a value")],
    ),
    ("a bad escape", AGENT + 'description = "\\q"', [("", "no TOML: Unescaped '\\' in a string")]),
    ("a typo", AGENT + "[service]\nprot = 1", [("service.prot", "no such key; did you mean `port`?")]),
    ("another table's key", AGENT + "[runtime]\nport = 1", [("runtime.port", "it is one of [service]")]),
    ("an unknown table", AGENT + "[agent.b]\n", [("agent", "no such key; did you mean `agents`?")]),
    ("a missing key", "[agents.a]\n", [("agents.a", "the key `model` is missing: text or a table, such as")]),
    (
        "text for a number",
        AGENT + '[service]\nport = "1"',
        [("service.port", "a whole number from 0 to 65535, got")],
    ),
    ("a number too large", AGENT + "[service]\nport = 70000", [("service.port", "from 0 to 65535, got 70000")]),
    ("a fraction", AGENT + "[service]\nport = 1.5", [("service.port", "expected a whole number")]),
    ("true for a number", AGENT + "[service]\nport = true", [("service.port", "got true")]),
    (
        "no time",
        AGENT + "[runtime]\ndrain_timeout_s = 0",
        [("runtime.drain_timeout_s", "a number above 0, got 0")],
    ),
    ("endless", AGENT + "[runtime]\ndrain_timeout_s = inf", [("runtime.drain_timeout_s", "above 0, got inf")]),
    ("huge", AGENT + "[runtime]\nwakes_max = 1" + "0" * 400, [("runtime.wakes_max", "got a huge number")]),
    ("hugest", AGENT + "[runtime]\nwakes_max = 1" + "0" * 5000, [("", "a number in it too long")]),
    ("no such word", AGENT + 'busy = "que"', [("agents.a.busy", 'got text; did you mean "queue"?')]),
    ("no kind", AGENT + '[sessions]\npath = "x"', [("sessions", "the key `kind` is missing: one of")]),
    ("no such kind", AGENT + '[sessions]\nkind = "sqlit"', [("sessions.kind", 'did you mean "sqlite"?')]),
    (
        "a key of another kind",
        AGENT + '[sessions]\nkind = "sqlite"\nbucket = "b"',
        [("sessions.bucket", "no such")],
    ),
    (
        "a table for text",
        AGENT + "description = { a = 1 }",
        [("agents.a.description", "expected text, got a table")],
    ),
    ("text for an array", AGENT + 'tools = "a:b"', [("agents.a.tools", "an array of `module:name`, got text")]),
    (
        "no module",
        AGENT + 'tools = [\n  "a:b",\n  "lookup",\n]',
        [("agents.a.tools[1]", "expected `module:name`")],
    ),
    ("text for a table", "service = 1\n" + AGENT, [("service", "expected a table, got 1")]),
    ("an empty text", AGENT + 'description = ""', [("agents.a.description", "expected text, got an empty text")]),
    ("a date", AGENT + "description = 2026-01-01", [("agents.a.description", "got a date or time")]),
    (
        "a secret in plain text",
        '[agents.a.model]\nprovider = "openai"\napi_key = "sk-12345"',
        [("agents.a.model.api_key", "a secret does not stand here in plain text: write `{ env =")],
    ),
    (
        "a secret from two places",
        '[agents.a.model]\nprovider = "openai"\napi_key = { env = "A", file = "b" }',
        [("agents.a.model.api_key", "a secret is exactly one of `{ env")],
    ),
    (
        "a password in an address",
        AGENT + '[sessions]\nkind = "postgres"\nurl = "postgresql://me:hunter22@db/x"',
        [("sessions.url", "a password does not stand here in plain text")],
    ),
    (
        "two prompts",
        AGENT + 'system_prompt = "a"\nsystem_prompt_file = "b"',
        [("agents.a.system_prompt_file", "not both")],
    ),
    (
        "no such memory",
        AGENT + 'memory = ["notes"]',
        [("agents.a.memory[0]", "there is no [memory.NAME] of this")],
    ),
    (
        "a memory's name with a typo",
        AGENT + 'memory = ["note"]\n[memory.notes]\nkind = "sqlite"',
        [("agents.a.memory[0]", 'did you mean "notes"?')],
    ),
    ("no such server", AGENT + 'mcp = ["files"]', [("agents.a.mcp[0]", "there is no [mcp.NAME]")]),
    ("an agent's name", '[agents."a/b"]\nmodel = "offline"', [('agents."a/b"', "an agent's name")]),
    ("half a model", "[agents.a]\nmodel = {}", [("agents.a.model", "has `provider` or `python`, and not both")]),
    (
        "a region elsewhere",
        '[agents.a]\nmodel = { provider = "openai", region = "eu" }',
        [("agents.a.model.region", "only models of `bedrock`")],
    ),
    ("half a server", AGENT + "[mcp.x]\n", [("mcp.x", "has `command` or `url`, and not both")]),
    (
        "arguments of an address",
        AGENT + '[mcp.x]\nurl = "http://x"\nargs = ["a"]',
        [("mcp.x.args", "with a `command`")],
    ),
    ("no such agent to serve", AGENT + '[service]\nagents = ["b"]', [("service.agents[0]", "no [agents.NAME]")]),
    (
        "workers without a store",
        AGENT + '[sessions]\nkind = "memory"\n[service]\nworkers = 2',
        [("service.workers", "several workers need [sessions] in SQLite or PostgreSQL")],
    ),
    (
        "workers at one place",
        AGENT + '[service]\nworkers = 2\n[peers]\nsecret = { env = "S" }\nlisten = "127.0.0.1:7000"',
        [("peers.listen", "several workers cannot listen in one place")],
    ),
    (
        "workers without peers",
        AGENT + '[sessions]\nkind = "postgres"\nurl = "postgresql://db/x"\n[service]\nworkers = 2',
        [("service.workers", "need [peers] with `secret`")],
    ),
    (
        "peers that anybody reaches",
        AGENT + '[peers]\nlisten = "127.0.0.1:0"',
        [("peers.listen", "write `secret`, or `tls`")],
    ),
    (
        "peers without a store",
        AGENT + '[sessions]\nkind = "memory"\n[peers]\n',
        [("peers", "peers share [sessions] in SQLite or PostgreSQL")],
    ),
    (
        "workers that share a bucket",
        AGENT + '[sessions]\nkind = "journal"\nbucket = "b"\n[service]\nworkers = 2',
        [("service.workers", "several workers need [sessions] in SQLite or PostgreSQL")],
    ),
    (
        "a password in a queue",
        AGENT + '[queue]\nurl = "postgresql://me:hunter22@db/x"',
        [("queue.url", "a password does not stand here")],
    ),
    (
        "peers in another server",
        AGENT + '[peers]\nvalkey_url = "valkey://db/0"',
        [("peers.valkey_url", "there is no such key")],
    ),
    (
        "a bucket and a folder",
        AGENT + '[sessions]\nkind = "journal"\nfolder = "a"\nbucket = "b"',
        [("sessions.bucket", "not both")],
    ),
    (
        "two prompts of an assistant",
        AGENT + 'system_prompt = "x"\nassistant = { instructions = "y", instructions_file = "z" }',
        [
            ("agents.a.assistant.instructions_file", "not both"),
            ("agents.a.assistant.instructions", "`system_prompt` replaces"),
            ("agents.a.assistant.instructions_file", "`system_prompt` replaces"),
        ],
    ),
    (
        "an assistant with a wrong table",
        AGENT + 'assistant = { shel = true, ask = "*", folder = 3 }',
        [
            ("agents.a.assistant.shel", "did you mean `shell`?"),
            ("agents.a.assistant.ask", "expected an array of text, got text"),
            ("agents.a.assistant.folder", "expected text, got 3"),
        ],
    ),
    (
        "many at once",
        '[agents.a]\nmodell = "x"\n[service]\nport = -1\nworker = 2\n[agents.b]\nmodel = "offline"\nmemory = ["m"]\n',
        [
            ("agents.a.modell", "did you mean `model`?"),
            ("agents.a", "the key `model` is missing"),
            ("service.port", "got -1"),
            ("service.worker", "did you mean `workers`?"),
            ("agents.b.memory[0]", "there is no [memory.NAME]"),
        ],
    ),
]


@pytest.mark.parametrize(("text", "wanted"), [case[1:] for case in FAULTS], ids=[case[0] for case in FAULTS])
def test_what_is_wrong_is_told_with_its_key_and_what_was_expected(text: str, wanted: list[tuple[str, str]]) -> None:
    faults = faults_of(text)
    assert [each.key for each in faults] == [key for key, _ in wanted]
    for fault, (_, says) in zip(faults, wanted, strict=True):
        assert says in str(fault)


def test_a_fault_is_one_line_with_file_key_and_what_was_expected() -> None:
    (fault,) = faults_of(AGENT + "[service]\nport = -1")
    assert str(fault) == "repertory.toml: service.port: expected a whole number from 0 to 65535, got -1"


@pytest.mark.parametrize(
    "place",
    [
        '[agents.a.model]\nprovider = "openai"\napi_key = VALUE',
        '[agents.a.model]\nprovider = "openai"\napi_key = { env = VALUE, file = VALUE }',
        AGENT + "[service.tokens]\nacme = VALUE",
        AGENT + "[service]\nport = VALUE",
        AGENT + "[peers]\nsecret = VALUE",
        AGENT + "[peers]\nlisten = [VALUE]",
        AGENT + "busy = VALUE",
        AGENT + "tools = [VALUE]",
        AGENT + '[mcp.x]\nurl = "http://x"\nheaders = VALUE',
        AGENT + '[mcp.x]\nurl = "http://x"\nheaders = { authorization = [VALUE] }',
        AGENT + "[sessions]\nkind = VALUE",
    ],
)
def test_no_fault_repeats_a_text_that_was_found(place: str) -> None:
    secret = "hunter22-which-nobody-may-read"
    for fault in faults_of(place.replace("VALUE", json.dumps(secret))):
        assert secret not in str(fault)
    assert "plain" not in repr(SecretSource(plain=secret))


def kinds_of_every_key() -> list[tuple[str, Any]]:
    return [(f"{header}.{each.name}", each) for header, table in every_table() for each in table.fields]


def test_every_key_says_what_it_takes_and_what_it_means() -> None:
    for key, field in kinds_of_every_key():
        assert isinstance(field.type, msgspec.inspect.Metadata), key
        description = (field.type.extra_json_schema or {}).get("description", "")
        assert description.endswith("."), key
        assert expected(field.type), key


def test_every_table_is_frozen() -> None:
    for _, table in every_table():
        assert issubclass(table.cls, Struct)
        assert table.cls.__struct_config__.frozen


def test_the_schema_knows_every_key_and_refuses_others() -> None:
    schema: Any = configuration_schema()
    definitions = schema["$defs"]
    for _, table in every_table():
        definition = definitions[table.cls.__name__]
        assert {each.name for each in table.fields} <= set(definition["properties"])
        assert definition["additionalProperties"] is False
    json.dumps(schema)


WORDS = sorted({name for key, _ in kinds_of_every_key() for name in key.split(".")} | {"env", "plain", "kind", "x"})
MISTAKES = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.text(max_size=5), st.floats(allow_nan=True)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)),
    max_leaves=8,
)


def toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{json.dumps(key)} = {toml(item)}' for key, item in value.items())}}}"
        case _:
            return repr(value)


@given(st.dictionaries(st.sampled_from(WORDS), MISTAKES, max_size=4), st.data())
def test_any_document_is_read_or_refused_with_faults(found: Any, data: st.DataObject) -> None:
    text = "".join(f"{key} = {toml(value)}\n" for key, value in found.items())
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # A character that JSON takes and TOML does not.
    faults: list[ConfigurationFault] = []
    try:
        read_configuration(text, "x.toml")
    except WrongConfiguration as error:
        faults = list(error.faults)
    assert all(fault.text for fault in faults)


UNKNOWN_KEYS = "".join(f"servise_nam{number} = 1\n" for number in range(5_000))
UNKNOWN_NAMES = "".join(
    f"[agents.a{number}]\nmodel = 'offline'\nmemory = ['mem{number}x']\n"
    f"[memory.mem{number}]\nkind = 'sqlite'\npath = 'x'\n"
    for number in range(500)
)
UNKNOWN_WORDS = "[agents]\n" + "".join(
    f"a{number} = {{ model = 'x', durability = 'strikt' }}\n" for number in range(5_000)
)


@pytest.mark.parametrize("text", [UNKNOWN_KEYS, UNKNOWN_NAMES, UNKNOWN_WORDS], ids=["keys", "names", "words"])
def test_of_very_many_faults_a_few_are_listed_and_compared_with_what_was_meant(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    def counted(word: str, possibilities: list[str], n: int) -> list[str]:
        nonlocal compared
        compared += len(possibilities)
        return get_close_matches(word, possibilities, n=n)

    monkeypatch.setattr(checks, "get_close_matches", counted)
    with pytest.raises(WrongConfiguration) as wrong:
        read_configuration(text, "repertory.toml")
    assert len(wrong.value.faults) == FAULTS_MAX
    *listed, last = str(wrong.value).split("\n")
    assert any("did you mean" in each for each in listed)
    assert last.startswith("and ")
    assert compared <= 2 * FAULTS_MAX * 100


def test_a_name_of_any_length_is_compared_with_none() -> None:
    assert checks.near_name("a" * 1_000_000, ["a" * 999_999]) is None
    assert checks.near_name("servise", ["a" * 1_000_000, "service"]) == "service"
