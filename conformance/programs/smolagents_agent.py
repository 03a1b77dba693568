"""A tool-calling agent of smolagents with two tools: `smolagents_agent.py URL MODEL PROMPT ...`, one turn each."""

import sys
from pathlib import Path

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def read_file(path: str) -> str:
    """Read a file.

    Args:
        path: The file's name.
    """
    return Path(path).read_text()


@tool
def append_line(path: str, line: str) -> str:
    """Append a line to a file.

    Args:
        path: The file's name.
        line: The line, without its end.
    """
    with Path(path).open("a") as file:
        file.write(line + "\n")
    return "appended"


url, model, *prompts = sys.argv[1:]
chat = OpenAIModel(model_id=model, api_base=f"{url}/v1", api_key="any")
instructions = "You keep the notes of a harbour. " * 200
agent = ToolCallingAgent(tools=[read_file, append_line], model=chat, instructions=instructions)
for prompt in prompts:
    print(agent.run(prompt, reset=False))
