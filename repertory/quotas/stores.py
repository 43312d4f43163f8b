"""The port of a store, and the store in memory. Every store passes `tests/quotas/store_contract.py`."""

from __future__ import annotations

from typing import Protocol

import anyio
from msgspec import MsgspecError, Struct, msgpack

from repertory.errors import Corrupt
from repertory.quotas.decisions import Account, Grant, Report, WindowLimits


class QuotaStore(Protocol):
    """The accounts of quotas. For any number of processes, unless its class says otherwise.

    Errors of every method: `Unavailable` and its subclasses when the store cannot be reached now: try again. `Failed`
    when it refuses: change its rights or its settings.
    """

    async def exchange(self, key: str, report: Report, limits: WindowLimits) -> Grant:
        """The answer of one account to a report; nobody else changes the account meanwhile. Cancelled, the report may
        have been taken in. Errors: also `Corrupt` for an account that cannot be read.

        Args:
            key: The name of the account.
            report: The report of a process.
            limits: The limits of the quota, as that process has them.
        """
        ...

    async def aclose(self) -> None:
        """Release connections and files. Calling it twice is allowed."""
        ...


class InMemoryQuotaStore(Struct):
    """The accounts of one event loop, on its clock: for a single process."""

    _accounts: dict[str, Account] = {}

    async def exchange(self, key: str, report: Report, limits: WindowLimits) -> Grant:
        """See the port."""
        await anyio.lowlevel.checkpoint()
        return self._accounts.setdefault(key, Account()).exchange(report, limits, anyio.current_time())

    async def aclose(self) -> None:
        """Do nothing."""


_decoder = msgpack.Decoder(Account)


def exchanged(data: bytes | None, report: Report, limits: WindowLimits, wall: float) -> tuple[bytes, Grant]:
    """An account as it is stored after a report, and the answer. `data`: as it is stored before; None for a new one.

    Errors: `Corrupt` for what is no account.
    """
    try:
        account = Account() if data is None else _decoder.decode(data)
    except MsgspecError as error:
        raise Corrupt("the account of a quota cannot be read: delete its row", cause=str(error)) from error
    grant = account.exchange(report, limits, wall)
    return msgpack.encode(account), grant
