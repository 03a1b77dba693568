"""How Anthropic spells a request and a reply."""

from holdfast.providers.anthropic.adapter import AnthropicAdapter

anthropic = AnthropicAdapter()

__all__ = ["AnthropicAdapter", "anthropic"]
