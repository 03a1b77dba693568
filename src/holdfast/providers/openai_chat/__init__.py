"""The adapter for OpenAI's Chat Completions API, which OpenRouter's extends."""

from holdfast.providers.openai_chat.adapter import OPENAI_VARIANT, ChatAdapter

openai_chat = ChatAdapter(OPENAI_VARIANT)
__all__ = ["ChatAdapter", "openai_chat"]
