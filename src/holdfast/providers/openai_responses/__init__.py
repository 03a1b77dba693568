"""The adapter for OpenAI's Responses API."""

from holdfast.providers.openai_responses.adapter import OpenAIResponsesAdapter

openai_responses = OpenAIResponsesAdapter()
__all__ = ["OpenAIResponsesAdapter", "openai_responses"]
