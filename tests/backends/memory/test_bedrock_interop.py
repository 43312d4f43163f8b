"""Memories that we and the released strands-agents package keep in one knowledge base, each by its own store.

Needs an interpreter that has the package; see tests/peers/strands-requirements.txt.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from repertory import BedrockKnowledgeBaseStore
from repertory.core.memory.options import MemoryEntry
from tests.backends.memory.knowledge_base import CUSTOM, KNOWLEDGE_BASE, S3, FakeKnowledgeBase, knowledge_base_server
from tests.backends.objects.moto_s3 import BUCKET

PEERS = Path(__file__).parents[2] / "peers"
PYTHON = Path(os.environ.get("REPERTORY_STRANDS_PYTHON") or PEERS / "strands/bin/python")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real_time,
    pytest.mark.usefixtures("aws_keys"),
    pytest.mark.skipif(not PYTHON.exists(), reason="NOT TESTED against strands-agents: `make peers` installs it"),
]
SOURCES: dict[str, dict[str, Any]] = {
    "CUSTOM": {"data_source_id": CUSTOM},
    "S3": {"data_source_id": S3, "s3": {"bucket": BUCKET, "prefix": "memories/"}},
}
METADATA = {"category": "taste", "weight": 2.5, "sure": True, "tags": ["a", "b"]}


def ask_peer(**command: Any) -> list[dict[str, Any]]:
    """What the package finds."""
    environment = {**os.environ, "OTEL_SDK_DISABLED": "true"}
    done = subprocess.run(
        [str(PYTHON), str(PEERS / "strands_knowledge_base.py"), json.dumps(command)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def facts(found: Any) -> list[tuple[str, dict[str, Any]]]:
    """What was given to be remembered, of entries or of what the package printed."""
    known = [
        (entry.content, entry.metadata) if isinstance(entry, MemoryEntry) else tuple(entry.values()) for entry in found
    ]
    return sorted((content, {k: v for k, v in metadata.items() if k[0] != "_"}) for content, metadata in known)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("source", SOURCES)
async def test_each_finds_what_the_other_has_stored_in_the_scope(source: str, s3_url: str) -> None:
    config = {"knowledge_base_id": KNOWLEDGE_BASE, "data_source_type": source, **SOURCES[source]}
    settings = {"name": "facts", "scope": "user-1", "writable": True, "config": config}
    with knowledge_base_server(FakeKnowledgeBase(s3_url=s3_url)) as server:
        ours = {**copy.deepcopy(settings), "config": {**copy.deepcopy(config), "endpoint_url": server.url}}
        if source == "S3":
            ours["config"]["s3"]["endpoint_url"] = s3_url
        store = BedrockKnowledgeBaseStore(**ours)
        other = BedrockKnowledgeBaseStore(**{**ours, "name": "others", "scope": "user-2"})
        with anyio.fail_after(50):
            await store.add("likes green tea", METADATA)
            await other.add("likes coffee")
            ask = partial(
                ask_peer,
                settings=settings,
                endpoint=server.url,
                s3_endpoint=s3_url,
                add=[("likes black tea", METADATA)],
                question="likes",
            )
            theirs = await anyio.to_thread.run_sync(ask)
            scoped = {**METADATA, "namespace": "user-1"}
            assert facts(theirs) == [("likes black tea", scoped), ("likes green tea", scoped)]
            assert facts(await store.search("likes")) == facts(theirs)
            assert [set(each["metadata"]) for each in theirs] == [{*scoped, "_relevance_score", "_source_location"}] * 2
            await store.aclose()
            await other.aclose()
