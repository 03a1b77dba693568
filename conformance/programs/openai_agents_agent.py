"""An agent of the OpenAI Agents SDK with two tools: `openai_agents_agent.py URL MODEL PROMPT ...`, one turn each."""

import sys
from pathlib import Path

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@function_tool
def append_line(path: str, line: str) -> str:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(line + "\n")
    return "appended"


url, model, *prompts = sys.argv[1:]
set_tracing_disabled(True)
agent = Agent(
    name="harbour",
    instructions="You keep the notes of a harbour. " * 200,
    model=OpenAIResponsesModel(model, AsyncOpenAI(base_url=f"{url}/v1", api_key="any")),
    tools=[read_file, append_line],
)
history = []
for prompt in prompts:
    result = Runner.run_sync(agent, [*history, {"role": "user", "content": prompt}])
    history = result.to_input_list()
    print(result.final_output)
