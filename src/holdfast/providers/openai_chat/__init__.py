"""How OpenAI's chat completions spell a request and a reply; OpenRouter's are the same, with additions."""

from holdfast.providers.openai_chat.adapter import ChatAdapter
from holdfast.providers.openai_chat.openai import FLAVOUR

openai_chat = ChatAdapter(FLAVOUR)

__all__ = ["ChatAdapter", "openai_chat"]
