"""The simulated APIs of OpenAI: Chat Completions and Responses."""
