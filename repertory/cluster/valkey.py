"""`Valkey`: where runtimes find each other that keep their sessions as journals in a storage.

peers = Peers("10.0.0.5:7000", secret=SECRET, directory=Valkey("valkey://10.0.0.9:6379/0"))
async with Runtime(sessions=JournalSessions(S3Storage("bucket")), peers=peers) as runtime: ...
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.peer_ports import SharedElsewhere

_TLS = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}
_ALIVE_S = 10.0


class Valkey:
    """A server of Valkey, or of Redis 6.2 or newer, for `Peers(directory=...)`: one primary, no cluster.

    It has hints about who owns a session, and the calls that were posted; who owns it is told by the sessions' own
    place alone. Calls are as durable as the server is (`docs/guides/services/valkey.md`).

    Args:
        url: `valkey://USER:PASSWORD@HOST:PORT/DATABASE`, or `valkeys://` for TLS; `redis://` and `rediss://` are the
            same. Other characters of user and password stand as `%` and two digits. The password stands in no name,
            message or log of this package.
        prefix: What all keys begin with.
        tls: How certificates are checked; without it, as the system does.
        alive_s: How long a runtime counts as alive after it was last heard; it is heard five times as often.

    Raises:
        Invalid: For what is no such URL. Correct the argument.
        ImportError: Without the extra `valkey`. Install the extra that the message names.
    """

    def __init__(
        self, url: str, *, prefix: str = "repertory", tls: ssl.SSLContext | None = None, alive_s: float = _ALIVE_S
    ) -> None:
        self._parts, self._database = _read(url)
        self._tls = tls
        if tls is not None and not _TLS[self._parts.scheme]:
            raise Invalid("TLS needs a URL that begins with valkeys://")
        if not prefix:
            raise Invalid("prefix is what all keys begin with")
        if not alive_s >= 1.0:
            raise Invalid("alive_s is a second at least", got=alive_s)
        self._prefix = prefix
        self._alive_s = alive_s
        try:
            import coredis as coredis  # loaded when used: an extra
        except ModuleNotFoundError as error:
            raise ImportError(f"Valkey needs coredis ({error}): pip install 'repertory[valkey]'") from error

    def __repr__(self) -> str:
        return f"Valkey({self._parts.scheme}://{self._parts.hostname}:{self._parts.port or 6379}/{self._database})"

    def of_store(self, place: str, owner: str, owns: Callable[[], Collection[str]]) -> SharedElsewhere:
        """For the runtime: see `PeerDirectory`.

        Args:
            place: The name of the store.
            owner: The id of the process.
            owns: Returns the sessions that the process owns.
        """
        from repertory.cluster.wire.valkey.shared import SharedInValkey, ValkeyAddress  # loaded when used: an extra

        parts = self._parts
        tls = ssl.create_default_context() if self._tls is None and _TLS[parts.scheme] else self._tls
        address = ValkeyAddress(
            host=parts.hostname or "",
            port=parts.port or 6379,
            database=self._database,
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=tls,
        )
        return SharedInValkey(address, f"{self._prefix}:{place}:", owner, owns, self._alive_s)


def _read(url: str) -> tuple[SplitResult, int]:
    wrong = "write valkey://HOST:PORT/DATABASE, or valkeys:// for TLS"
    try:
        parts = urlsplit(url)
        _ = parts.port
        database = int(parts.path.strip("/") or 0)
    except ValueError:
        raise Invalid(wrong) from None
    if parts.scheme not in _TLS or not parts.hostname or parts.query or parts.fragment or database < 0:
        raise Invalid(wrong)
    return parts, database
