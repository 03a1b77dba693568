"""A deep agent with its own file tools and sub-agents: `deepagents_agent.py URL MODEL PROMPT ...`, one turn each."""

import sys

from deepagents import create_deep_agent
from deepagents.backends import FilesystemBackend
from langchain_anthropic import ChatAnthropic

url, model, *prompts = sys.argv[1:]
chat = ChatAnthropic(model=model, base_url=url, api_key="any", max_tokens=500)
agent = create_deep_agent(model=chat, backend=FilesystemBackend(root_dir=".", virtual_mode=True))
messages = []
for prompt in prompts:
    messages = agent.invoke({"messages": [*messages, {"role": "user", "content": prompt}]})["messages"]
    print(messages[-1].text)
