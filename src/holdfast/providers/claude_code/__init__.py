"""An agent on this machine that is asked by running its command."""

from holdfast.providers.claude_code.adapter import ClaudeCodeAdapter

claude_code = ClaudeCodeAdapter()

__all__ = ["ClaudeCodeAdapter", "claude_code"]
