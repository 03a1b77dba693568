"""Values shared by every package: blocks, messages, prompts, replies, usage, and their encoded bytes."""
