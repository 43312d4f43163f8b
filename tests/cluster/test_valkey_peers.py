"""Runtimes with journals in a folder or a bucket find each other in Valkey, and miss it without losing anything."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from repertory import AgentSpec, FileStorage, JournalSessions, Runtime, S3Storage, ScriptedModel, SQLiteSessions, Valkey
from repertory.app.embedding.hosted import HostedAgent
from repertory.app.sessions.storages import Storage
from repertory.backends.peer_ports import CallBox, Directory, Peer
from repertory.backends.ports import SessionStore
from repertory.cluster.peers import Peers
from repertory.errors import Failed, Invalid, Unavailable
from repertory.testing.cuts import LostWhen
from repertory.testing.cutting_relay import cutting_relay
from repertory.testing.loopback_wire import LoopbackNetwork
from repertory.testing.peer_contract import ALL, box_of, boxed, directory_of, keys, taken_soon, until
from tests.backends.objects.moto_s3 import BUCKET, moto_s3
from tests.backends.sessions.object_places import on_files
from tests.source_tree import ROOT
from tests.valkey_server import ValkeyServer, shared_valkey, valkey_server

CHILD = """
import sys
from pathlib import Path
import anyio
from repertory.backends.peer_ports import Peer
from repertory.testing.peer_contract import ALL, box_of, boxed, directory_of
from tests.cluster.test_valkey_peers import in_folder

