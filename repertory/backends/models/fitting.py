"""Makes a conversation fit the rules of a service, before it is translated into a request.

A stored conversation may hold what the next service refuses: blocks of another provider, ids and names in another
alphabet, results without content, a window that begins with an answer. Here such parts are left out, renamed or filled
in what is sent; what is stored never changes. Each service has its `ServiceRules`. docs/reference/provider-rules.md has
the table with their sources, and `repertory.testing.referees` proves them from the other side.

Pure, and the same for the same conversation, so that a provider's cache of an earlier request still holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from msgspec import Struct

from repertory.backends.models.content import cannot_take
from repertory.core.messages import (
    NO_ANSWER_TEXT,
    ContentBlock,
    Message,
    ProviderContent,
    ToolResult,
    ToolUse,
    is_one_text,
    is_paused,
)
from repertory.core.provider_content import answered_use, open_uses, text_for_others, use_of

if TYPE_CHECKING:
    from repertory.core.messages import ToolSpec

INVALID_TOOL_NAME = "INVALID_TOOL_NAME"
"""Replaces a name that no tool can have. Source: the SDK whose users we serve sends the same."""
EARLIER_OMITTED = "(Earlier messages of this conversation are left out.)"
"""Begins a request whose first message would be an answer."""
NO_OUTPUT_TEXT = "(The tool gave no output.)"
"""Fills a tool result that has no content."""
GO_ON = "(Go on with your answer.)"
"""Follows an answer in which another provider has paused."""
DOCUMENT_TEXT = "(See the document.)"
"""Stands beside a document that would be alone in its message."""

Reasoning: TypeAlias = Literal["signed", "unsigned", "any", "none"]


class ServiceRules(Struct, frozen=True, kw_only=True):
    """The rules of requests to one service, or to one family of its models. The defaults are those of most services.

    A rule whose source is not a documentation page is a refusal that was seen.
    """

    service: str
    """The service's name, in notes and errors."""
    provider: str
    """Parts of answers and reasoning with this name go back; those of another provider do not."""
    reasoning_provider: str = ""
    """The name of the reasoning that goes back, if it is another one than `provider`."""
    server_tools: bool = True
    """True if uses of tools that the provider has run itself go back, with their results."""
    tool_name_max: int = 64
    """Characters of a tool's name, which are letters, digits, `_` and `-`."""
    tool_name_first: str = "a-zA-Z0-9_-"
    """The characters that a tool's name begins with, as in a regular expression."""
    use_id_max: int = 64
    """Characters of the id of a tool use."""
    use_id_characters: str = "a-zA-Z0-9_-"
    """The characters of such an id, as in a regular expression."""
    use_id_exact: bool = False
    """True if an id has exactly `use_id_max` characters."""
    reasoning: Reasoning = "none"
    """The reasoning that goes back: with a signature, without one, both, or none."""
    reasoning_in_items: bool = False
    """True if the service's own reasoning goes back in parts of its own, so that nothing is lost without it."""
    merges_roles: bool = True
    """True if two messages of one role in a row are refused: they become one."""
    results_alone: bool = False
    """True if tool results and other content in one turn of the user are refused."""
    not_beside_results: frozenset[str] = frozenset()
    """Kinds of content that are refused in one turn with tool results, if not all are; a PDF is never one of them."""
    result_media: frozenset[str] | None = None
    """The kinds of media that a tool result may hold; None for all that messages may hold."""
    result_documents: frozenset[str] | None = None
    """The formats of documents that a tool result may hold; None for all."""
    error_text_only: bool = False
    """True if the result of a failed tool may hold nothing but text; of one that the service's code called, too."""
    json_as_text: bool = False
    """True if JSON in a tool result goes as text."""
    json_objects_only: bool = False
    """True if JSON in a tool result has to be an object; other JSON goes as text."""
    fits_document_names: bool = False
    """True if names of documents have a small alphabet and are unique in a request."""
    documents_max: int | None = None
    """The most documents of a message; None: any number."""
    documents_need_text: bool = False
    """True if a message with a document has to have a text too."""
    cache_points: bool = True
    """True if a prompt may name points to cache; they are left out otherwise."""
    cache_after_document: bool = True
    """True if such a point may follow directly behind a document."""
    images: frozenset[str] = frozenset(("png", "jpeg", "jpg", "gif", "webp"))
    """The formats of images."""
    documents: frozenset[str] = frozenset(("pdf", "txt", "md", "csv", "html"))
    """The formats of documents, as bytes."""
    videos: frozenset[str] = frozenset()
    """The formats of videos."""
    audios: frozenset[str] = frozenset()
    """The formats of sounds; `*` for any."""
    locations: bool = False
    """True if a medium may lie in S3."""
    reads_text: bool = True
    """True if documents of text are sent as text, so that their bytes have to be UTF-8."""
    media_in_answers: bool = False
    """True if an earlier answer may hold media."""
    counts_messages: bool = False
    """True if a path in a refusal counts messages as `origins` does."""
    results_first: bool = False
    """True if tool results go to the front of their message, and a cache point is no block of its own."""
    blocks: frozenset[str] = frozenset()
    """Further kinds of blocks that the service takes as they are."""


