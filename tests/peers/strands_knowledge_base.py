"""A knowledge base store of strands-agents, run once: by an interpreter that has the released package.

Arguments: a JSON object with `settings` of the store, `endpoint`, `s3_endpoint`, memories to `add` and a `question`.
Prints what it finds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any


def main() -> None:
    import boto3
    from strands.vended_memory_stores.bedrock_knowledge_base import BedrockKnowledgeBaseStore

    command = json.loads(sys.argv[1])
    settings: dict[str, Any] = command["settings"]
    config = settings["config"]
    for name, service in (("runtime_client", "bedrock-agent-runtime"), ("agent_client", "bedrock-agent")):
        config[name] = boto3.client(service, region_name="us-east-1", endpoint_url=command["endpoint"])
    if "s3" in config:
        config["s3"]["client"] = boto3.client("s3", region_name="us-east-1", endpoint_url=command["s3_endpoint"])
    store = BedrockKnowledgeBaseStore(**settings)

    async def use() -> list[dict[str, Any]]:
        await store.initialize()
        for content, metadata in command["add"]:
            await store.add(content, metadata)
        found = await store.search(command["question"])
        return [{"content": entry.content, "metadata": entry.metadata} for entry in found]

    print(json.dumps(asyncio.run(use())))


main()
