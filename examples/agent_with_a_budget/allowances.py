"""What each person may use up in a day, and what they have used, in a database of its own."""

from __future__ import annotations

import math
import sqlite3
import threading
import tomllib
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repertory import Budget


class OverBudget(Exception):
    """An allowance is used up. The text is for the person who asked."""


@dataclass(frozen=True)
class Allowance:
    """What somebody may use up in one day."""

    tokens: float = math.inf
    cost: float = math.inf

    def used_up(self, used: Usage) -> str | None:
        """The sentence for a limit that is reached; None while something is left."""
        if used.tokens >= self.tokens:
            return f"{used.tokens:,} of {self.tokens:,} tokens of today are used up"
        if used.cost >= self.cost:
            return f"{used.cost:.4f} of {self.cost:.4f} USD of today are used up"
        return None


@dataclass(frozen=True)
class Usage:
    """What somebody has used."""

    tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True)
class Limits:
    """The limits file, as values."""

    everyone: Allowance
    users: Mapping[str, Allowance] = field(default_factory=dict[str, Allowance])
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    @staticmethod
    def read(path: Path) -> Limits:
        """The limits of a file. Errors: `OSError`; `ValueError` or `TypeError` for what is none."""
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return Limits(
            everyone=Allowance(**table.get("everyone", {})),
            users={name: Allowance(**limits) for name, limits in table.get("users", {}).items()},
            prices={model: (price[0], price[1]) for model, price in table.get("prices", {}).items()},
        )

    def of(self, user: str) -> Allowance:
        """The allowance of a person: their own, or that of everyone."""
        return self.users.get(user, self.everyone)


class Accounts:
    """What has been used, for each person and day. Each call is one transaction, so processes may share the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._database() as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS used (user TEXT, day TEXT, tokens INTEGER, cost REAL,"
                " PRIMARY KEY (user, day))"
            )

    @contextmanager
    def _database(self) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=10)) as database, database:
            yield database

    def add(self, user: str, day: str, more: Usage) -> None:
        """Add to what a person has used."""
        with self._database() as database:
            database.execute(
                "INSERT INTO used VALUES (?, ?, ?, ?) ON CONFLICT (user, day)"
                " DO UPDATE SET tokens = tokens + excluded.tokens, cost = cost + excluded.cost",
                (user, day, more.tokens, more.cost),
            )

    def used(self, user: str, day: str) -> Usage:
        """What a person has used on a day."""
        with self._database() as database:
            row = database.execute("SELECT tokens, cost FROM used WHERE user = ? AND day = ?", (user, day)).fetchone()
        return Usage(*row) if row else Usage()

    def of_day(self, day: str) -> list[tuple[str, Usage]]:
        """Everybody who has used something on a day, by name."""
        with self._database() as database:
            rows = database.execute("SELECT user, tokens, cost FROM used WHERE day = ? ORDER BY user", (day,))
            return [(user, Usage(tokens, cost)) for user, tokens, cost in rows]


class Meter:
    """The budget of one person for one day, which all their turns in this process share.

    `book` writes into the accounts what was used since the last time. It is called after each model call, so a process
    that is killed has booked every answer that it got, but for the last one.
    """

    def __init__(self, accounts: Accounts, user: str, day: str, limits: Limits) -> None:
        """Errors: `OverBudget` when nothing is left."""
        self.day = day
        self._accounts, self._user, self._allowance = accounts, user, limits.of(user)
        self._booking, self._booked = threading.Lock(), Usage()
        if reason := self.reason:
            raise OverBudget(reason)
        used = accounts.used(user, day)
        tokens, cost = self._allowance.tokens - used.tokens, self._allowance.cost - used.cost
        self.budget = Budget(
            total_tokens=int(tokens) if tokens < math.inf else None,
            cost=cost if cost < math.inf else None,
            prices=limits.prices,
        )

    @property
    def reason(self) -> str | None:
        """Why nothing is left of the day, whichever process has used it; None while something is left."""
        reason = self._allowance.used_up(self._accounts.used(self._user, self.day))
        return f"{reason}; the next day begins at 00:00 UTC" if reason else None

    def book(self) -> None:
        """Write down what was used since the last time. Any thread may call it."""
        with self._booking:
            spent = self.budget.spent
            more = Usage(spent.total_tokens - self._booked.tokens, spent.cost - self._booked.cost)
            if more.tokens:
                self._accounts.add(self._user, self.day, more)
                self._booked = Usage(spent.total_tokens, spent.cost)
