"""A process of the campaign: it asks a model as often as the quota lets it, and notes each call in a file.

python -m tests.quotas.calling_child STORE TOKENS_PER_MINUTE WINDOW_S NOTES COSTS
"""

from __future__ import annotations

import os
import random
import sys
import time

import anyio

from repertory import Agent, ModelQuota, ModelQuotas, PostgresQuotaStore, SQLiteQuotaStore
from tests.quotas.metered_model import MeteredModel

TASKS = 8


async def main(store: str, tokens: str, window_s: str, notes: str, costs: str) -> None:
    kind, _, place = store.partition(" ")
    dsn, _, schema = place.partition(" schema:")
    made = SQLiteQuotaStore(place) if kind == "sqlite" else PostgresQuotaStore(dsn, schema=schema)
    quota = ModelQuota(tokens_per_minute=float(tokens))
    rng, prices = random.Random(), [int(each) for each in costs.split(",")]
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    async with ModelQuotas({"metered": quota}, store=made, window_s=float(window_s), wait_s=600) as quotas:
        model = quotas.limit(MeteredModel(max_tokens=max(prices) - 1))
        model.spent = lambda cost: os.write(file, f"{time.time()} {cost}\n".encode())

        async def ask() -> None:
            while True:
                agent = Agent(model, callback_handler=None)
                await agent.invoke_async(f"{rng.choice(prices)} of {rng.uniform(0, float(window_s) / 20):.3f}")
                model.asked.clear()

        async with anyio.create_task_group() as group:
            for _ in range(TASKS):
                group.start_soon(ask)


if __name__ == "__main__":
    given = iter(sys.argv[1:])
    anyio.run(main, next(given), next(given), next(given), next(given), next(given))
