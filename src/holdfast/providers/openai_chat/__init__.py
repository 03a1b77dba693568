"""The adapter for OpenAI's Chat Completions API, which OpenRouter's extends."""

from holdfast.providers.openai_chat.adapter import ChatAdapter
from holdfast.providers.openai_chat.openai import FLAVOUR

openai_chat = ChatAdapter(FLAVOUR)

__all__ = ["ChatAdapter", "openai_chat"]
