"""An advice line whose conversations nobody reads from the disk, from a backup or from a copy.

    export REPERTORY_MASTER_KEY=$(python -m examples.encrypted_sessions new-master-key)
    python -m examples.encrypted_sessions say case-17 My doctor is called Dr. Berg.
    python -m examples.encrypted_sessions prove Dr. Berg           # looks for the words in every byte on the disk
    python -m examples.encrypted_sessions rotate case-17           # another key for what is written from now on
    python -m examples.encrypted_sessions rewrap                   # another master key for the keys of all cases
    python -m examples.encrypted_sessions erase case-17            # nobody reads it again, nor any copy of it

Cases have numbers, since the ids of sessions stay readable. The keys lie in a folder of their own: leave that out of
the backups of the sessions, and keep the master key away from both.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from repertory import Agent, LocalKeys, RepertoryError, Sessions, SQLiteSessionManager, SQLiteSessions, named_model

SYSTEM_PROMPT = "You give advice on letters and appointments with authorities. Answer briefly, and never ask for names."


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    model: str = "offline"
    """`REPERTORY_MODEL`: `anthropic`, `openai:gpt-5.4`, `bedrock`, the id of a Bedrock model, or `offline`."""
    data: Path = Path("~/.repertory/examples/encrypted_sessions")
    """`ADVICE_DATA`: the folder of the sessions."""
    keys: Path = Path("~/.repertory/examples/encrypted_sessions.keys")
    """`ADVICE_KEYS`: the folder of their keys, best on another disk."""
    master_key: bytes = field(default=b"", repr=False)
    """`REPERTORY_MASTER_KEY`: 32 bytes in hexadecimal. Take it from a vault, never from a file beside the data."""
    former_master_keys: tuple[bytes, ...] = field(default=(), repr=False)
    """`ADVICE_FORMER_MASTER_KEYS`: those that have wrapped keys before, with commas between them."""

    @staticmethod
    def read(environ: Mapping[str, str]) -> Settings:
        """The settings of an environment. Errors: `ValueError` without a master key, or with one that is none."""
        master_key = bytes.fromhex(environ.get("REPERTORY_MASTER_KEY", ""))
        if len(master_key) != 32:
            raise ValueError("REPERTORY_MASTER_KEY is 64 hexadecimal digits; `new-master-key` makes one")
        former = environ.get("ADVICE_FORMER_MASTER_KEYS", "").split(",")
        return Settings(
            model=environ.get("REPERTORY_MODEL") or Settings.model,
            data=Path(environ.get("ADVICE_DATA") or Settings.data).expanduser(),
            keys=Path(environ.get("ADVICE_KEYS") or Settings.keys).expanduser(),
            master_key=master_key,
            former_master_keys=tuple(bytes.fromhex(key) for key in former if key),
        )

    def local_keys(self) -> LocalKeys:
        """Where the keys of the sessions are. With `KmsKeys(...)` here, AWS KMS wraps them."""
        return LocalKeys(self.keys, master_key=self.master_key, former_master_keys=self.former_master_keys)

    @property
    def database(self) -> Path:
        return self.data / "sessions.db"

    def sessions(self) -> Sessions:
        """The operations on all sessions, with the keys."""
        return Sessions(SQLiteSessions(self.database, encryption=self.local_keys()))


async def say(settings: Settings, case: str, text: str) -> None:
    """One turn of a case. What was said is on the disk when this returns, encrypted."""
    session = SQLiteSessionManager(case, settings.database, encryption=settings.local_keys())
    model = named_model(settings.model)
    async with Agent(model, system_prompt=SYSTEM_PROMPT, session_manager=session) as agent:
        print(await agent.invoke_async(text))


async def prove(settings: Settings, text: str) -> bool:
    """Whether these words are readable with the keys alone: in no file, and not by a process without them."""
    files = [path for folder in (settings.data, settings.keys) for path in folder.rglob("*") if path.is_file()]
    leaks = [path for path in files if any(form in path.read_bytes().lower() for form in _forms(text))]
    print(f"on the disk: {len(files)} files, {sum(path.stat().st_size for path in files)} bytes read")
    for path in leaks:
        print(f"  {path} has it in plain text")
    print(f"  {text!r} stands in {len(leaks)} of them")

    async with Sessions(SQLiteSessions(settings.database)) as without_keys:
        closed = await without_keys.search(text)
    print(f"without the keys: {len(closed.hits)} messages found, {len(closed.unreadable)} sessions cannot be read")
    async with settings.sessions() as sessions:
        opened = await sessions.search(text)
    print(f"with the keys: {len(opened.hits)} messages found, {len(opened.unreadable)} sessions cannot be read")
    return not leaks and not closed.hits


def _forms(text: str) -> Iterator[bytes]:
    """The bytes in which a program could have stored a text, in small letters."""
    lower = text.lower()
    yield from (lower.encode(), lower.encode("utf-16-le"), ascii(lower)[1:-1].encode())


async def rotate(settings: Settings, case: str) -> None:
    """Give a case another key. Earlier messages stay sealed by the keys before, which are kept."""
    async with settings.sessions() as sessions:
        rotation = await sessions.rotate_key(case)
    print(f"{case} is written with the key {rotation.key_id} from now on")


async def rewrap(settings: Settings) -> None:
    """Wrap the keys of all cases with the current master key. Afterwards nothing needs the former ones."""
    print(f"the keys of {await settings.local_keys().rewrap()} cases have another master key")


async def erase(settings: Settings, case: str) -> None:
    """Erase the keys of a case. Its rows stay as a proof that something was there, and when."""
    async with settings.sessions() as sessions:
        erasure = await sessions.erase_key(case)
    print(f"{erasure.session_id} cannot be read any more, here or in a copy")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0; 1 for a case that cannot be read, and for words that stand on the disk."""
    parser = argparse.ArgumentParser(prog="advice_line", description="Advice in encrypted sessions.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("new-master-key", help="print a random master key")
    saying = commands.add_parser("say", help="say something in a case, and print the answer")
    saying.add_argument("case")
    saying.add_argument("text", nargs="+")
    commands.add_parser("prove", help="look for words on the disk").add_argument("text", nargs="+")
    commands.add_parser("rotate", help="give a case another key").add_argument("case")
    commands.add_parser("rewrap", help="go over to another master key")
    commands.add_parser("erase", help="erase the keys of a case").add_argument("case")
    options = parser.parse_args(arguments)
    if options.command == "new-master-key":
        print(secrets.token_hex(32))
        return 0
    try:
        settings = Settings.read(os.environ)
        match options.command:
            case "say":
                anyio.run(say, settings, options.case, " ".join(options.text))
            case "prove":
                return 0 if anyio.run(prove, settings, " ".join(options.text)) else 1
            case "rotate":
                anyio.run(rotate, settings, options.case)
            case "rewrap":
                anyio.run(rewrap, settings)
            case _:
                anyio.run(erase, settings, options.case)
    except (ValueError, ImportError, RepertoryError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0
