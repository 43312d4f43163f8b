"""The proof of the example with encrypted sessions finds what is not encrypted, and every form of a copy."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from examples.encrypted_sessions.advice_line import Settings, erase, prove, rewrap, rotate, say
from repertory import Agent, ScriptedModel, SQLiteSessionManager
from repertory.errors import KeyErased, KeyMissing

pytestmark = [pytest.mark.real_time, pytest.mark.anyio]

WORDS = "My appointment is on Monday in Bergen."


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    found = Settings(data=tmp_path / "data", keys=tmp_path / "keys", master_key=b"m" * 32)
    await say(found, "case-17", WORDS)
    return found


async def test_the_proof_holds_for_encrypted_cases(settings: Settings) -> None:
    assert await prove(settings, "Bergen")


async def test_the_proof_fails_for_a_plain_session_beside_them(settings: Settings) -> None:
    plain = SQLiteSessionManager("case-18", settings.database)
    async with Agent(ScriptedModel(["Noted."]), session_manager=plain, callback_handler=None) as agent:
        await agent.invoke_async(WORDS)
    assert not await prove(settings, "Bergen")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
async def test_the_proof_fails_for_a_file_that_has_the_words(settings: Settings, encoding: str) -> None:
    await anyio.Path(settings.data / "notes.tmp").write_bytes(WORDS.upper().encode(encoding))
    assert not await prove(settings, "Bergen")


async def test_an_old_copy_needs_the_keys_of_today(settings: Settings, tmp_path: Path) -> None:
    shutil.copytree(settings.data, tmp_path / "backup")
    backup = replace(settings, data=tmp_path / "backup")
    await rotate(settings, "case-17")
    renewed = replace(settings, master_key=b"n" * 32, former_master_keys=(settings.master_key,))
    await rewrap(renewed)
    with pytest.raises(KeyMissing):
        await say(settings, "case-17", "What is my appointment")  # with the former master key
    current = replace(renewed, former_master_keys=())
    await say(replace(backup, master_key=b"n" * 32), "case-17", "What is my appointment")
    await erase(current, "case-17")
    with pytest.raises(KeyErased):
        await say(replace(backup, master_key=b"n" * 32), "case-17", "What is my appointment")
