"""Each policy of docs/reference/aws-permissions.md allows what is asked of AWS, and nothing that is never asked.

What is asked is taken from requests to services on loopback, while each store leads a whole life. Which permissions a
request needs is what the Service Authorization Reference says of its operation.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from repertory import (
    Agent,
    AgentCoreMemorySessions,
    AgentCoreMemoryStore,
    BedrockEmbedder,
    BedrockKnowledgeBaseStore,
    BedrockModel,
    ContextOffloader,
    JournalSessionManager,
    JournalSessions,
    RetrievalConfig,
    S3SessionManager,
    S3Sessions,
    S3Storage,
    ScriptedModel,
    Sessions,
    SnapshotSessionManager,
    SnapshotSessions,
    tool,
)
from repertory.bedrock.agentcore import AgentCoreMemoryConfig, AgentCoreMemorySessionManager
from tests.backends.memory.knowledge_base import CUSTOM, KNOWLEDGE_BASE, S3, knowledge_base_server
from tests.backends.models.wire_server import Exchange, text_frames, wire_server
from tests.backends.objects.moto_s3 import BUCKET
from tests.backends.objects.rough_s3 import Request, RoughS3, rough_s3
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY
from tests.backends.sessions.agentcore_server import agentcore_server
from tests.docs.markdown import blocks
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("aws_keys")]

DOCUMENT = ROOT / "docs/reference/aws-permissions.md"
ACCOUNT = "arn:aws:{}:us-east-1:123456789012:{}"
KEY_ID = "1234abcd-12ab-34cd-56ef-1234567890ab"
KEY = ACCOUNT.format("kms", f"key/{KEY_ID}")
MODEL_ID = "anthropic.claude-sonnet-4-6"
PROFILE_ID = f"global.{MODEL_ID}"
GUARDRAIL_ID = "gr1234567890"

_prefixes = count()

Call = tuple[str, str]
"""An action, and the resource on which it is done."""


# ------------------------------------------------------------------------------------------------------------ policies


@dataclass(frozen=True)
class Rule:
    """One action on the resources of one pattern, as a statement allows it."""

    sid: str
    action: str
    pattern: str

    def allows(self, call: Call) -> bool:
        return call[0] == self.action and fnmatchcase(call[1], self.pattern)


def as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def policy(heading: str, prefix: str = "PREFIX") -> list[Rule]:
    """The rules of the policy below a heading of the document, with names for its capitals."""
    said = {
        "REGION": "us-east-1",
        "ACCOUNT": "123456789012",
        "BUCKET": BUCKET,
        "PREFIX": prefix,
        "KEY_ID": KEY_ID,
        "MEMORY_ID": MEMORY,
        "MODEL_ID": MODEL_ID,
        "PROFILE_ID": PROFILE_ID,
        "GUARDRAIL_ID": GUARDRAIL_ID,
        "KNOWLEDGE_BASE_ID": KNOWLEDGE_BASE,
    }
    text = re.sub(r"\b[A-Z][A-Z_]{5,}\b", lambda found: said[found[0]], policies()[heading])
    read = json.loads(text)
    assert read["Version"] == "2012-10-17"
    assert all(statement["Effect"] == "Allow" for statement in read["Statement"])
    return [
        Rule(statement.get("Sid", ""), action, pattern)
        for statement in read["Statement"]
        for action in as_list(statement["Action"])
        for pattern in as_list(statement["Resource"])
    ]


def policies() -> dict[str, str]:
    """The JSON blocks of the document by their headings."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    found: dict[str, str] = {}
    for block in blocks(DOCUMENT):
        heading = next(line for line in reversed(lines[: block.line - 1]) if line.startswith("## "))
        assert block.language == "json"
        assert heading[3:] not in found, f"{block.place}: one policy below each heading"
        found[heading[3:]] = block.text
    return found


def check(rules: Iterable[Rule], calls: Iterable[Call]) -> None:
    """Every call is allowed, and every rule is of use to one of them."""
    given, asked = list(rules), set(calls)
    assert asked
    refused = sorted(call for call in asked if not any(rule.allows(call) for rule in given))
    assert not refused, "the policy lacks what is asked"
    unused = [rule for rule in given if not any(rule.allows(call) for call in asked)]
    assert not unused, "the policy allows what is never asked"


CHECKED = {
    "Sessions and storage in S3",
    "Sessions and storage in S3 with a KMS key",
    "Sessions in AgentCore Memory",
    "Long-term memory of AgentCore",
    "Models of Bedrock",
    "Embeddings of Bedrock",
    "Searching a knowledge base",
    "Writing to a knowledge base",
    "Objects of a knowledge base",
    "Objects of a knowledge base with a KMS key",
}


