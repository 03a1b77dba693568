"""Commands for what sessions know beyond their prompt: knowledge, curation and rag."""
