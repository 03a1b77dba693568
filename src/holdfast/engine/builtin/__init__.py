"""The built-in tools: files and commands of a workspace, memory files, skills and recalled history."""
