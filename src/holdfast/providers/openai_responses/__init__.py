"""How OpenAI's Responses API spells a request and a reply."""

from holdfast.providers.openai_responses.adapter import OpenAIResponsesAdapter

openai_responses = OpenAIResponsesAdapter()

__all__ = ["OpenAIResponsesAdapter", "openai_responses"]
