"""The provider that runs the Claude Code command on this machine."""

from holdfast.providers.claude_code.adapter import ClaudeCodeAdapter

claude_code = ClaudeCodeAdapter()
__all__ = ["ClaudeCodeAdapter", "claude_code"]
