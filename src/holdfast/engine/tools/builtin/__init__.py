"""The built-in tools for files, search, shell commands, memory, history and skills."""
