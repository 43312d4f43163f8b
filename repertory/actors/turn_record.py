"""What one turn says, on its way to the journal: past hooks, to the ledger, to whoever looks; and what is taken back.

Not an actor: it belongs to the turn's driver.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from repertory.actors.conversation import ReplaceShown
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.redaction import redacted
from repertory.core.messages import ContentBlock, Message, copy_message, error_result, is_filler, tool_results
from repertory.core.opening import asked_again
from repertory.core.pairing import check_next
from repertory.core.standing import Standing, Start
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from repertory.actors.agent_parts import AgentParts, AgentSettings, Footing, Means
    from repertory.actors.hooks.calls import TurnHooks
    from repertory.core.events import TurnEvent
    from repertory.core.journal.image import Image, UnansweredTurn


class TurnRecord:
    """The messages of one turn."""

    def __init__(
        self,
        settings: AgentSettings,
        parts: AgentParts,
        means: Means,
        footing: Footing,
        hooks: TurnHooks,
        token: str | None,
    ) -> None:
        """`token`: the caller's name for the turn, which its first message carries."""
        self._settings = settings
        self._mirror = parts.mirror
        self._ledger = means.ledger
        self._conversation = means.conversation
        self.footing = footing
        self._hooks = hooks
        self._token = self._first_token = token
        self.publish: Callable[[TurnEvent], Awaitable[None]] | None = None
        """Told what happens on the way, when somebody looks."""
        self.wrote = False
        """Whether anything of the turn is on record."""
        self._beginning = True
        """Whether the model has not been asked and no tool has run."""
        self._opened_again = False
        self._told: dict[int, tuple[Message, Message]] = {}
        """What was said at the beginning, by identity, and what hooks made of it: they are told once."""

    async def append(self, message: Message) -> None:
        """Store a message, as hooks want it. Errors: those of guards and of the store."""
        _, edited = self._told.get(id(message), (message, None))
        told = edited is not None
        if edited is None:
            try:
                edited = await self._hooks.message_added(message)
            except RepertoryError:
                if any(tool_results(message)):  # Tool uses are answered, whatever a guard says of the answers.
                    self._record(_withheld(message))
                raise
        self._record(edited)
        if self._beginning:
            self._told[id(message)] = message, edited
        elif self._settings.durability == "strict":
            await self._ledger.commit()
        if self.publish is not None and not told:
            await self.publish({"message": copy_message(edited)})

    async def state_again(self, messages: Sequence[Message], left: UnansweredTurn) -> Standing:
        """Store how a turn goes on whose tools are of unknown outcome, as a crash would have left it: in one piece.
        Errors: those of guards, with nothing on record.
        """
        asking, starts = asked_again(left, self._ledger.wall())
        told = [await self._hooks.message_added(message) for message in (*messages, asking)]
        for message in told:
            self._record(message)
        for started in starts:
            self._ledger.add(started)
        if self.publish is not None:
            for message in told:
                await self.publish({"message": copy_message(message)})
        known = {started.tool_use_id: Start(started.attempt, started.idempotency_key) for started in starts}
        return Standing(last=self.footing.last, started=frozenset(known), starts=known)

    def _record(self, message: Message) -> None:
        footing = self.footing
        check_next(footing.last, message)
        closes = not self.wrote and footing.turns > 1 and is_filler(message)  # It is the end of the turn before.
        token = None if closes else self._token
        self._token = self._token if closes else None
        record = MessageAdded(
            at=self._ledger.wall(),
            message=message,
            turn=footing.turns - closes,
            index=footing.message_count,
            idempotency_token=token,
        )
        footing.note(self._ledger.add(record), message)
        self.wrote = True
        self._mirror.add(message)

    # Before the model is asked.

    def begun(self) -> None:
        """From now on the turn has done something that cannot be taken back."""
        self._beginning = False
        self._told.clear()

    async def begin(self) -> Image | None:
        """See that the session is still ours, before the model is asked for the first time.

        After a pause the store is asked. Where others may add to the session at any time, and in `strict`, what was
        said is stored first. None to go on; when others have written meanwhile, where the conversation stands now:
        then nothing of the turn is on record. Errors: `LeaseLost`, `SessionBusy`, `Unavailable`.
        """
        settings, ledger = self._settings, self._ledger
        stored = self.wrote and (settings.others_add or settings.durability == "strict")
        found = None
        if not self._beginning:
            pass
        elif self._opened_again and stored:
            await ledger.commit()
        elif stored or (not self._opened_again and not ledger.confirmed_within(settings.confirm_s)):
            found = await ledger.begin(stored=stored)
        if found is None:
            self.begun()
        return found

    def begin_again(self, footing: Footing) -> None:
        """The session was opened anew, and the conversation has gone on meanwhile."""
        self.footing = footing
        self._token = self._first_token
        self.wrote = False
        self._opened_again = True

    # Taking back.

    async def redact(self, text: str) -> None:
        """Put `text` in the place of what the user said last, for good: in every later look, and in the next commit."""
        instead = {entry.seq: redacted(entry.message, text) for entry in self.footing.asked}
        if not instead:
            return
        await self._ledger.redact(instead)
        self.footing.replace(instead)
        shown = await self._conversation.ask(ReplaceShown(instead=instead), timeout_s=math.inf)
        self._mirror.show(shown.messages)


def _withheld(message: Message) -> Message:
    """The message of results that a guard did not let pass: each tool use is answered, and nothing else is said."""
    results = [
        error_result(result["toolUseId"], "The result is withheld: a hook failed.") for result in tool_results(message)
    ]
    blocks: list[ContentBlock] = [{"toolResult": result} for result in results]
    return {"role": "user", "content": blocks}