def test_every_policy_of_the_document_is_checked_here() -> None:
    assert set(policies()) == CHECKED


def test_a_policy_that_lacks_something_or_allows_too_much_is_found() -> None:
    rules = [Rule("", "s3:GetObject", "arn:aws:s3:::bucket/a/*"), Rule("", "s3:ListBucket", "arn:aws:s3:::bucket")]
    read, listed = ("s3:GetObject", "arn:aws:s3:::bucket/a/key"), ("s3:ListBucket", "arn:aws:s3:::bucket")
    check(rules, [read, listed])
    with pytest.raises(AssertionError, match="never asked"):
        check(rules, [read])
    with pytest.raises(AssertionError, match="lacks"):
        check(rules, [read, listed, ("s3:GetObject", "arn:aws:s3:::bucket/b/key")])
    with pytest.raises(AssertionError, match="lacks"):
        check(rules, [read, listed, ("s3:DeleteObject", "arn:aws:s3:::bucket/a/key")])


# --------------------------------------------------------------------------------------------------------- whole lives


@tool
def measure(lines: int) -> str:
    """Measure."""
    return "\n".join(f"line {number}: value {number * number}" for number in range(lines))


def measuring(lines: int) -> dict[str, Any]:
    return {"toolUse": {"name": "measure", "toolUseId": f"tu_{lines}", "input": {"lines": lines}}}


async def live(place: Any, manager: Any, folder: Path) -> None:
    """Everything that is done with sessions: agents open, answer and come back, and every operation runs."""
    replies: list[Any] = [measuring(3), "three lines", "the secret is safe", "and now?"]
    async with Agent(
        ScriptedModel(replies), tools=[measure], session_manager=manager("a"), callback_handler=None
    ) as agent:
        for text in ("Measure.", "My secret is 4711.", "What now?"):
            await agent.invoke_async(text)
    async with Agent(ScriptedModel(["hello again"]), session_manager=manager("a"), callback_handler=None) as agent:
        await agent.invoke_async("Hello?")
    async with Sessions(place) as sessions:
        assert [info.session_id for info in await sessions.list()] == ["a"]
        messages = (await sessions.show("a")).agents["default"].messages
        await sessions.mark("a", "here")
        await sessions.history("a")
        assert (await sessions.search("secret")).hits
        await sessions.redact_text("a", "4711")
        await sessions.redact("a", messages[0].seq, "Measure, please.")
        await sessions.rewind("a", messages[3].seq)
        await sessions.prune("a", keep=0, beyond_rewinds=True)
        await sessions.fork("a", "b")
        await sessions.export("a", folder / "a.jsonl")
        await sessions.import_(folder / "a.jsonl", session_id="c")
        assert (await sessions.doctor(repair=True)).ok
        await sessions.delete("b")
        await sessions.expire(0)
        assert await sessions.list() == []


# ------------------------------------------------------------------------------------------------------------------ S3


@pytest.fixture
async def s3(s3_url: str) -> AsyncIterator[RoughS3]:
    async with rough_s3(s3_url) as running:
        yield running


OBJECT_ACTIONS = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject", "DELETE": "s3:DeleteObject"}
KEY_ACTIONS = {"s3:GetObject": "kms:Decrypt", "s3:PutObject": "kms:GenerateDataKey"}


def asked_of_s3(requests: Iterable[Request], *, encrypted: bool) -> Iterable[Call]:
    """`encrypted`: every object is, so reading one asks for the key as well."""
    for request in requests:
        bucket, _, key = unquote(request.path).lstrip("/").partition("/")
        if not key:
            assert request.method == "GET", request
            yield "s3:ListBucket", f"arn:aws:s3:::{bucket}"
            continue
        action = OBJECT_ACTIONS[request.method]
        yield action, f"arn:aws:s3:::{bucket}/{key}"
        if request.method == "PUT":
            named = request.headers.get("x-amz-server-side-encryption-aws-kms-key-id")
            assert (named, request.headers.get("x-amz-server-side-encryption")) == (
                (KEY, "aws:kms") if encrypted else (None, None)
            )
        if encrypted and action in KEY_ACTIONS:
            yield KEY_ACTIONS[action], KEY


Manager = Callable[[str], Any]


def on_documents(options: dict[str, Any]) -> tuple[Any, Manager]:
    return S3Sessions(**options), lambda session: S3SessionManager(session, **options)


def on_journals(options: dict[str, Any]) -> tuple[Any, Manager]:
    storage = S3Storage(**options)
    return JournalSessions(storage), lambda session: JournalSessionManager(session, storage=storage)