class Fitted(Struct, frozen=True, kw_only=True):
    """A conversation as it is sent, and what was changed in it for that."""

    messages: Sequence[Message]
    tool_specs: Sequence[ToolSpec]
    origins: Sequence[int | None] = ()
    """The number of the message that each sent message was made of; None for a message that was added."""
    changes: Sequence[str] = ()
    """A line for each kind of change, with the number of places; without any content."""


def fit(messages: Sequence[Message], tool_specs: Sequence[ToolSpec], rules: ServiceRules) -> Fitted:
    """The conversation as the service takes it; the same objects where nothing has to change.

    Errors: `Invalid` for a block of the unanswered prompt that the service cannot take, with the numbers of its message
    and block. In earlier messages a note replaces such a block.
    """
    work = _Fitting(messages, rules, {spec["name"] for spec in tool_specs if "cachePoint" not in spec})
    specs = [work.spec(spec) for spec in tool_specs]
    # The same object where nothing changes, so that whoever compares by identity sees no change.
    if all(new is old for new, old in zip(specs, tool_specs, strict=True)):
        specs = tool_specs
    if work.all_fit():
        return Fitted(messages=messages, tool_specs=specs, origins=range(len(messages)))
    made = work.messages()
    return Fitted(messages=made, tool_specs=specs, origins=work.origins, changes=work.changes())


def renamed_tools(tool_specs: Sequence[ToolSpec], rules: ServiceRules) -> Mapping[str, str]:
    """Tools by the name that is sent for them, where that is another one."""
    names = (spec["name"] for spec in tool_specs if "cachePoint" not in spec)
    sent = {fitting_tool_name(name, rules): name for name in names}
    return {fitting: name for fitting, name in sent.items() if fitting != name}


def fitting_tool_name(name: str, rules: ServiceRules) -> str:
    """The name of a tool as it is sent: its own if that fits, else a readable one that no other tool gets."""
    if _is_tool_name(name, rules):
        return name
    made = _made(name, _NAME_CHARACTERS, rules.tool_name_max)
    return made if _is_tool_name(made, rules) else f"_{_made(name, _NAME_CHARACTERS, rules.tool_name_max - 1)}"


def _is_tool_name(name: str, rules: ServiceRules) -> bool:
    begins_well = _fits(name[:1], rules.tool_name_first, 1, exact=False)
    return begins_well and _fits(name, _NAME_CHARACTERS, rules.tool_name_max, exact=False)


def fitting_use_id(use_id: str, rules: ServiceRules) -> str:
    """The id of a tool use as it is sent: its own if that fits, else one that is made from it."""
    if _fits(use_id, rules.use_id_characters, rules.use_id_max, exact=rules.use_id_exact):
        return use_id
    if rules.use_id_exact:
        return _digest(use_id)[: rules.use_id_max]
    return _made(use_id, rules.use_id_characters, rules.use_id_max)


_NAME_CHARACTERS = "a-zA-Z0-9_-"


@lru_cache(maxsize=64)
def _pattern(characters: str, size_max: int, exact: bool = False) -> re.Pattern[str]:
    least = size_max if exact else 1
    return re.compile(f"[{characters}]{{{least},{size_max}}}")


def _fits(text: str, characters: str, size_max: int, *, exact: bool) -> bool:
    return _pattern(characters, size_max, exact).fullmatch(text) is not None