async def main(folder, url):
    store = in_folder(Path(folder), "child", url, alive_s=1.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        await directory_of(store).join(Peer(name="child", address="host:1", room=1))
        await store.acquire("session")
        await box_of(store).put(boxed("session"))
        await box_of(store).take(10, ALL)
        print("taken", flush=True)

anyio.run(main, *sys.argv[1:])
"""
pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    " -addext subjectAltName=IP:127.0.0.1"
)


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """One that a test may end."""
    with valkey_server("--appendonly", "yes", "--appendfsync", "always") as started:
        yield started


@pytest.fixture
def shared() -> ValkeyServer:
    return shared_valkey()


class Process:
    """One runtime with an agent, as one process would have it."""

    def __init__(self, runtime: Runtime, agent: HostedAgent, name: str) -> None:
        self.runtime = runtime
        self.agent = agent
        self.name = name

    async def says(self, session: str, prompt: str = "hello") -> str:
        return str(await self.agent.session(session).invoke(prompt))


class Site:
    """Runtimes over one storage, one server and one network."""

    def __init__(self, storage: Callable[[], Storage], url: str, **settings: Any) -> None:
        self.storage = storage
        self.url = url
        self.settings = settings
        self.network = LoopbackNetwork()

    @asynccontextmanager
    async def process(self, name: str, **settings: Any) -> AsyncGenerator[Process]:
        directory = Valkey(self.url, **self.settings)
        peers = Peers(wire=self.network.wire(name), directory=directory, **settings)
        runtime = Runtime(sessions=JournalSessions(self.storage(), lease_s=2.0), peers=peers)
        agent = runtime.agent(AgentSpec(name="support", model=ScriptedModel([f"from {name}"], loop=True)))
        async with runtime:
            yield Process(runtime, agent, name)

    async def together(self, count: int) -> None:
        """Return when so many peers see each other."""
        async with self.store("looking") as store:

            async def there() -> bool:
                try:
                    return len(await directory_of(store).peers()) == count
                except Unavailable:  # A busy machine: the connection is not made in its time.
                    return False

            await until(there)
        await anyio.sleep(1.3)  # Each looks once a second.

    @asynccontextmanager
    async def store(self, owner: str) -> AsyncGenerator[SessionStore]:
        """What a peer without a runtime sees."""
        store = JournalSessions(self.storage()).open_store()
        store.share_in(Valkey(self.url, **self.settings))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.maintain)
            yield store
            tasks.cancel_scope.cancel()
        await store.aclose()


@asynccontextmanager
async def maintained(store: SessionStore) -> AsyncGenerator[tuple[Directory, CallBox]]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        yield directory_of(store), box_of(store)
        tasks.cancel_scope.cancel()
    await store.aclose()


def in_folder(folder: Path, owner: str, url: str, **settings: Any) -> SessionStore:
    store = on_files(folder, owner)
    store.share_in(Valkey(url, **settings))
    return store


@pytest.fixture(scope="module")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as served:
        yield served


@pytest.fixture(params=["folder", "bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Storage]:
    """A new place for sessions."""
    if request.param == "folder":
        return lambda: FileStorage(tmp_path / "sessions")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "testing")
    url = request.getfixturevalue("s3_url")
    return lambda: S3Storage(BUCKET, tmp_path.name, endpoint_url=url)


# Calls go to the owner.


async def test_a_session_is_answered_by_the_process_that_has_it(
    storage: Callable[[], Storage], shared: ValkeyServer
) -> None:
    site = Site(storage, shared.url)
    async with site.process("a") as a, site.process("b") as b, site.process("gate", room=0) as gate:
        await site.together(2)
        first = await a.says("s")
        for process in (b, gate, a, gate, b):
            assert await process.says("s") == first
        assert len(await gate.agent.session("s").history()) == 12
        assert await gate.says("other") in {"from a", "from b"}


async def test_peers_call_each_other_over_sockets(tmp_path: Path, shared: ValkeyServer) -> None:
    async with AsyncExitStack() as stack:
        agents: list[HostedAgent] = []
        for name in "ab":
            peers = Peers(listen="127.0.0.1:0", secret="x" * 16, directory=Valkey(shared.url))
            runtime = Runtime(sessions=JournalSessions(FileStorage(tmp_path)), peers=peers)
            agents.append(runtime.agent(AgentSpec(name="support", model=ScriptedModel([f"from {name}"], loop=True))))
            await stack.enter_async_context(runtime)
        answers = {str(await agent.session("s").invoke("hello")) for agent in (*agents, *agents)}
        assert len(answers) == 1
        assert len(await agents[1].session("s").history()) == 8


async def test_what_a_process_leaves_is_taken_over_by_the_other(
    storage: Callable[[], Storage], shared: ValkeyServer
) -> None:
    site = Site(storage, shared.url)
    async with site.process("b") as b:
        async with site.process("a") as a:
            await site.together(2)
            await a.says("s")
        assert await b.says("s") == "from b"
        assert len(await b.agent.session("s").history()) == 4


async def test_a_wrong_or_missing_hint_costs_one_try(storage: Callable[[], Storage], shared: ValkeyServer) -> None:
    site = Site(storage, shared.url)
    async with site.process("a") as a, site.process("b") as b, site.process("gate", room=0) as gate:
        await site.together(2)
        async with site.store("looking") as store:
            peers = {peer.address: peer.name for peer in await directory_of(store).peers()}
            for session, lie in (("s0", "another"), ("s1", "nobody"), ("s2", None)):
                answer = await a.says(session)
                owner = answer.removeprefix("from ")

                async def hinted(session: str = session, owner: str = owner) -> bool:
                    return await directory_of(store).owner_of(session) == peers[owner]

                await until(hinted)
                key = f"repertory:{store.name}:owner:{session}"
                if lie == "another":
                    shared.do("SET", key, peers["b" if owner == "a" else "a"])
                elif lie:
                    shared.do("SET", key, lie)
                else:
                    shared.do("DEL", key)
                site.network.calls.clear()
                assert await gate.says(session) == answer
                assert len(site.network.calls) <= 2
                assert len(await b.agent.session(session).history()) == 4


async def test_posted_calls_are_made_once_each_in_order(tmp_path: Path, shared: ValkeyServer) -> None:
    site = Site(lambda: FileStorage(tmp_path / "sessions"), shared.url)
    async with site.process("a") as a, site.process("b") as b:
        await site.together(2)
        first = await a.says("s", "first")
        tokens = [await b.agent.session("s").post(f"posted {number}") for number in range(4)]
        assert tokens[0] == await a.agent.session("s").post("posted again", token=tokens[0])
        async with site.store("looking") as store:

            async def none_left() -> bool:
                return not await box_of(store).calls()

            with anyio.fail_after(30):
                await until(none_left)
        told = await a.agent.session("s").history()
        prompts = [message["content"][0].get("text") for message in told if message["role"] == "user"]
        assert prompts == ["first", *(f"posted {number}" for number in range(4))]
        result = await b.agent.session("s").invoke("?", idempotency_token=tokens[2])
        assert str(result) == first
        assert len(await a.agent.session("s").history()) == 10  # It was not made again.


# The server is away.


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_calls_to_known_sessions_go_on_and_others_wait_while_the_server_is_away(
    how: str, tmp_path: Path, server: ValkeyServer
) -> None:
    site = Site(lambda: FileStorage(tmp_path / "sessions"), server.url)
    async with site.process("a") as a, site.process("gate", room=0) as gate:
        await site.together(1)
        await gate.says("known")
        if how == "killed":
            server.stop(signal.SIGKILL)
        else:
            server.freeze()
        for _ in range(3):
            assert await gate.says("known") == "from a"
            await anyio.sleep(1)
        answers: list[str] = []

        async def say(process: Process, session: str) -> None:
            answers.append(await process.says(session))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say, gate, "unknown")
            tasks.start_soon(say, a, "unknown")
            await anyio.sleep(2.5)
            assert not answers
            if how == "killed":
                server.start()
            else:
                server.thaw()
        assert answers == ["from a", "from a"]
        assert len(await gate.agent.session("unknown").history()) == 4
        assert len(await gate.agent.session("known").history()) == 8
        await site.together(1)


async def test_a_call_ends_with_its_patience_when_the_server_stays_away(tmp_path: Path, server: ValkeyServer) -> None:
    site = Site(lambda: FileStorage(tmp_path / "sessions"), server.url)
    async with site.process("a", patience_s=1.5) as a:
        await a.says("known")
        server.stop()
        with pytest.raises(Unavailable, match="no peer has answered in time"):
            await a.says("unknown")
        with pytest.raises(Unavailable):
            await a.agent.session("known").post("later")
        assert await a.says("known") == "from a"
    with pytest.raises(Unavailable):
        async with site.process("b", patience_s=0.5):
            pass


async def test_a_server_that_has_lost_everything_is_told_again(tmp_path: Path, shared: ValkeyServer) -> None:
    with valkey_server() as forgetful:
        site = Site(lambda: FileStorage(tmp_path / "sessions"), forgetful.url)
        async with site.process("a") as a, site.process("gate", room=0) as gate, site.store("looking") as store:
            await site.together(1)
            await gate.says("s")
            (peer,) = await directory_of(store).peers()
            forgetful.stop(signal.SIGKILL)
            forgetful.start()

            async def told() -> bool:
                try:
                    listed = [each.name for each in await directory_of(store).peers()]
                    return listed == [peer.name] and await directory_of(store).owner_of("s") == peer.name
                except Unavailable:
                    return False

            with anyio.fail_after(20):
                await until(told)
            assert await gate.says("s") == await a.says("s") == "from a"


async def test_a_peer_that_is_cut_off_is_listed_no_longer_and_its_calls_go_to_others(
    tmp_path: Path, shared: ValkeyServer
) -> None:
    async with cutting_relay(shared.port) as relay:
        one = in_folder(tmp_path, "one", f"valkey://127.0.0.1:{relay.port}", alive_s=1.0)
        two = in_folder(tmp_path, "two", shared.url, alive_s=1.0)
        async with maintained(one) as (directory, box), maintained(two) as (others, other_box):
            await directory.join(Peer(name="one", address="host:1", room=1))
            await one.acquire("session")
            await box.put(boxed("session"))
            (call,) = await box.take(10, ALL)

            async def hinted() -> bool:
                return await others.owner_of("session") == "one"

            await until(hinted)
            relay.hold()

            async def gone() -> bool:
                return not await others.peers() and await others.owner_of("session") is None

            await until(gone)
            (taken,) = await taken_soon(other_box)
            assert (taken.token, taken.tries) == (call.token, 1)
            with pytest.raises(Unavailable):
                await box.done([call])
            relay.let_flow()

            async def back() -> bool:
                return [peer.name for peer in await others.peers()] == ["one"]

            await until(back)
            await box.done([call])
            assert keys(await other_box.calls()) == [("session", "token")]
            await other_box.done([taken])
            assert not await other_box.calls()


async def test_what_a_killed_process_had_goes_to_others(tmp_path: Path, shared: ValkeyServer) -> None:
    child = subprocess.Popen(  # noqa: ASYNC220 - it is not waited for
        [sys.executable, "-c", CHILD, str(tmp_path), shared.url], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert child.stdout is not None
        assert await anyio.to_thread.run_sync(child.stdout.readline) == "taken\n"
        two = in_folder(tmp_path, "two", shared.url, alive_s=1.0)
        async with maintained(two) as (directory, box):
            assert [peer.name for peer in await directory.peers()] == ["child"]
            assert not await box.take(10, ALL)
            child.kill()

            async def gone() -> bool:
                return not await directory.peers()

            await until(gone)
            (call,) = await taken_soon(box)
            assert (call.session_id, call.tries) == ("session", 1)
            lease = await two.acquire("session")
            assert lease.owner == "two"
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


async def test_acknowledged_calls_are_there_after_a_crash_of_a_server_that_syncs(
    tmp_path: Path, server: ValkeyServer
) -> None:
    one, two = in_folder(tmp_path, "one", server.url), in_folder(tmp_path, "two", server.url)
    async with maintained(one) as (_, box), maintained(two) as (_, other):
        for number in range(20):
            assert await box.put(boxed(f"s{number}", call={"prompt": number}))
        taken = await box.take(5, ALL)
        await box.done(taken[:2])
        server.stop(signal.SIGKILL)
        with pytest.raises(Unavailable):
            await box.put(boxed("more"))
        server.start()

        async def there() -> bool:
            try:
                return bool(await other.calls())
            except Unavailable:
                return False

        await until(there)
        assert [dict(call.call) for call in await other.calls()] == [{"prompt": number} for number in range(2, 20)]
        # Those that the living owner has are still its own.
        assert [call.session_id for call in await other.take(50, ALL)] == [f"s{number}" for number in range(5, 20)]
        await box.done(taken[2:])
        assert len(await other.calls()) == 15


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_nothing_is_lost_or_taken_twice_when_an_answer_is_lost(
    cut: LostWhen, tmp_path: Path, shared: ValkeyServer
) -> None:
    async with cutting_relay(shared.port) as relay:
        store = in_folder(tmp_path, "one", f"valkey://127.0.0.1:{relay.port}", alive_s=100.0)
        async with maintained(store) as (_, box):

            async def lost(call: Callable[[], Awaitable[Any]]) -> Any:
                """The answer of the second time: the first is cut."""
                await box.calls()
                relay.plan(cut, 1)
                with pytest.raises(Unavailable):
                    await call()
                while True:
                    try:
                        return await call()
                    except Unavailable:
                        await anyio.sleep(0.02)

            # The first use of a script is two requests, since the server does not know it yet.
            await box.put(boxed("first"))
            await box.again((await box.take(10, ALL))[0], 0.0, "again")
            await box.done(await taken_soon(box))
            assert await lost(lambda: box.put(boxed("s"))) is (cut == "before")
            (call,) = await lost(lambda: box.take(10, ALL))
            assert call.tries == 0
            await lost(lambda: box.again(call, 0.0, "again"))
            (call,) = await taken_soon(box)
            assert (call.tries, call.error) == (1, "again")
            await lost(lambda: box.done([call]))
            assert not await box.calls()


# Logins and settings.


async def test_a_wrong_password_is_told_at_once(tmp_path: Path) -> None:
    with valkey_server("--requirepass", "right") as server:
        for user, message in (("", "does not let this user in"), (":wrong@", "does not let this user in")):
            site = Site(lambda: FileStorage(tmp_path), f"valkey://{user}127.0.0.1:{server.port}")
            with pytest.raises(Failed, match=message) as refused:
                async with site.process("a"):
                    pass
            assert "wrong" not in str(refused.value)
        site = Site(lambda: FileStorage(tmp_path), f"redis://:right@127.0.0.1:{server.port}/3")
        async with site.process("a") as a:
            assert await a.says("s") == "from a"
        assert "right" not in repr(Valkey(site.url))


async def test_tls_is_checked_as_the_caller_says(tmp_path: Path) -> None:
    made = subprocess.run(  # noqa: ASYNC221 - nothing else runs on this loop
        [*CERTIFICATE.split(), "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    files = ["--tls-cert-file", str(tmp_path / "cert.pem"), "--tls-key-file", str(tmp_path / "key.pem")]
    with valkey_server(*files, "--tls-auth-clients", "no", plain=False) as server:
        url = f"valkeys://127.0.0.1:{server.port}"
        trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        site = Site(lambda: FileStorage(tmp_path / "sessions"), url, tls=trusting)
        async with site.process("a") as a:
            assert await a.says("s") == "from a"
        with pytest.raises(Failed, match="TLS"):
            async with Site(site.storage, url).process("b"):
                pass


async def test_what_is_no_address_or_no_place_for_it_is_refused(tmp_path: Path) -> None:
    for url in (
        "",
        "localhost",
        "http://host",
        "valkey://",
        "valkey://host:x",
        "valkey://host/a",
        "valkey://host?db=1",
    ):
        with pytest.raises(Invalid, match="write valkey://HOST"):
            Valkey(url)
    with pytest.raises(Invalid, match="valkeys"):
        Valkey("valkey://host", tls=ssl.create_default_context())
    with pytest.raises(Invalid, match="alive_s"):
        Valkey("valkey://host", alive_s=0.5)
    with pytest.raises(Invalid, match="prefix"):
        Valkey("valkey://host", prefix="")
    wire = LoopbackNetwork().wire("a")
    for sessions, directory, message in (
        (SQLiteSessions(tmp_path / "sessions.db"), Valkey("valkey://host"), "leave out directory"),
        (JournalSessions(FileStorage(tmp_path)), None, "directory=Valkey"),
    ):
        with pytest.raises(Invalid, match=message):
            async with Runtime(sessions=sessions, peers=Peers(wire=wire, directory=directory)):
                pass


def test_without_coredis_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coredis", None)
    with pytest.raises(ImportError, match=r"pip install 'repertory\[valkey\]'"):
        Valkey("valkey://host")
