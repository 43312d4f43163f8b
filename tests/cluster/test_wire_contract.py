"""Every wire keeps the contract, the fake one included."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from repertory.backends.peer_ports import PeerWire
from repertory.cluster.wire.http import HttpPeers, PeerTls
from tests.cluster.certificates import PeerAuthority
from tests.cluster.loopback_wire import LoopbackNetwork
from tests.cluster.wire_contract import PeerWireContract

SECRET = "of-these-tests-alone"


def wire(listen: str | None, alive_s: float, *, secret: str | None = None, tls: PeerTls | None = None) -> HttpPeers:
    return HttpPeers(listen, alive_s=alive_s, secret=secret, tls=tls, entropy=os.urandom)


class TestLoopbackWire(PeerWireContract):
    @asynccontextmanager
    async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
        network = LoopbackNetwork(alive_s=alive_s)
        yield network.wire("there"), network.wire()


@pytest.mark.real_time
class TestHttpPeersOverTcp(PeerWireContract):
    @asynccontextmanager
    async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
        yield wire("127.0.0.1:0", alive_s, secret=SECRET), wire(None, alive_s, secret=SECRET)


@pytest.mark.real_time
class TestHttpPeersOverUnixSockets(PeerWireContract):
    @asynccontextmanager
    async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
        yield wire(f"unix:{place}/peer", alive_s), wire(None, alive_s)


@pytest.mark.real_time
class TestHttpPeersOverUnixSocketsWithASecret(PeerWireContract):
    @asynccontextmanager
    async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
        yield wire(f"unix:{place}/peer", alive_s, secret=SECRET), wire(None, alive_s, secret=SECRET)


@pytest.mark.real_time
class TestHttpPeersOverTls(PeerWireContract):
    @pytest.fixture(autouse=True)
    def authority(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._tls = PeerAuthority(tmp_path_factory.mktemp("ca")).tls("peer")

    @asynccontextmanager
    async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
        yield wire("localhost:0", alive_s, tls=self._tls), wire(None, alive_s, tls=self._tls)
