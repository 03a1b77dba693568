"""An MCP server for an agent's instructions and skills."""