def on_snapshots(options: dict[str, Any]) -> tuple[Any, Manager]:
    storage = S3Storage(**options)
    return SnapshotSessions(storage), lambda session: SnapshotSessionManager(session, storage=storage)


@pytest.mark.parametrize(
    ("kind", "key"),
    [(on_documents, None), (on_documents, KEY), (on_journals, KEY), (on_snapshots, KEY)],
    ids=["documents as the bucket is", "documents with a key", "journals with a key", "snapshots with a key"],
)
async def test_sessions_in_s3(kind: Any, key: str | None, s3: RoughS3, tmp_path: Path) -> None:
    """A key adds its own permissions to those for objects, so a life with one uses both policies.

    That nothing names a key where none is given is seen on documents, and for `S3Storage` on offloaded contents.
    """
    prefix = f"life-{next(_prefixes)}"
    place, manager = kind({"bucket": BUCKET, "prefix": prefix, "endpoint_url": s3.url, "kms_key_id": key})
    await live(place, manager, tmp_path)
    asked = set(asked_of_s3(s3.requests, encrypted=key is not None))
    check(policy("Sessions and storage in S3", prefix), {call for call in asked if call[0].startswith("s3:")})
    if key is not None:
        check(policy("Sessions and storage in S3 with a KMS key", prefix), asked)


@pytest.mark.parametrize("key", [None, KEY], ids=["as the bucket is", "with a key"])
async def test_offloaded_contents_in_s3(key: str | None, s3: RoughS3) -> None:
    prefix = f"life-{next(_prefixes)}"
    storage = S3Storage(BUCKET, prefix, endpoint_url=s3.url, kms_key_id=key)
    model = ScriptedModel([measuring(9_000), "many lines"])
    async with Agent(model, tools=[measure], plugins=[ContextOffloader(storage)], callback_handler=None) as agent:
        await agent.invoke_async("Measure.")
    assert any(request.method == "PUT" for request in s3.requests)
    rules = policy(f"Sessions and storage in S3{' with a KMS key' if key else ''}", prefix)
    for call in asked_of_s3(s3.requests, encrypted=key is not None):
        assert any(rule.allows(call) for rule in rules), call


# ----------------------------------------------------------------------------------------------------------- AgentCore


def asked_of_memory(operations: Iterable[tuple[str, dict[str, Any]]]) -> Iterable[Call]:
    for operation, params in operations:
        yield f"bedrock-agentcore:{operation}", ACCOUNT.format("bedrock-agentcore", f"memory/{params['memoryId']}")


async def test_sessions_in_agentcore(tmp_path: Path) -> None:
    with agentcore_server() as server:
        at: dict[str, Any] = {"region_name": "us-east-1", "endpoint_url": server.url}

        def manager(session: str) -> AgentCoreMemorySessionManager:
            config = AgentCoreMemoryConfig(memory_id=MEMORY, session_id=session, actor_id=ACTOR)
            return AgentCoreMemorySessionManager(config, **at)

        await live(AgentCoreMemorySessions(MEMORY, ACTOR, **at), manager, tmp_path)
        check(policy("Sessions in AgentCore Memory"), asked_of_memory(server.requests))


async def test_long_term_memory_of_agentcore() -> None:
    with agentcore_server() as server:
        store = AgentCoreMemoryStore(
            memory_id=MEMORY,
            actor_id=ACTOR,
            retrieval_config={"/facts/{actorId}": RetrievalConfig(), "/likes/{actorId}": RetrievalConfig()},
            region_name="us-east-1",
            endpoint_url=server.url,
        )
        await store.search("anything")
        await store.aclose()
        check(policy("Long-term memory of AgentCore"), asked_of_memory(server.requests))


# ------------------------------------------------------------------------------------------------------------- Bedrock

MODEL_ACTIONS = {
    "converse-stream": "bedrock:InvokeModelWithResponseStream",
    "converse": "bedrock:InvokeModel",
    "invoke": "bedrock:InvokeModel",
    "count-tokens": "bedrock:CountTokens",
}


def asked_of_models(requests: Iterable[Exchange]) -> Iterable[Call]:
    """A request to a profile needs the permission for the profile and for the model, in every region it is sent to."""
    for request in requests:
        _, kind, model, operation = urlsplit(request.path).path.split("/")
        action, name = MODEL_ACTIONS[operation], unquote(model)
        assert kind == "model"
        if name.startswith("global."):
            yield action, ACCOUNT.format("bedrock", f"inference-profile/{name}")
            for region in ("us-east-1", "eu-central-1", ""):
                yield action, f"arn:aws:bedrock:{region}::foundation-model/{name.removeprefix('global.')}"
        else:
            yield action, f"arn:aws:bedrock:us-east-1::foundation-model/{name}"
        if guardrail := request.body.get("guardrailConfig"):
            yield "bedrock:ApplyGuardrail", ACCOUNT.format("bedrock", f"guardrail/{guardrail['guardrailIdentifier']}")


