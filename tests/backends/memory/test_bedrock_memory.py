"""A knowledge base as a memory store, over its protocols on loopback, with a bucket beside it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import anyio
import anyio.to_thread
import pytest

from repertory import BedrockKnowledgeBaseStore
from repertory.core.memory.options import AddMessagesContext, SearchOptions
from repertory.errors import Failed, Invalid, LimitReached, NotFound, Retryable, Unavailable
from tests.backends.memory.knowledge_base import (
    CUSTOM,
    KNOWLEDGE_BASE,
    S3,
    KnowledgeBaseServer,
    knowledge_base_server,
    read_object,
)
from tests.backends.objects.moto_s3 import BUCKET
from tests.backends.sessions.agentcore_server import Drop, Hang, Say

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("aws_keys")]

WAIT_S = 20.0
THROTTLED = Say("ThrottlingException", "Rate exceeded")
BROKEN = Say("InternalServerException", "Something went wrong", 500)

_names = count()


@pytest.fixture(scope="module")
def running() -> Iterator[KnowledgeBaseServer]:
    with knowledge_base_server() as server:
        yield server


@pytest.fixture
def service(running: KnowledgeBaseServer) -> KnowledgeBaseServer:
    running.plan = lambda operation, params: None
    running.requests.clear()
    running.base.documents.clear()
    running.base.accepted.clear()
    running.base.kind, running.base.page_results, running.base.ingest_status = "VECTOR", 100, "STARTING"
    return running


@asynccontextmanager
async def store(service: KnowledgeBaseServer, **options: Any) -> AsyncIterator[BedrockKnowledgeBaseStore]:
    """A store over the server. `config` is laid over one that writes to the CUSTOM data source."""
    config = {
        "knowledge_base_id": KNOWLEDGE_BASE,
        "data_source_type": "CUSTOM",
        "data_source_id": CUSTOM,
        "endpoint_url": service.url,
        **options.pop("config", {}),
    }
    opened = BedrockKnowledgeBaseStore(**{"name": "facts", "writable": True, **options}, config=config)
    with anyio.fail_after(WAIT_S):
        try:
            yield opened
        finally:
            await opened.aclose()


async def on_s3(service: KnowledgeBaseServer, s3_url: str) -> dict[str, Any]:
    """The config of a store that writes to the S3 data source, in a folder of its own."""
    service.base.s3_url = s3_url
    folder = {"bucket": BUCKET, "prefix": f"memories-{next(_names)}/", "endpoint_url": s3_url}
    return {"data_source_type": "S3", "data_source_id": S3, "s3": folder}


# ------------------------------------------------------------------------------------------------------------ searching


async def test_what_was_added_is_found_with_its_metadata_the_best_first(service: KnowledgeBaseServer) -> None:
    async with store(service) as facts:
        first = await facts.add(
            "Ünï likes green tea 😀", {"category": "taste", "weight": 2, "sure": True, "tags": ["a"]}
        )
        await facts.add("Somebody else likes coffee")
        found = await facts.search("who likes green tea")
        assert [entry.content for entry in found] == ["Ünï likes green tea 😀", "Somebody else likes coffee"]
        assert found[0].metadata == {
            "category": "taste",
            "weight": 2,
            "sure": True,
            "tags": ["a"],
            "_relevance_score": 0.75,
            "_source_location": {"type": "CUSTOM", "customDocumentLocation": {"id": first.document_id}},
            "_document_id": first.document_id,
        }
        assert await facts.search("xylophone") == []
        asked = len(service.requests)
        assert await facts.search(" \n") == []
        assert len(service.requests) == asked


async def test_the_callers_limit_counts_before_the_stores_in_either_spelling(service: KnowledgeBaseServer) -> None:
    async with store(service, max_search_results=2) as facts:
        for number in range(5):
            await facts.add(f"fact {number}")
        service.requests.clear()
        assert len(await facts.search("fact")) == 2
        for options in (SearchOptions(max_search_results=4), {"max_search_results": 4}):
            assert len(await facts.search("fact", options)) == 4  # type: ignore[arg-type]
        wanted = [
            params["retrievalConfiguration"]["vectorSearchConfiguration"]["numberOfResults"]
            for _, params in service.requests
            if "retrievalConfiguration" in params
        ]
        assert wanted == [2, 4, 4]
        for wrong in (0, -1, True, "3"):
            with pytest.raises(Invalid, match="max_search_results"):
                await facts.search("fact", {"max_search_results": wrong})  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="limit"):
            await facts.search("fact", {"limit": 3})  # type: ignore[arg-type]


async def test_results_are_read_page_by_page_up_to_the_limit_and_no_further(service: KnowledgeBaseServer) -> None:
    async with store(service) as facts:
        for number in range(9):
            await facts.add(f"fact {number}")
        service.base.page_results = 3
        service.requests.clear()
        assert len(await facts.search("fact", SearchOptions(max_search_results=7))) == 7
        assert service.operations().count("Retrieve") == 3
        assert len(await facts.search("fact", SearchOptions(max_search_results=200))) == 9


async def test_a_store_finds_its_own_scope_and_a_filter_takes_its_place(service: KnowledgeBaseServer) -> None:
    async with store(service, scope="user-1") as one, store(service, scope="user-2") as two, store(service) as every:
        await one.add("likes tea", {"namespace": "user-2"})
        await two.add("likes coffee")
        await every.add("likes water")
        assert [entry.content for entry in await one.search("likes")] == ["likes tea"]
        assert [entry.content for entry in await two.search("likes")] == ["likes coffee"]
        assert len(await every.search("likes")) == 3
    chosen = {"equals": {"key": "team", "value": "x"}}
    config = {"scope_metadata_key": "team"}
    async with store(service, scope="x", config=config) as named, store(service, scope="y", filter=chosen) as filtered:
        await named.add("likes milk")
        assert [entry.content for entry in await filtered.search("likes")] == ["likes milk"]


async def test_scores_out_of_bounds_are_left_out(service: KnowledgeBaseServer) -> None:
    async with store(service, min_score=0.6) as good, store(service, max_score=0.6) as near:
        await good.add("one two three")
        await good.add("one")
        assert [entry.content for entry in await good.search("one two three")] == ["one two three"]
        assert [entry.content for entry in await near.search("one two three")] == ["one"]


@pytest.mark.parametrize("kind", ["VECTOR", "MANAGED"])
async def test_the_kind_of_the_knowledge_base_is_asked_for_once(service: KnowledgeBaseServer, kind: str) -> None:
    service.base.kind = kind
    async with store(service) as facts:
        assert facts.statistics().kind is None
        assert await facts.search("a") == []
        assert await facts.search("b") == []
        assert service.operations() == ["GetKnowledgeBase", "Retrieve", "Retrieve"]
        assert facts.statistics().kind == kind
    service.requests.clear()
    async with store(service, config={"knowledge_base_type": kind}) as told:
        assert await told.search("a") == []
        assert service.operations() == ["Retrieve"]


async def test_who_may_not_ask_for_the_kind_can_search_all_the_same(service: KnowledgeBaseServer) -> None:
    service.next_plans("GetKnowledgeBase", Say("AccessDeniedException", "no"))
    async with store(service) as facts:
        await facts.add("likes tea")
        assert len(await facts.search("tea")) == 1
        assert len(await facts.search("tea")) == 1
        assert service.operations().count("GetKnowledgeBase") == 1


# --------------------------------------------------------------------------------------------------------------- adding


async def test_the_same_memory_under_the_same_key_is_one_document(service: KnowledgeBaseServer) -> None:
    context = AddMessagesContext(
        idempotency_key="session/agent/7", session_id="s", agent_id="a", said_at=1_700_000_000.0, sequence_numbers=[7]
    )
    async with store(service, scope="u") as one, store(service, scope="u") as again, store(service, scope="v") as other:
        ids = [(await each.add("likes tea", context=context)).document_id for each in (one, one, again, other)]
        assert ids[0] == ids[1] == ids[2] != ids[3]
        tokens = [params["clientToken"] for params in service.base.accepted]
        assert tokens[0] == tokens[1] == tokens[2] != tokens[3]
        (found,) = await one.search("tea")
        assert found.metadata is not None
        source = {"session_id": "s", "agent_id": "a", "said_at": "2023-11-14T22:13:20Z", "namespace": "u"}
        assert {**found.metadata, **source} == found.metadata
        without = [(await one.add("likes tea")).document_id for _ in range(2)]
        assert len({*ids, *without}) == 4


async def test_a_lost_answer_is_asked_for_again_and_makes_no_second_document(service: KnowledgeBaseServer) -> None:
    service.next_plans("IngestKnowledgeBaseDocuments", Drop(done=True), THROTTLED)
    async with store(service) as facts:
        await facts.add("likes tea")
        assert service.operations() == ["IngestKnowledgeBaseDocuments"] * 3
        assert len({params["clientToken"] for _, params in service.requests}) == 1
        assert len(service.base.documents) == 1


async def test_metadata_are_kept_as_the_service_can_say_them(service: KnowledgeBaseServer) -> None:
    async with store(service) as facts:
        await facts.add(
            "likes tea",
            {"none": None, "empty": "", "blank": {}, "nested": {"a": [1]}, "many": [*"abcdefghijk"], "n": 1.5},
        )
        (found,) = await facts.search("tea")
        assert found.metadata is not None
        kept = {key: value for key, value in found.metadata.items() if not key.startswith("_")}
        assert kept == {"nested": '{"a": [1]}', "many": json.dumps([*"abcdefghijk"]), "n": 1.5}
        await facts.add("likes milk", {})
        assert "metadata" not in service.base.accepted[-1]["documents"][0]
        for wrong in ({"k" * 201: 1}, {"k": "x" * 2049}, {str(n): n for n in range(51)}, {"k": float("nan")}):
            with pytest.raises(Invalid):
                await facts.add("likes tea", wrong)
        for content in ("", " \n", "\ud800"):
            with pytest.raises(Invalid):
                await facts.add(content)
        with pytest.raises(LimitReached, match="chars_max=5242880"):
            await facts.add("x" * 5_242_881)
        assert len(service.base.accepted) == 2


async def test_who_may_see_a_memory_is_said_beside_it(service: KnowledgeBaseServer) -> None:
    access = [{"access": "ALLOW", "name": "ada@example.com", "type": "USER"}]
    async with store(service, access_control_list=access) as facts:
        await facts.add("likes tea", {"k": 1})
        assert service.base.accepted[0]["documents"][0]["metadata"]["accessControlList"] == access
        with pytest.raises(Invalid, match="give the store a scope"):
            await facts.add("likes tea")
    service.next_plans("IngestKnowledgeBaseDocuments", Say("ValidationException", "AccessControlList is required"))
    async with store(service) as without:
        with pytest.raises(Invalid, match="access_control_list"):
            await without.add("likes tea")


async def test_a_document_that_the_service_did_not_take_is_an_error(service: KnowledgeBaseServer) -> None:
    service.base.ingest_status = "FAILED"
    async with store(service) as facts:
        with pytest.raises(Failed, match=r"did not take.*reason='said so'"):
            await facts.add("likes tea")


async def test_an_s3_data_source_is_given_objects_and_what_says_their_scope_comes_first(
    service: KnowledgeBaseServer, s3_url: str
) -> None:
    config = await on_s3(service, s3_url)
    access = [{"access": "DENY", "name": "bob@example.com", "type": "USER"}]
    context = AddMessagesContext(idempotency_key="1")
    async with store(service, config=config, scope="user-1", access_control_list=access) as facts:
        drafts = ("likes coffee", "likes tea ü", "likes tea ü")
        added = [(await facts.add(text, {"k": 1}, context=context)).document_id for text in drafts]
        tokens = [params["clientToken"] for params in service.base.accepted]
        assert added[0] == added[1] == added[2]
        assert tokens[0] != tokens[1] == tokens[2], "what was said anew would not be read again"
        assert added[0].startswith(f"s3://{BUCKET}/{config['s3']['prefix']}")
        (found,) = await facts.search("tea")
        assert found.content == "likes tea ü"
        assert found.metadata is not None
        assert (found.metadata["k"], found.metadata["namespace"]) == (1, "user-1")
        beside = json.loads(await anyio.to_thread.run_sync(read_object, s3_url, f"{added[0]}.metadata.json"))
        assert beside["metadataAttributes"]["k"] == {
            "value": {"type": "NUMBER", "numberValue": 1},
            "includeForEmbedding": False,
        }
        assert beside["accessControlList"] == [{"Access": "DENY", "Name": "bob@example.com", "Type": "USER"}]
        assert await anyio.to_thread.run_sync(partial(read_object, s3_url, added[0])) == "likes tea ü".encode()
    async with store(service, config=config) as plain:
        await plain.add("likes milk")
        assert "metadata" not in service.base.accepted[-1]["documents"][0]


# --------------------------------------------------------------------------------------------------------------- errors


async def test_what_no_retry_mends_fails_at_once_and_stands_in_the_statistics(service: KnowledgeBaseServer) -> None:
    async with store(service, config={"knowledge_base_type": "VECTOR"}) as facts:
        for operation, call in (("Retrieve", facts.search), ("IngestKnowledgeBaseDocuments", facts.add)):
            service.requests.clear()
            service.next_plans(operation, Say("AccessDeniedException"))
            with pytest.raises(Failed, match="bedrock:Retrieve") as caught:
                await call("tea")
            assert caught.value.fields["knowledge_base_id"] == KNOWLEDGE_BASE
            assert caught.value.__cause__ is not None
            assert facts.statistics().error is caught.value
            assert len(service.requests) == 1
            await call("tea")
            assert facts.statistics().error is None


async def test_what_passes_is_waited_for(service: KnowledgeBaseServer) -> None:
    waking = Say("ValidationException", "The Aurora DB instance is resuming after being auto-paused")
    async with store(service, config={"knowledge_base_type": "VECTOR"}) as facts:
        for said in (THROTTLED, BROKEN, waking, Drop()):
            service.requests.clear()
            service.next_plans("Retrieve", said)
            assert await facts.search("tea") == []
            assert service.operations() == ["Retrieve", "Retrieve"]


async def test_patience_ends(service: KnowledgeBaseServer) -> None:
    service.plan = lambda operation, params: THROTTLED
    async with store(service, config={"knowledge_base_type": "VECTOR"}, timeout_s=0.5) as facts:
        with pytest.raises(Retryable):
            await facts.search("tea")


async def test_a_store_can_be_built_and_prepared_without_a_network_and_says_later_what_is_wrong(
    service: KnowledgeBaseServer,
) -> None:
    async with store(service, config={"endpoint_url": "http://127.0.0.1:9"}, timeout_s=0.3) as facts:
        await facts.initialize()
        assert isinstance(facts.statistics().error, Unavailable)
        for call in (facts.search, facts.add):
            with pytest.raises(Unavailable):
                await call("tea")
    service.next_plans("GetKnowledgeBase", Say("ResourceNotFoundException"))
    async with store(service) as missing:
        await missing.initialize()
        assert isinstance(missing.statistics().error, NotFound)
        await missing.initialize()
        assert missing.statistics().error is None
        assert missing.statistics().kind == "VECTOR"


async def test_without_credentials_the_message_says_what_to_set(
    service: KnowledgeBaseServer, aws_keys: pytest.MonkeyPatch
) -> None:
    aws_keys.delenv("AWS_ACCESS_KEY_ID")
    async with store(service) as facts:
        with pytest.raises(Invalid, match=r"AWS_ACCESS_KEY_ID.*boto_session"):
            await facts.search("tea")


async def test_clients_of_the_users_say_where_and_as_whom(
    service: KnowledgeBaseServer, aws_keys: pytest.MonkeyPatch
) -> None:
    import boto3

    session = boto3.Session("AKIDOTHER", "secret", region_name="eu-north-1")
    clients = [
        await anyio.to_thread.run_sync(partial(session.client, name, endpoint_url=service.url))
        for name in ("bedrock-agent-runtime", "bedrock-agent")
    ]
    aws_keys.delenv("AWS_ACCESS_KEY_ID")
    config = {"runtime_client": clients[0], "agent_client": clients[1], "endpoint_url": None}
    async with store(service, config=config) as facts:
        await facts.add("likes tea")
        assert len(await facts.search("tea")) == 1


async def test_cancellation_ends_a_request_and_the_store_goes_on(service: KnowledgeBaseServer) -> None:
    service.next_plans("Retrieve", Hang())
    async with store(service, config={"knowledge_base_type": "VECTOR"}) as facts:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(facts.search, "tea")
            await anyio.to_thread.run_sync(service.hung.wait, 10.0)
            tasks.cancel_scope.cancel()
        service.closing.set()
        assert await facts.search("tea") == []
        await facts.aclose()
        assert await facts.search("tea") == []
