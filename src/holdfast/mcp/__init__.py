"""What any MCP client can ask for: an agent's instructions, and skills."""
