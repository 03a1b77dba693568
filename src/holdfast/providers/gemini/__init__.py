"""How Gemini spells a request and a reply."""

from holdfast.providers.gemini.adapter import GeminiAdapter

gemini = GeminiAdapter()

__all__ = ["GeminiAdapter", "gemini"]
