"""A pydantic-ai agent with two tools: `pydantic_ai_agent.py URL MODEL PROMPT ...`, one turn per prompt."""

import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

url, model, *prompts = sys.argv[1:]
agent = Agent(
    AnthropicModel(model, provider=AnthropicProvider(base_url=url, api_key="any")),
    system_prompt="You keep the notes of a harbour. " * 200,
)


@agent.tool_plain
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@agent.tool_plain
def append_line(path: str, line: str) -> str:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(line + "\n")
    return "appended"


history = []
for prompt in prompts:
    result = agent.run_sync(prompt, message_history=history)
    history = result.all_messages()
    print(result.output)
