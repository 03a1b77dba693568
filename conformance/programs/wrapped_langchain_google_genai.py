"""LangChain's model for Gemini, wrapped: `wrapped_langchain_google_genai.py URL`; prints what was recorded."""

import asyncio
import json
import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_google_genai import ChatGoogleGenerativeAI

from holdfast.integrations import langchain, recorder_of


def read_notes(day: str) -> str:
    """Read the notes of a day."""
    return f"On {day}: Heron, Dunlin."


url = sys.argv[1]
bare = ChatGoogleGenerativeAI(model="gemini-3.8-flash", api_key="any", base_url=url)
model = langchain.wrap(bare, store="memory:")
agent = model.bind_tools([read_notes])
messages = [SystemMessage("You keep the notes of a harbour. " * 1_000), HumanMessage("Which boats are listed?")]
messages += [agent.invoke(messages), HumanMessage("And yesterday?")]
first, *rest = agent.stream(messages)
messages += [sum(rest, first), HumanMessage("Anything else?")]
asyncio.run(agent.ainvoke(messages))
calls = recorder_of(model).calls
print(json.dumps([[call.completed, call.is_prefix_unchanged, call.usage.cache_read] for call in calls]))
