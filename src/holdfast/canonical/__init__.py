"""The values everything else speaks of: blocks, messages, prompts, replies, usage, and their bytes."""