async def answering(exchange: Exchange) -> None:
    """Whatever a client of a model asks."""
    match exchange.path.rpartition("/")[2]:
        case "converse-stream":
            await exchange.stream(*text_frames("hello"))
        case "converse":
            message = {"role": "assistant", "content": [{"text": "hello"}]}
            usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
            answer = {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}
            await exchange.answer(200, {**answer, "metrics": {"latencyMs": 1}})
        case "count-tokens":
            await exchange.answer(200, {"inputTokens": 3})
        case _:
            await exchange.answer(200, {"embedding": [1.0, 0.0], "inputTextTokenCount": 3})


USES: dict[str, dict[str, Any]] = {
    "Streaming": {},
    "Whole": {"streaming": False},
    "Counting": {"use_native_token_count": True},
    "Guardrail": {"guardrail_id": GUARDRAIL_ID, "guardrail_version": "1"},
}


async def test_models_of_bedrock() -> None:
    rules = policy("Models of Bedrock")
    assert {rule.sid for rule in rules} == set(USES)
    everything: set[Call] = set()
    for sid, settings in USES.items():
        async with wire_server(answering) as server:
            model = BedrockModel(model_id=PROFILE_ID, region_name="us-east-1", endpoint_url=server.url, **settings)
            agent = Agent(model, callback_handler=None)
            assert str(await agent.invoke_async("Hello")).strip() == "hello"
            if sid == "Counting":
                await model.count_tokens([{"role": "user", "content": [{"text": "Hello"}]}])
            await model.aclose()
            asked = set(asked_of_models(server.requests))
        needed = {"Streaming", sid} if sid in ("Counting", "Guardrail") else {sid}
        check([rule for rule in rules if rule.sid in needed], asked)
        everything |= asked
    check(rules, everything)


async def test_embeddings_of_bedrock() -> None:
    async with wire_server(answering) as server:
        embedder = BedrockEmbedder(region_name="us-east-1", endpoint_url=server.url)
        await embedder.embed(["one", "two"])
        await embedder.aclose()
        check(policy("Embeddings of Bedrock"), asked_of_models(server.requests))


# ------------------------------------------------------------------------------------------------------ knowledge base


INGESTING = ("bedrock:IngestKnowledgeBaseDocuments", "bedrock:StartIngestionJob")
"""What AWS wants for direct ingestion: user guide of Amazon Bedrock, "Prerequisites for direct ingestion"."""


def asked_of_knowledge_base(operations: Iterable[tuple[str, dict[str, Any]]]) -> Iterable[Call]:
    for operation, params in operations:
        actions = INGESTING if operation == "IngestKnowledgeBaseDocuments" else (f"bedrock:{operation}",)
        for action in actions:
            yield action, ACCOUNT.format("bedrock", f"knowledge-base/{params['knowledgeBaseId']}")


@pytest.mark.parametrize("source", ["none", "CUSTOM", "S3", "S3 with a key"])
async def test_knowledge_bases(source: str, s3: RoughS3) -> None:
    prefix = f"life-{next(_prefixes)}"
    key = KEY if source == "S3 with a key" else None
    with knowledge_base_server() as server:
        server.base.s3_url = s3.service
        config: dict[str, Any] = {"knowledge_base_id": KNOWLEDGE_BASE, "endpoint_url": server.url}
        rules = policy("Searching a knowledge base")
        if source == "CUSTOM":
            config |= {"data_source_type": "CUSTOM", "data_source_id": CUSTOM}
        elif source != "none":
            folder = {"bucket": BUCKET, "prefix": prefix, "endpoint_url": s3.url}
            config |= {"data_source_type": "S3", "data_source_id": S3}
            config["s3"] = folder | ({"kms_key_id": key} if key else {})
        store = BedrockKnowledgeBaseStore(name="facts", config=config, writable=source != "none", scope="user-1")
        await store.initialize()
        if source != "none":
            rules += policy("Writing to a knowledge base")
            await store.add("Behemoth likes pickled mushrooms.", {"kind": "taste"})
        await store.search("mushrooms")
        await store.aclose()
        calls = [*asked_of_knowledge_base(server.requests), *asked_of_s3(s3.requests, encrypted=key is not None)]
    if source.startswith("S3"):
        rules += policy(f"Objects of a knowledge base{' with a KMS key' if key else ''}", prefix)
    check(rules, calls)
