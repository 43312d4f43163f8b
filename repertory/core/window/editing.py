"""Changes of the messages that the model is shown, as records: a conversation manager's plan, and a program's edit of
`agent.messages` between two turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import Struct

from repertory.core.journal.fold import is_answer
from repertory.core.journal.records import MessageAdded, Record, View, ViewChanged
from repertory.core.journal.view import SUMMARY_SEQ, VisibleMessages
from repertory.core.messages import NO_ANSWER_TEXT, tool_results, tool_uses
from repertory.core.tokens import estimate_tokens
from repertory.core.window.decision import DEFAULT_MANAGER, apply_plan, is_summary
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.image import Image
    from repertory.core.messages import Json, Message
    from repertory.core.window.decision import WindowPlan


def view_change(
    visible: VisibleMessages,
    last_seq: int,
    plan: WindowPlan,
    *,
    manager: str,
    manager_state: Mapping[str, Json],
    at: float,
) -> ViewChanged:
    """The record after which the model is shown what `plan` makes of the current messages, `summary` first.

    The plan's positions count over everything shown, with an earlier summary and pinned messages: those before
    `plan.drop` go, unless the plan pins them. The record is a patch whenever a patch suffices. `last_seq`: the
    journal's last sequence number.
    """
    was = visible.view
    in_front = visible.in_front
    first = was.first_shown
    if plan.drop > len(in_front):
        first = visible.recent_at(plan.drop - len(in_front))[0] if plan.drop < len(visible) else last_seq + 1
    stays = [*plan.pinned, *range(plan.drop, len(in_front))]
    pinned = dict(_at(visible, in_front, position, plan) for position in stays)
    beyond = [position for position in plan.replaced if position >= max(len(in_front), plan.drop)]
    replaced = {seq: message for seq, message in was.replaced.items() if seq >= first}
    replaced |= dict(_at(visible, in_front, position, plan) for position in beyond)
    summary = pinned.pop(SUMMARY_SEQ, None)
    if plan.summary is not None:
        summary = plan.summary
    # A patch has a hundred bytes, a full view every pinned message. It can only add, so an order that has changed needs
    # the full view.
    patch = summary == was.summary and list(pinned.items())[: len(was.pinned)] == list(was.pinned.items())
    if patch:
        pinned = {seq: message for seq, message in pinned.items() if seq not in was.pinned}
        replaced = {seq: message for seq, message in replaced.items() if was.replaced.get(seq) != message}
    view = View(
        first_shown=first,
        pinned=pinned,
        replaced=replaced,
        summary=None if patch else summary,
        hidden=() if patch else tuple(stretch for stretch in was.hidden if stretch[1] >= first),
        manager=manager,
        manager_state=manager_state,
    )
    return ViewChanged(at=at, view=view, patch=patch, reason=plan.reason)


def _at(
    visible: VisibleMessages, in_front: Sequence[tuple[int, Message]], position: int, plan: WindowPlan
) -> tuple[int, Message]:
    """The message at a position of everything shown, as the plan leaves it."""
    if position < len(in_front):
        seq, message = in_front[position]
    else:
        seq, message = visible.recent_at(position - len(in_front))
    return seq, plan.replaced.get(position, message)


class MessagesEdit(Struct, frozen=True, kw_only=True, eq=False):
    """An edit, and the messages that were shown when it was made. Made by `edit_of`."""

    visible: Sequence[Message]
    plan: WindowPlan
    added: tuple[Message, ...]
    """Messages to append."""
    instead: Message | None = None
    """The message that replaces the last one for good; None for another edit."""

    @property
    def keeps_end(self) -> bool:
        """True if the last message stays the last one."""
        last = len(self.visible) - 1
        return not self.added and (self.plan.drop <= last or last in self.plan.pinned)

    def messages(self) -> list[Message]:
        """The messages shown after the edit."""
        if self.instead is not None:
            return [*self.visible[:-1], self.instead]
        front = [] if self.plan.summary is None else [self.plan.summary]
        return [*front, *apply_plan(self.visible, self.plan), *self.added]


def editing(image: Image, edit: MessagesEdit, at: float) -> list[Record]:
    """The records to append to the journal whose image is `image`.

    When the edit hides a last prompt that has no answer, `NO_ANSWER_TEXT` is added behind it, as when another turn
    begins, and hidden with it. A view has one message in front of all others: an earlier one that stays behind a new
    one is recorded, and pinned with all that stays. Errors: `Invalid` when other messages are shown by now.
    """
    visible = [message for _, message in image.shown]
    # Between the edit and this moment a turn may have run, whose messages the edit does not know.
    if visible != list(edit.visible):
        raise Invalid("the conversation has gone on since agent.messages was edited: read it and edit it again")
    plan, window = edit.plan, VisibleMessages(image.view, iter(image.recent))
    last, last_seq, index, turn = image.last_message, image.last_seq, image.message_count, image.turns
    wanted = plan
    hidden: list[Message] = []
    # A view has room for one message without a row.
    second = plan.summary is not None and image.view.summary is not None and (plan.drop == 0 or 0 in plan.pinned)
    if second:
        plan, front = _behind_another(plan, visible, last)
        hidden.append(front)
    hides_last = plan.drop >= len(visible) and len(visible) - 1 not in plan.pinned
    end = hidden[-1] if hidden else last
    # A hidden prompt without an answer would look like a turn that is to go on.
    if end is not None and end["role"] == "user" and (second or hides_last):
        hidden.append({"role": "assistant", "content": [{"text": NO_ANSWER_TEXT}]})
    records: list[Record] = []
    for record in manual_records(hidden, last, turn=turn, index=index, at=at):
        records.append(record)
        last_seq, index, turn, last = last_seq + 1, index + 1, record.turn, record.message
        window.add(last_seq, record.message)
    if hidden:
        plan = replace(plan, drop=len(visible) + len(hidden))
    if plan.changes:
        state = _counted(image, wanted, visible)
        manager = image.view.manager or DEFAULT_MANAGER
        records.append(view_change(window, last_seq, plan, manager=manager, manager_state=state, at=at))
    records += manual_records(edit.added, last, turn=turn, index=index, at=at)
    return records


def _behind_another(plan: WindowPlan, visible: Sequence[Message], last: Message | None) -> tuple[WindowPlan, Message]:
    """The plan for a new message in front of the first one, and that one, to be recorded behind all others: the plan
    pins it and everything else that stays. Errors: `Invalid` when nothing can be recorded now.
    """
    front = plan.replaced.get(0, visible[0])
    if any(tool_uses(front)) or any(tool_results(front)) or (last is not None and any(tool_uses(last))):
        raise Invalid("a message stands in front of all others already: replace that one while tool uses wait")
    stays = [*plan.pinned, *range(plan.drop, len(visible))]
    pinned = (len(visible), *(position for position in stays if position))
    replaced = {position: message for position, message in plan.replaced.items() if position}
    return replace(plan, drop=len(visible), pinned=pinned, replaced=replaced), front


def manual_records(
    messages: Sequence[Message], before: Message | None, *, turn: int, index: int, at: float
) -> Iterator[MessageAdded]:
    """Messages added without a turn, behind `before`. `turn`: that of `before`; `index`: that of the first one."""
    for message in messages:
        asks = message["role"] == "user" and not any(tool_results(message))
        if not turn or (asks and (before is None or is_answer(before))):
            turn += 1
        yield MessageAdded(at=at, message=message, turn=turn, index=index)
        before, index = message, index + 1


def _counted(image: Image, plan: WindowPlan, visible: Sequence[Message]) -> dict[str, Json]:
    """The manager's state with its counters updated: messages removed and tokens hidden by this plan."""
    state = dict(image.view.manager_state)
    gone = [message for at, message in enumerate(visible[: plan.drop]) if at not in plan.pinned]
    changed = [visible[at] for at in plan.replaced]
    instead = [*plan.replaced.values(), *([] if plan.summary is None else [plan.summary])]
    removed, hidden = state.get("removed_message_count"), state.get("hidden_tokens")
    counted = (removed if isinstance(removed, int) else 0) + len(gone) - sum(map(is_summary, gone))
    # The same count as the SDK's manager keeps: its programs skip that many messages when they open the session.
    state["removed_message_count"] = counted
    tokens = estimate_tokens([*gone, *changed]) - estimate_tokens(instead)
    state["hidden_tokens"] = (hidden if isinstance(hidden, int) else 0) + tokens
    return state
