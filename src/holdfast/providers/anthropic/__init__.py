"""The adapter for Anthropic's Messages API."""

from holdfast.providers.anthropic.adapter import AnthropicAdapter

anthropic = AnthropicAdapter()
__all__ = ["AnthropicAdapter", "anthropic"]
