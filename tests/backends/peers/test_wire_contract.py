"""Every wire keeps the contract, the fake one included."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from repertory.backends.peers.http import HttpPeers
from repertory.backends.peers.ports import PeerWire
from repertory.testing.loopback_wire import LoopbackNetwork
from repertory.testing.wire_contract import PeerWireContract
from tests.backends.peers.certificates import PeerAuthority


class TestLoopbackWire(PeerWireContract):
    @asynccontextmanager
    async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
        network = LoopbackNetwork(alive_s=alive_s)
        yield network.wire("there"), network.wire()


@pytest.mark.real_time
class TestHttpPeersOverTcp(PeerWireContract):
    @asynccontextmanager
    async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
        yield HttpPeers("127.0.0.1:0", alive_s=alive_s), HttpPeers(None, alive_s=alive_s)


@pytest.mark.real_time
class TestHttpPeersOverUnixSockets(PeerWireContract):
    @asynccontextmanager
    async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
        yield HttpPeers(f"unix:{place}/peer", secret="s", alive_s=alive_s), HttpPeers(None, secret="s", alive_s=alive_s)


@pytest.mark.real_time
class TestHttpPeersOverTls(PeerWireContract):
    @pytest.fixture(autouse=True)
    def authority(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._tls = PeerAuthority(tmp_path_factory.mktemp("ca")).tls("peer")

    @asynccontextmanager
    async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
        yield HttpPeers("localhost:0", tls=self._tls, alive_s=alive_s), HttpPeers(None, tls=self._tls, alive_s=alive_s)
