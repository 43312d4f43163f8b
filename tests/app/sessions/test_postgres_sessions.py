"""Agents, runtimes and the command line on sessions in PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    PostgresSessionManager,
    PostgresSessions,
    Runtime,
    ScriptedModel,
    Sessions,
    StorePatience,
)
from repertory.backends.ports import Batch
from repertory.console.session_commands import location_named
from repertory.errors import Invalid, LeaseLost, SessionBusy, Unavailable
from repertory.testing.cutting_relay import cutting_relay
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import PostgresServer
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def manager(postgres: PostgresServer, place: Path, session_id: str = "chat", **more: bool) -> PostgresSessionManager:
    return PostgresSessionManager(session_id, postgres.url, schema=schema_of(place), **more)


async def test_a_conversation_goes_on_in_another_agent(postgres: PostgresServer, tmp_path: Path) -> None:
    async with Agent(ScriptedModel(["first"]), session_manager=manager(postgres, tmp_path)) as agent:
        await agent.invoke_async("one")
    async with Agent(ScriptedModel(["second"]), session_manager=manager(postgres, tmp_path)) as agent:
        await agent.invoke_async("two")
        texts = [message["content"][0]["text"] for message in agent.messages]
    assert texts == ["one", "first", "two", "second"]


def test_an_agent_without_an_event_loop_works_as_well(postgres: PostgresServer, tmp_path: Path) -> None:
    for number in range(2):
        agent = Agent(ScriptedModel([f"answer {number}"]), session_manager=manager(postgres, tmp_path))
        agent(f"question {number}")
    assert len(agent.messages) == 4


@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)
async def test_many_sessions_share_a_runtime_and_drain_leaves_them_free(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    place = PostgresSessions(postgres.url, schema=schema_of(tmp_path))
    with anyio.fail_after(50):
        async with Runtime(sessions=place) as runtime:
            spec = runtime.agent(AgentSpec(model=ScriptedModel(["hello"], loop=True)))

            async def talk(number: int) -> None:
                await spec.session(f"s{number}").invoke("hello")
                await spec.session(f"s{number}").invoke("again")

            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(talk, number)
            report = await runtime.drain()
            assert report.ok
        infos = await place.list()
        assert len(infos) == 20
        assert {info.owner for info in infos} == {None}


async def test_two_runtimes_take_turns_in_one_session(postgres: PostgresServer, tmp_path: Path) -> None:
    one, two = (PostgresSessions(postgres.url, schema=schema_of(tmp_path)) for _ in range(2))
    assert one.key == two.key
    spec = AgentSpec(model=ScriptedModel(["hello"], loop=True))
    with anyio.fail_after(20):
        async with Runtime(sessions=one) as first, Runtime(sessions=two) as second:
            for _ in range(4):
                for runtime in (first, second):
                    await runtime.agent(spec).session("shared").invoke("hello")
        assert [dict(info.agents) for info in await one.list()] == [{"default": 16}]


async def test_a_session_that_is_held_open_elsewhere_is_busy_and_may_be_taken_over(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    place = PostgresSessions(postgres.url, schema=schema_of(tmp_path))
    store = place.open_store()
    try:
        with anyio.fail_after(20):
            lease, _ = await store.acquire("chat")
            hurried = Agent(
                ScriptedModel(["no"]),
                session_manager=manager(postgres, tmp_path),
                patience=StorePatience(busy_s=0.5),
            )
            with pytest.raises(SessionBusy) as refused:
                await hurried.invoke_async("hello")
            assert refused.value.fields["owner"] == lease.owner
            taking = manager(postgres, tmp_path, takeover=True)
            async with Agent(ScriptedModel(["yes"]), session_manager=taking) as agent:
                await agent.invoke_async("hello")
            (outcome,) = await store.append([Batch(lease=lease, rows=())])
            assert isinstance(outcome, LeaseLost)
    finally:
        await store.aclose()


def test_neither_a_place_nor_a_manager_shows_its_password() -> None:
    dsn = "postgresql://me:an-unusual-passphrase@db.example/sessions"
    place = PostgresSessions(dsn, direct_dsn=dsn)
    assert place.key == "postgresql://me@db.example:5432/sessions#repertory"
    assert place.pooled
    for shown in (repr(place), str(place), repr(PostgresSessionManager("chat", dsn)), place.open_store().name):
        assert "an-unusual-passphrase" not in shown


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(Invalid, match="session_id"):
        PostgresSessionManager("a/b", "postgresql://h/d")
    for arguments in ({"schema": "A"}, {"connections": 0}, {"connections": True}):
        with pytest.raises(Invalid):
            PostgresSessions("postgresql://h/d", **arguments)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        PostgresSessions("no connection string")


def test_the_command_line_names_a_place_by_its_url() -> None:
    place = location_named("postgresql://me@db.example/sessions#mine")
    assert isinstance(place, PostgresSessions)
    assert (place.key, place.schema) == ("postgresql://me@db.example:5432/sessions#mine", "mine")
    assert isinstance(location_named("postgres://db.example/sessions"), PostgresSessions)


def test_without_psycopg_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['psycopg'] = None\nfrom repertory import PostgresSessions\nPostgresSessions('')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert "pip install 'repertory[postgres]'" in ran.stderr.splitlines()[-1]


async def test_the_command_line_does_everything_with_sessions_there(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = schema_of(tmp_path)
    async with Agent(ScriptedModel(["hello there"]), session_manager=manager(postgres, tmp_path)) as agent:
        await agent.invoke_async("a question")
    at = ["--at", f"{postgres.url}#{schema}"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}

    async def run(*command: str) -> str:
        program = [sys.executable, "-m", "repertory.console.main", "sessions", command[0], *at, *command[1:]]
        ran = await anyio.run_process(program, env=environ, check=False, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr.decode() + ran.stdout.decode()
        return ran.stdout.decode()

    with anyio.fail_after(55):
        assert [line["session_id"] for line in json.loads(await run("list", "--json"))] == ["chat"]
        assert "hello there" in await run("show", "chat")
        await run("export", "chat", "chat.jsonl")
        await run("fork", "chat", "copy")
        await run("import", "chat.jsonl", "--as", "third")
        await run("doctor")
        await run("redact", "chat", "1", "--yes")
        assert "a question" not in await run("show", "chat")
        await run("delete", "copy", "--yes")
    assert {info.session_id for info in await Sessions(PostgresSessions(postgres.url, schema=schema)).list()} == {
        "chat",
        "third",
    }


async def test_a_database_that_swallows_what_is_sent_costs_no_more_than_the_patience(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    async with cutting_relay(postgres.port) as relay:
        place = PostgresSessions(postgres.dsn(host="127.0.0.1", port=str(relay.port)), schema=schema_of(tmp_path))
        async with Runtime(sessions=place, patience=StorePatience(wait_s=0.5)) as runtime:
            agent = runtime.agent(AgentSpec(model=ScriptedModel(["hello"], loop=True)))
            await agent.session("one").invoke("hello")
            relay.hold()
            with anyio.fail_after(50), pytest.raises(Unavailable) as failed:
                await agent.session("another").invoke("hello")
            relay.let_flow()
            await agent.session("another").invoke("hello")
    assert cast("float", failed.value.fields["waited_s"]) <= 0.5
