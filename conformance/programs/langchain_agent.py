"""A LangChain agent with two tools: `langchain_agent.py URL MODEL PROMPT ...`, one turn per prompt."""

import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@tool
def append_line(path: str, line: str) -> str:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(line + "\n")
    return "appended"


url, model, *prompts = sys.argv[1:]
chat = ChatAnthropic(model=model, base_url=url, api_key="any", max_tokens=500)
agent = create_agent(chat, [read_file, append_line], system_prompt="You keep the notes of a harbour. " * 200)
messages = []
for prompt in prompts:
    messages = agent.invoke({"messages": [*messages, {"role": "user", "content": prompt}]})["messages"]
    print(messages[-1].content)
