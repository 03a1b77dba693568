"""The adapter for Gemini's generateContent API."""

from holdfast.providers.gemini.adapter import GeminiAdapter

gemini = GeminiAdapter()
__all__ = ["GeminiAdapter", "gemini"]
