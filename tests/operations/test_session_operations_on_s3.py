"""Every operation on sessions in a bucket, as a server of S3 sees them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from repertory import Sessions
from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import Overwrite, give_up
from repertory.backends.sessions.journal.format import unpack
from repertory.core.messages import text_of
from repertory.errors import CorruptJournal, NotFound, SessionBusy
from tests.backends.objects.moto_s3 import BUCKET, moto_s3
from tests.operations.operated_places import at_time, fill_store, place_of, talk

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
SECRET = "the cat's name is Behemoth"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as served:
        yield served


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up keys and a region, and nothing else of the surroundings."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


async def objects(url: str, prefix: str) -> AsyncIterator[tuple[S3ObjectStore, str, bytes]]:
    """Every object below a prefix of the bucket."""
    store = S3ObjectStore(BUCKET, prefix, writer="test", aws=AwsSettings(endpoint_url=url))
    try:
        for info in await store.list(""):
            yield store, info.key, (await store.get(info.key)).body
    finally:
        await store.aclose()


async def holding(url: str, prefix: str) -> list[str]:
    """The objects that say the secret, compressed or not."""
    found: list[str] = []
    async for _, key, body in objects(url, prefix):
        plain = b"".join(row.body for row in unpack(body).rows) if body.startswith(b"RptJ") else body
        found += [key] if SECRET.encode() in plain else []
    return found


@pytest.mark.parametrize(
    ("anyio_backend", "kind"),
    [("asyncio", "journal on s3"), ("trio", "documents on s3")],
    indirect=["anyio_backend"],
)
async def test_sessions_in_a_bucket_are_looked_after_as_everywhere(kind: str, url: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path, url)
    prefix, file = f"{kind[0]}/{tmp_path.name}", tmp_path / "s.jsonl"
    rows = talk("hello", f"I say that {SECRET}.", "so?", "yes", state={"n": 1}, label="end").rows
    agent = place.open_store()
    await fill_store(agent, "s", rows)
    async with Sessions(place) as sessions:
        await sessions.export("s", file)
        assert (await sessions.import_(file, session_id="copy")).added == len(rows)
        assert list(await agent.load("copy", "agent", whole=True)) == rows
        await sessions.fork("s", "fork", at=1)
        assert [text_of(each.message) for each in (await sessions.show("fork")).agents["agent"].messages] == ["hello"]
        await sessions.mark("fork", "begun", {"n": 1})
        assert [(mark.label, mark.position) for mark in await sessions.marks("fork")] == [("begun", 2)]
        assert [each.what for each in (await sessions.history("fork")).happenings] == ["turn", "fork", "mark"]
        assert list((await sessions.prune("fork", keep=0)).marks) == ["begun"]
        assert {hit.session_id for hit in (await sessions.search("behemoth")).hits} == {"s", "copy"}
        await sessions.rewind("copy", 2)
        assert len((await sessions.diff("s", "copy")).messages) == 2
        lease, _ = await agent.acquire("s")
        with pytest.raises(SessionBusy):
            await sessions.redact("s", 2, "[removed]")
        await give_up(agent, lease)

        assert await holding(url, prefix)
        for session_id in ("s", "copy"):
            await sessions.redact(session_id, 2, "[removed]")
        assert await holding(url, prefix) == []
        assert (await sessions.doctor()).ok
        assert (await sessions.delete("fork")).looked_for
        if kind.startswith("journal"):
            await is_set_aside(sessions, url, prefix)
        assert sorted((await at_time(place, 4e9).expire(60)).expired) == ["copy", "s"]
        with pytest.raises(NotFound):
            await sessions.show("s")
    await agent.aclose()


async def is_set_aside(sessions: Sessions, url: str, prefix: str) -> None:
    """What is damaged in a bucket is copied aside, and the session opens again."""
    async for store, key, body in objects(url, prefix):
        if key == "journals/s/head":
            await store.put(key, body[:-3], Overwrite())
    with pytest.raises(CorruptJournal):
        await sessions.show("s")
    report = await sessions.doctor(repair=True)
    assert report.ok, report
    assert {each.session_id: bool(each.problems) for each in report.sessions} == {"s": True, "copy": False}
    assert len((await sessions.show("s")).agents["agent"].messages) == 4
    assert "quarantine/journals/s/0001/head" in [key async for _, key, _ in objects(url, prefix)]
