"""What a store in a knowledge base may be told. Names and defaults are those of the SDK whose users we serve."""

from __future__ import annotations

from typing import Any

import pytest

from repertory import BedrockKnowledgeBaseConfig, BedrockKnowledgeBaseStore, ModelExtractor
from repertory.app.memory.extraction import read_extraction
from repertory.backends.memory.bedrock import ScoreBounds, entries_in, retrieval
from repertory.backends.memory_ports import implements
from repertory.errors import Invalid

CUSTOM = {"knowledge_base_id": "KB123", "data_source_type": "CUSTOM", "data_source_id": "DS456"}
FOLDER = {"bucket": "bucket", "prefix": "memories/"}


def test_the_documented_ways_to_build_one_work_and_connect_to_nothing() -> None:
    store = BedrockKnowledgeBaseStore(name="preferences", writable=True, extraction=True, config=CUSTOM)
    assert (store.name, store.writable, store.extraction, store.description) == ("preferences", True, True, None)
    assert store.max_search_results is None
    extraction = read_extraction(store.extraction, has_add=True, has_add_messages=implements(store, "add_messages"))
    assert extraction is not None
    assert isinstance(extraction.extractor, ModelExtractor)
    connection = BedrockKnowledgeBaseConfig(knowledge_base_id="KB123")
    read_only = BedrockKnowledgeBaseStore(name="team", scope="team-xyz", config=connection)
    assert (read_only.writable, read_only.scope) == (False, "team-xyz")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"config": {}}, "knowledge_base_id"),
        ({"config": {**CUSTOM, "knowledgeBaseId": "KB"}}, "knowledgeBaseId"),
        ({"config": {**CUSTOM, "knowledge_base_type": "GRAPH"}}, "knowledge_base_type"),
        ({"config": {**CUSTOM, "data_source_type": "custom"}}, "data_source_type"),
        ({"config": {"knowledge_base_id": "KB", "data_source_type": "OTHER"}, "writable": True}, "'CUSTOM' or 'S3'"),
        ({"config": {"knowledge_base_id": "KB"}, "writable": True}, "'CUSTOM' or 'S3'"),
        ({"config": {"knowledge_base_id": "KB", "data_source_type": "S3"}, "writable": True}, "data_source_id"),
        ({"config": {**CUSTOM, "data_source_type": "S3"}, "writable": True}, "bucket and a prefix"),
        ({"config": {**CUSTOM, "data_source_type": "S3", "s3": {**FOLDER, "key": 1}}, "writable": True}, "key"),
        (
            {"config": {**CUSTOM, "data_source_type": "S3", "s3": {**FOLDER, "prefix": "x" * 100}}, "writable": True},
            "too long",
        ),
        ({"config": {**CUSTOM, "runtime_client": object()}}, "boto3"),
        ({"max_search_results": 0}, "max_search_results"),
        ({"min_score": 0.1, "max_score": 0.9}, "mutually exclusive"),
        ({"access_control_list": [{"access": "allow", "name": "a", "type": "USER"}]}, "access_control_list"),
        ({"access_control_list": [{"access": "ALLOW", "name": "a"}]}, "access_control_list"),
        ({"access_control_list": ["a"]}, "access_control_list"),
        ({"name": ""}, "name"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(options: dict[str, Any], match: str) -> None:
    with pytest.raises(Invalid, match=match):
        BedrockKnowledgeBaseStore(**{"name": "facts", "config": CUSTOM, **options})


def test_a_keyword_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(TypeError, match="scopes"):
        BedrockKnowledgeBaseStore(name="facts", config=CUSTOM, scopes=["a"])  # type: ignore[call-arg]


def test_a_question_that_is_too_long_loses_its_end() -> None:
    asked = retrieval("x" * 20_001, 500, "KENDRA", {})
    assert asked == {
        "retrievalQuery": {"text": "x" * 20_000},
        "retrievalConfiguration": {"vectorSearchConfiguration": {"numberOfResults": 100}},
    }


def test_results_of_every_kind_are_read_as_words_and_unscored_ones_are_kept() -> None:
    results = [
        {"content": {"text": "text"}},
        {"content": {"row": [{"columnName": "a", "columnValue": "1"}, {"columnName": "b", "columnValue": "2"}]}},
        {"content": {"audio": {"s3Uri": "s3://a", "transcription": "said"}}, "score": 0.2},
        {"content": {"video": {"s3Uri": "s3://a", "summary": "seen"}}, "score": 0.9},
        {"content": {"byteContent": "data:"}, "score": 0.9},
        {"content": {}},
    ]
    found = list(entries_in(results, ScoreBounds(min_score=0.5)))
    assert [entry.content for entry in found] == ["text", "a: 1, b: 2", "seen"]
    assert found[2].metadata == {"_relevance_score": 0.9}


class RecordedService:
    """An object with the operations of a client, as a program's own tests have them."""

    def __init__(self) -> None:
        self.meta = self
        self.region_name = self.endpoint_url = None
        self.asked: list[dict[str, Any]] = []

    def get_knowledge_base(self, **request: Any) -> dict[str, Any]:
        return {"knowledgeBase": {"knowledgeBaseConfiguration": {"type": "VECTOR"}}}

    def retrieve(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        return {"retrievalResults": [{"content": {"text": "refunds take 5 days"}, "score": 0.9}]}


@pytest.mark.anyio
@pytest.mark.real_time
async def test_an_object_that_is_no_client_of_botocore_is_called_itself() -> None:
    service = RecordedService()
    connection = BedrockKnowledgeBaseConfig(knowledge_base_id="KB", runtime_client=service, agent_client=service)
    store = BedrockKnowledgeBaseStore(name="faq", config=connection)
    assert [entry.content for entry in await store.search("refunds")] == ["refunds take 5 days"]
    assert [request["knowledgeBaseId"] for request in service.asked] == ["KB"]