def _made(text: str, characters: str, size_max: int) -> str:
    """The fitting characters of a text, and a part of its digest: so two texts stay two."""
    digest = _digest(text)[:8]
    plain = re.sub(f"[^{characters}]+", "_", text).strip("_")[: size_max - len(digest) - 1]
    return f"{plain}_{digest}" if plain else digest


def _digest(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()


def sent_order(content: Sequence[ContentBlock], rules: ServiceRules) -> Sequence[ContentBlock]:
    """The blocks of a message as their service counts them."""
    words = [block for block in content if "text" not in block or str(block["text"]).strip()]
    if not rules.results_first:
        return words
    counted = [block for block in words if "cachePoint" not in block]
    results = [block for block in counted if "toolResult" in block]
    return [*results, *(block for block in counted if "toolResult" not in block)]


class _Fitting:
    """The work of one `fit`."""

    def __init__(self, messages: Sequence[Message], rules: ServiceRules, tools: frozenset[str] | set[str]) -> None:
        self._messages = messages
        self._rules = rules
        self._tools = tools
        self._is_use_id = _pattern(rules.use_id_characters, rules.use_id_max, rules.use_id_exact).fullmatch
        self._good_names: set[str] = set()
        """Names of tools that were seen and fit."""
        self._counts: dict[str, int] = {}
        self._documents: set[str] = set()
        """The names of documents that were sent."""
        self._ran: set[str] = set()
        """The server-side tool uses that were sent."""
        self._called_by_code: set[str] = set()
        """The ids of tool uses that code of a service has asked for. Source: programmatic tool calling."""
        self._documents_here = 0
        """The number of documents of the message so far."""
        self.origins: list[int | None] = []
        # What stands behind the last answer is the unanswered prompt: its author is there and can change it.
        answered = (at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == "assistant")
        self._last_answer = next(answered, -1)

    def changes(self) -> Sequence[str]:
        return [what if count == 1 else f"{what} ({count} times)" for what, count in self._counts.items()]

    def _changed(self, what: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1

    def spec(self, spec: ToolSpec) -> ToolSpec:
        if "cachePoint" in spec:
            return spec
        name = fitting_tool_name(spec["name"], self._rules)
        return spec if name == spec["name"] else {**spec, "name": name}

    def all_fit(self) -> bool:
        """True if the messages are of the most common kinds and need no change. False leaves that open. Kept fast,
        since it runs for every request.
        """
        rules, fits, merges = self._rules, self._fits_as_it_is, self._rules.merges_roles
        parts = rules.results_alone or bool(rules.not_beside_results)
        if self._messages and is_paused(self._messages[-1]):
            return False
        before = "assistant"
        for message in self._messages:
            role, content = message["role"], message["content"]
            if role == before and (merges or message is self._messages[0]):
                return False
            before = role
            for block in content:
                if "text" not in block and not fits(block, role):
                    return False
            if parts and len(content) > 1 and any("toolResult" in block for block in content):
                return False
        return True

    def messages(self) -> Sequence[Message]:
        uses = (block["toolUse"] for each in self._messages for block in each["content"] if "toolUse" in block)
        self._called_by_code = {use["toolUseId"] for use in uses if "caller" in use}
        sent: list[Message] = []
        for at, message in enumerate(self._messages):
            if is_one_text(message["content"]):
                self._add(sent, message, at)
                continue
            made = self._message(at, message)
            if self._parts_results(made) and (parted := _results_and_rest(made)) is not None:
                results, made = parted
                self._add(sent, results, at)
                self._add_between(sent)
            self._add(sent, made, at)
        if sent and sent[0]["role"] == "assistant":
            # A window that begins in the middle of a turn would otherwise be refused with every later prompt.
            self._changed("began with a note that earlier messages are left out")
            sent.insert(0, {"role": "user", "content": [{"text": EARLIER_OMITTED}]})
            self.origins.insert(0, None)
        if sent and self._is_paused_elsewhere(self._messages[-1]):
            self._changed("asked to go on with an answer in which another provider paused")
            sent.append({"role": "user", "content": [{"text": GO_ON}]})
            self.origins.append(None)
        return sent

    def _add(self, sent: list[Message], message: Message, origin: int | None) -> None:
        if not (self._rules.merges_roles and sent and sent[-1]["role"] == message["role"]):
            sent.append(message)
            self.origins.append(origin)
            return
        before = sent[-1]
        joined: Message = {**before, "content": [*before["content"], *message["content"]]}
        if self._parts_results(joined) and _results_and_rest(joined) is not None:
            self._add_between(sent)
            sent.append(message)
            self.origins.append(origin)
            return
        self._changed("joined two messages of one role")
        sent[-1] = joined

    def _add_between(self, sent: list[Message]) -> None:
        self._changed("put a text between tool results and what follows them")
        sent.append({"role": "assistant", "content": [{"text": NO_ANSWER_TEXT}]})
        self.origins.append(None)

    def _parts_results(self, message: Message) -> bool:
        """True if tool results of this message may not stand beside its other content."""
        if self._rules.results_alone:
            return True
        kinds, content = self._rules.not_beside_results, message["content"]
        return bool(kinds) and len(content) > 1 and any(_stands_apart(block, kinds) for block in content)

    def _message(self, at: int, message: Message) -> Message:
        """The message as it is sent. A message without content has an empty text, which the builder fills."""
        role = message["role"]
        for block in message["content"]:
            if "text" not in block and not self._fits_as_it_is(block, role):
                break
        else:
            return message
        self._documents_here = 0
        pending = self._pending_uses(at, message) if message["role"] == "assistant" else frozenset[str]()
        content: list[ContentBlock] = []
        for number, block in enumerate(message["content"]):
            if "cachePoint" in block and not self._takes_cache_point(content):
                self._changed("left out a cache point that the service does not take")
            else:
                content += self._block(block, at, number, message["role"], pending)
        if self._rules.documents_need_text and _lacks_text(content):
            self._changed("put a text beside a document")
            content.append({"text": DOCUMENT_TEXT})
        if len(content) == len(message["content"]) and all(map(_is, content, message["content"])):
            return message
        if not content:
            return {**message, "content": [{"text": ""}]}
        return {**message, "content": content}

    def _fits_as_it_is(self, block: ContentBlock, role: str) -> bool:
        """True for a block of the most common kinds that need no change. False leaves that open. Kept fast."""
        if "toolUse" in block:
            use = block["toolUse"]
            if use["name"] not in self._good_names:
                if not _is_tool_name(use["name"], self._rules):
                    return False
                self._good_names.add(use["name"])
            return role == "assistant" and self._is_use_id(use["toolUseId"]) is not None
        if "toolResult" not in block:
            return False
        result = block["toolResult"]
        for part in result["content"]:
            if "text" not in part:
                return False
        has_words = bool(result["content"]) and not str(result["content"][0]["text"]).isspace()
        return has_words and result["content"][0]["text"] != "" and self._is_use_id(result["toolUseId"]) is not None

    def _is_paused_elsewhere(self, message: Message) -> bool:
        """True for the first part of an answer that this service cannot go on with by itself."""
        if not is_paused(message):
            return False
        parts = [block["providerContent"] for block in message["content"] if "providerContent" in block]
        return not any(part["provider"] == self._rules.provider for part in parts) or not self._rules.server_tools

    def _takes_cache_point(self, before: Sequence[ContentBlock]) -> bool:
        behind_document = bool(before) and "document" in before[-1]
        return self._rules.cache_points and (self._rules.cache_after_document or not behind_document)

    def _pending_uses(self, at: int, message: Message) -> frozenset[str]:
        """The server-side tool uses of an answer that have no result, and that nothing waits for any more."""
        own = [block["providerContent"] for block in message["content"] if "providerContent" in block]
        waiting = open_uses([each["content"] for each in own if each["provider"] == self._rules.provider])
        if not waiting:
            return frozenset()
        for later in self._messages[at + 1 :]:
            for block in later["content"]:
                if "providerContent" in block and (ended := answered_use(block["providerContent"]["content"])):
                    waiting.discard(ended)
        # Still running at the service: leaving the use out now would lose its result.
        if not waiting or all(_still_waits(later, waiting) for later in self._messages[at + 1 :]):
            return frozenset()
        return frozenset(waiting)

    # One block.

    def _block(
        self, block: ContentBlock, at: int, number: int, role: str, pending: frozenset[str]
    ) -> Iterator[ContentBlock]:
        if "text" in block or "cachePoint" in block or "citationsContent" in block or "guardContent" in block:
            yield block
        elif "toolUse" in block:
            yield from self._tool_use(block, block["toolUse"], role)
        elif "toolResult" in block:
            yield self._result(block, block["toolResult"])
        elif "reasoningContent" in block:
            if role == "assistant" and self._takes_reasoning(block["reasoningContent"]):
                yield block
            elif (
                not self._rules.reasoning_in_items or block["reasoningContent"].get("provider") != self._rules.provider
            ):
                self._changed("left out reasoning that the service does not take")
        elif "providerContent" in block and role == "assistant":
            yield from self._provider_content(block, block["providerContent"], pending)
        elif "providerContent" in block:
            self._changed("left out a part of an answer that stands in a user's message")
        else:
            yield from self._other(block, at, number, role)

    def _tool_use(self, block: ContentBlock, use: ToolUse, role: str) -> Iterator[ContentBlock]:
        if role == "user":
            self._changed("a tool use of a user's message went as text")
            yield {"text": json.dumps({"tool": use["name"], "input": use["input"]}, ensure_ascii=False, default=repr)}
            return
        name, use_id = self._tool_name(use["name"]), self._use_id(use["toolUseId"])
        same = name == use["name"] and use_id == use["toolUseId"]
        yield block if same else {"toolUse": cast("ToolUse", {**use, "name": name, "toolUseId": use_id})}

    def _tool_name(self, name: str) -> str:
        if _is_tool_name(name, self._rules):
            return name
        self._changed("replaced a tool name that the service does not take")
        # A name that a model has made up belongs to no tool, so there is nothing to keep it recognizable for.
        return fitting_tool_name(name, self._rules) if name in self._tools else INVALID_TOOL_NAME

    def _use_id(self, use_id: str) -> str:
        fitting = fitting_use_id(use_id, self._rules)
        if fitting != use_id:
            self._changed("replaced the id of a tool use")
        return fitting

    def _result(self, block: ContentBlock, result: ToolResult) -> ContentBlock:
        use_id = self._use_id(result["toolUseId"])
        text_only = self._rules.error_text_only and (
            result.get("status") == "error" or result["toolUseId"] in self._called_by_code
        )
        content = [made for part in result["content"] for made in self._part(part, text_only=text_only)]
        # Some tools print nothing; several services refuse a result without words.
        if not any(_has_content(part) for part in content):
            self._changed("filled a tool result without content")
            content = [{"text": NO_OUTPUT_TEXT}]
        same = len(content) == len(result["content"]) and all(map(_is, content, result["content"]))
        if same and use_id == result["toolUseId"]:
            return block
        return {"toolResult": cast("ToolResult", {**result, "toolUseId": use_id, "content": content})}

    def _part(self, part: Mapping[str, object], *, text_only: bool) -> Iterator[Mapping[str, object]]:
        """A part of a tool's result as it is sent. The tool cannot be asked again, so a note replaces what fits not."""
        if "json" in part:
            if self._rules.json_as_text or (self._rules.json_objects_only and not isinstance(part["json"], dict)):
                self._changed("sent the JSON of a tool result as text")
                yield {"text": json.dumps(part["json"], ensure_ascii=False)}
            else:
                yield part
            return
        kind = _medium(part)
        if kind is None:
            yield self._plain_part(part, frozenset[str]() if text_only else self._rules.blocks)
        elif (fault := self._fault(kind, part)) is not None or self._keeps_out(kind, part, text_only=text_only):
            self._changed(f"replaced {_NAMED[kind]} of a tool result by a note")
            yield {"text": _note_of(kind, part, fault)}
        elif kind == "document" and self._rules.fits_document_names:
            yield self._with_name(part)
        else:
            yield part

    def _plain_part(self, part: Mapping[str, object], kinds: frozenset[str]) -> Mapping[str, object]:
        """A part that is no medium; as JSON text unless it is text or one of these kinds."""
        kind = next(iter(part), "text")
        own = part.get("providerContent")
        if isinstance(own, Mapping) and cast("ProviderContent", own)["provider"] == self._rules.provider:
            return part
        if kind in _TEXTS or kind in kinds:
            return part
        self._changed("sent a part of a tool result as text")
        content = cast("ProviderContent", own)["content"] if isinstance(own, Mapping) else part[kind]
        return {"text": json.dumps(content, ensure_ascii=False, default=repr)}

    def _keeps_out(self, kind: str, part: Mapping[str, object], *, text_only: bool) -> bool:
        """True if messages may hold this medium, but the result of a tool may not."""
        rules = self._rules
        if text_only or (rules.result_media is not None and kind not in rules.result_media):
            return True
        if kind != "document" or rules.result_documents is None:
            return False
        return cast("Mapping[str, object]", part[kind]).get("format") not in rules.result_documents

    def _takes_reasoning(self, reasoning: Mapping[str, object]) -> bool:
        wanted = self._rules.reasoning
        own = self._rules.reasoning_provider or self._rules.provider
        if wanted == "none" or reasoning.get("provider", own) != own:
            return False
        if wanted == "any":
            return True
        spoken = reasoning.get("reasoningText")
        if not isinstance(spoken, Mapping):
            return wanted == "signed"
        return bool(cast("Mapping[str, object]", spoken).get("signature")) is (wanted == "signed")

    def _provider_content(
        self, block: ContentBlock, part: ProviderContent, pending: frozenset[str]
    ) -> Iterator[ContentBlock]:
        content = part["content"]
        used, answered = use_of(content), answered_use(content)
        if part["provider"] != self._rules.provider:
            self._changed("left out a part of an answer that another provider made")
            yield from _as_text(content)
        elif not self._rules.server_tools and (used is not None or answered is not None):
            self._changed("left out a server-side tool that this model does not have")
            yield from _as_text(content)
        elif used is not None and (used in pending or self._lacks_caller(content)):
            self._changed("left out a server-side tool use that never got its result")
        elif answered is not None and answered not in self._ran:
            self._changed("left out a server-side result whose tool use is not shown")
            yield from _as_text(content)
        else:
            if used is not None:
                self._ran.add(used)
            yield block

    def _lacks_caller(self, content: Mapping[str, object]) -> bool:
        """True if code has asked for the use, and that code is not shown."""
        caller = content.get("caller")
        code = cast("Mapping[str, object]", caller).get("tool_id") if isinstance(caller, Mapping) else None
        return code is not None and code not in self._ran

    def _other(self, block: ContentBlock, at: int, number: int, role: str) -> Iterator[ContentBlock]:
        """Media, and kinds of blocks that only some services know."""
        kind = _medium(block) or next(iter(block), "empty")
        fields = cast("Mapping[str, object]", block)
        if role == "assistant" and kind in _NAMED and not self._rules.media_in_answers:
            self._changed(f"replaced {_NAMED[kind]} of an answer by a note")
            yield {"text": f"({_NAMED[kind].capitalize()} stood here.)"}
            return
        fault = self._fault(kind, fields)
        if fault is None:
            named = kind == "document" and self._rules.fits_document_names
            yield cast("ContentBlock", self._with_name(fields)) if named else block
        elif at > self._last_answer:
            raise cannot_take(kind, self._rules.service, fault[0], fault[1], message=at, content_block=number)
        else:
            self._changed(f"replaced {_NAMED.get(kind, 'a block')} of an earlier message by a note")
            yield {"text": _note_of(kind, fields, fault)}

    def _fault(self, kind: str, block: Mapping[str, object]) -> tuple[str, object] | None:
        """The reason why the service refuses a block, and the value that it refuses; None if it accepts the block."""
        formats = {
            "image": self._rules.images,
            "document": self._rules.documents,
            "video": self._rules.videos,
            "audio": self._rules.audios,
        }.get(kind)
        if formats is None:
            return None if kind in self._rules.blocks else ("it has no such blocks", sorted(block))
        body = cast("Mapping[str, object]", block[kind])
        if kind == "document" and self._rules.documents_max is not None:
            self._documents_here += 1
            if self._documents_here > self._rules.documents_max:
                return f"more than {self._rules.documents_max} in one message", body.get("name")
        source = body.get("source")
        found = cast("Mapping[str, object]", source if isinstance(source, Mapping) else {})
        if not formats:
            return "it has no such blocks", sorted(block)
        if kind == "document" and ("text" in found or "content" in found):
            return None
        if "*" not in formats and body.get("format") not in formats:
            known = sorted(formats - {"jpg"})
            return f"a format other than {' and '.join(filter(None, (', '.join(known[:-1]), known[-1])))}", body.get(
                "format"
            )
        data = found.get("bytes")
        if isinstance(data, bytes | bytearray):
            if kind != "document" or not self._rules.reads_text or body.get("format") == "pdf" or _is_utf8(data):
                return None
            return "text that is not UTF-8", body.get("name")
        if self._rules.locations and ("location" in found or "s3Location" in found):
            return None
        return "only bytes can be sent as its source", sorted(found)

    def _with_name(self, block: Mapping[str, object]) -> Mapping[str, object]:
        """The document with a name that fits and that no other one of the request has."""
        document = cast("Mapping[str, object]", block["document"])
        name = document.get("name")
        plain = fitting_document_name(name if isinstance(name, str) else "")
        number, unique = 2, plain
        while unique in self._documents:
            unique, number = f"{plain[: _DOCUMENT_NAME_MAX - 6]}-{number}", number + 1
        self._documents.add(unique)
        if unique == name:
            return block
        self._changed("renamed a document")
        return {**block, "document": {**document, "name": unique}}


def _as_text(content: Mapping[str, object]) -> Iterator[ContentBlock]:
    text = text_for_others(content)
    if text is not None:
        yield {"text": text}


_TEXTS = frozenset(("text", "json", "cachePoint", "guardContent", "citationsContent"))
"""Parts of a tool's result that each service is sent as text, or not at all."""
_DOCUMENT_NAME_MAX = 200
_NOT_IN_DOCUMENT_NAMES = re.compile(r"[^a-zA-Z0-9()\[\] -]+")


def fitting_document_name(name: str) -> str:
    """A name of a document that Bedrock takes: letters, digits, single spaces, hyphens, parentheses and brackets."""
    plain = re.sub(r" {2,}", " ", _NOT_IN_DOCUMENT_NAMES.sub("-", name))
    return plain.strip(" -")[:_DOCUMENT_NAME_MAX].strip() or "document"


_NAMED = {"image": "an image", "document": "a document", "video": "a video", "audio": "a sound"}


def _medium(block: Mapping[str, object]) -> str | None:
    return next((kind for kind in _NAMED if kind in block), None)


def _note_of(kind: str, block: Mapping[str, object], fault: tuple[str, object] | None) -> str:
    """The text in the place of a block that cannot be sent."""
    if kind not in _NAMED:
        return f"(A block of kind {kind} is left out: this model cannot be shown it.)"
    body = cast("Mapping[str, object]", block[kind])
    name, form = body.get("name"), body.get("format")
    details = [f"named {name!r}" if isinstance(name, str) else "", f"of format {form}" if form else ""]
    described = " ".join([_NAMED[kind].capitalize(), *filter(None, details)])
    return f"({described} is left out: this model cannot be shown it{' here' if fault is None else ''}.)"


def _is_utf8(data: bytes | bytearray) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _lacks_text(content: Sequence[ContentBlock]) -> bool:
    """True if the content has a document and no words beside it."""
    words = (str(block.get("text", "")) for block in content)
    return any("document" in block for block in content) and not any(map(str.strip, words))


def _is(one: object, other: object) -> bool:
    return one is other


def _has_content(part: Mapping[str, object]) -> bool:
    return "cachePoint" not in part and not ("text" in part and not str(part["text"]).strip())


def _stands_apart(block: ContentBlock, kinds: frozenset[str]) -> bool:
    """True for a block of one of these kinds, unless it is a PDF."""
    return not kinds.isdisjoint(block) and block.get("document", {}).get("format") != "pdf"


def _still_waits(message: Message, uses: set[str]) -> bool:
    """True if the provider still owes the results of its tool uses after this message: it holds nothing but results of
    the caller's tools, or code of one of the uses has asked for them.

    Source: Anthropic refuses any other message after a use without a result (pydantic-ai's recordings, November 2026).
    """
    if message["role"] == "user":
        return all("toolResult" in block or "cachePoint" in block for block in message["content"])
    callers = (block["toolUse"].get("caller", {}) for block in message["content"] if "toolUse" in block)
    return any(caller.get("tool_id") in uses for caller in callers)


def _results_and_rest(message: Message) -> tuple[Message, Message] | None:
    """The tool results of a user's message, and its other blocks, as two messages; None if it has only one kind."""
    if message["role"] != "user":
        return None
    results = [block for block in message["content"] if "toolResult" in block]
    rest = [block for block in message["content"] if "toolResult" not in block]
    if not results or not any("cachePoint" not in block for block in rest):
        return None
    return {**message, "content": results}, {**message, "content": rest}
