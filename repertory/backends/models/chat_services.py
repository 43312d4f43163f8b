"""The services with the protocol of Chat Completions, by their URLs, and the form of reasoning that each accepts.

OpenAI's own Chat Completions neither shows reasoning nor takes it. Others show it, and their models lose the thread
between two tool calls without it; some refuse the conversation then. Each has a way of its own. Of a server that is
not in the table nothing is known, so it gets none; the setting `reasoning_field` names a field for it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

ReasoningForm: TypeAlias = Literal["reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks"]
"""The field of an assistant message that holds its reasoning; with `thinking`, parts of its content hold it."""


class ChatService(Struct, frozen=True, kw_only=True):
    """One service with the protocol of Chat Completions."""

    name: str
    """Marks the reasoning and the parts of answers that go back to this service, and to no other."""
    reasoning: ReasoningForm | None = None
    """The form in which it accepts earlier reasoning; None if it accepts none."""
    reasoning_needed: bool = False
    """True if a message with tool calls is refused without reasoning, when the model thinks."""
    reasoning_name: str = ""
    """Marks its reasoning, if that has another name."""
    signatures: Literal["extra_content", "provider_specific_fields"] | None = None
    """The field of a tool call with the signature of Gemini that has to go back; None without such signatures."""


OPENAI_CHAT = ChatService(name="openai-chat")
"""OpenAI, and Azure. The Responses API has parts of its own, so the two do not share a name."""
COMPATIBLE = ChatService(name="compatible")
"""A server that is not in the table."""
DEEPSEEK = ChatService(name="deepseek", reasoning="reasoning_content", reasoning_needed=True)
GEMINI_CHAT = ChatService(name="gemini-chat", signatures="extra_content")
LLAMA_CPP_SERVER = ChatService(name="llama.cpp", reasoning="reasoning_content")
MISTRAL_CHAT = ChatService(name="mistral", reasoning="thinking")
MOONSHOT = ChatService(name="moonshot", reasoning="reasoning_content", reasoning_needed=True)
_DETAILS: ReasoningForm = "reasoning_details"
_CONTENT: ReasoningForm = "reasoning_content"

_BY_HOST: dict[str, ChatService] = {
    "api.openai.com": OPENAI_CHAT,
    "openai.azure.com": OPENAI_CHAT,
    # api-docs.deepseek.com/guides/thinking_mode: refused without it once a tool was called.
    "api.deepseek.com": DEEPSEEK,
    # platform.moonshot.ai/docs/guide/use-kimi-k2-thinking-model: all of the reasoning has to stay in the context.
    "api.moonshot.ai": MOONSHOT,
    "api.moonshot.cn": MOONSHOT,
    # docs.z.ai/guides/capabilities/thinking-mode: interleaved and preserved thinking.
    "api.z.ai": ChatService(name="zai", reasoning=_CONTENT),
    "open.bigmodel.cn": ChatService(name="zai", reasoning=_CONTENT),
    # openrouter.ai/docs/use-cases/reasoning-tokens: the details unmodified, in the order in which they came.
    "openrouter.ai": ChatService(name="openrouter", reasoning=_DETAILS),
    # help.aliyun.com/en/model-studio/deep-thinking: `preserve_thinking` reads it; it is passed over otherwise.
    "aliyuncs.com": ChatService(name="qwen", reasoning=_CONTENT),
    # docs.x.ai/docs/guides/reasoning: the field of its answers; taken back in recorded requests.
    "api.x.ai": ChatService(name="xai", reasoning=_CONTENT),
    # platform.minimax.io/docs/guides/text-m2-function-call: with `reasoning_split`, the details go back whole.
    "api.minimax.io": ChatService(name="minimax", reasoning=_DETAILS),
    "api.minimaxi.com": ChatService(name="minimax", reasoning=_DETAILS),
    # docs.mistral.ai/capabilities/reasoning: `thinking` parts of the content.
    "api.mistral.ai": MISTRAL_CHAT,
    # ai.google.dev/gemini-api/docs/thought-signatures: in `extra_content` of a tool call; Gemini 3 refuses without.
    "generativelanguage.googleapis.com": GEMINI_CHAT,
    "aiplatform.googleapis.com": GEMINI_CHAT,
    # vercel.com/docs/ai-gateway/openai-compat/advanced: the details as OpenRouter has them.
    "ai-gateway.vercel.sh": ChatService(name="vercel", reasoning=_DETAILS),
    # Snowflake Cortex: the details of Claude with their signatures, in recorded requests.
    "snowflakecomputing.com": ChatService(name="snowflake", reasoning=_DETAILS),
    # inference-docs.cerebras.ai/capabilities/reasoning: `reasoning` of earlier turns.
    "api.cerebras.ai": ChatService(name="cerebras", reasoning="reasoning"),
    # docs.ollama.com/api/openai-compatibility, and recorded requests.
    "ollama.com": ChatService(name="ollama-chat", reasoning="reasoning"),
    # docs.fireworks.ai/guides/reasoning: interleaved and preserved thinking.
    "api.fireworks.ai": ChatService(name="fireworks", reasoning=_CONTENT),
    # Recorded requests.
    "api.venice.ai": ChatService(name="venice", reasoning=_CONTENT),
}
"""Services by their host, or by a domain that it lies in. The comments name the source."""


def chat_service(url: str | None) -> ChatService:
    """The service at a URL; OpenAI's own for None."""
    if not url:
        return OPENAI_CHAT
    host = (urlsplit(url if "//" in url else f"//{url}").hostname or "").lower()
    while host:
        if host in _BY_HOST:
            return _BY_HOST[host]
        _, _, host = host.partition(".")
    return COMPATIBLE
