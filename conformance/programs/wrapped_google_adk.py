"""An agent of Google's ADK with a wrapped client: `wrapped_google_adk.py URL`; prints what was recorded."""

import asyncio
import json
import sys

from google import genai
from google.adk.agents import LlmAgent
from google.adk.models import Gemini
from google.adk.runners import InMemoryRunner
from google.genai import types

from holdfast import wrap
from holdfast.integrations import recorder_of


def read_notes(day: str) -> str:
    """Read the notes of a day."""
    return f"On {day}: Heron, Dunlin."


async def main(url: str) -> None:
    options = types.HttpOptions(base_url=url)
    client = wrap(genai.Client(api_key="any", http_options=options), store="memory:")
    model = Gemini(model="gemini-3.8-flash", client=client)
    guide = "You keep the notes of a harbour. " * 1_000
    agent = LlmAgent(name="harbour", model=model, instruction=guide, tools=[read_notes])
    runner = InMemoryRunner(agent=agent, app_name="harbour")
    session = await runner.session_service.create_session(app_name="harbour", user_id="master")
    for question in ("Which boats are listed?", "And yesterday?", "Anything else?"):
        message = types.Content(role="user", parts=[types.Part(text=question)])
        async for _ in runner.run_async(user_id="master", session_id=session.id, new_message=message):
            pass
    calls = recorder_of(client).calls
    print(json.dumps([[call.completed, call.is_prefix_unchanged, call.usage.cache_read] for call in calls]))


asyncio.run(main(sys.argv[1]))
