"""An agent of Google's ADK with two tools: `google_adk_agent.py URL MODEL PROMPT ...`, one turn per prompt."""

import asyncio
import sys
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.models import Gemini
from google.adk.runners import InMemoryRunner
from google.genai import types


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def append_line(path: str, line: str) -> str:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(line + "\n")
    return "appended"


url, model, *prompts = sys.argv[1:]
agent = LlmAgent(
    name="harbour",
    model=Gemini(model=model, base_url=url),
    # Long enough for the cache: Gemini caches nothing below 4,096 tokens.
    instruction="You keep the notes of a harbour. " * 800,
    tools=[read_file, append_line],
)


async def main() -> None:
    runner = InMemoryRunner(agent=agent, app_name="harbour")
    session = await runner.session_service.create_session(app_name="harbour", user_id="harbourmaster")
    for prompt in prompts:
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        async for event in runner.run_async(user_id="harbourmaster", session_id=session.id, new_message=message):
            if event.is_final_response():
                print(event.content.parts[0].text)


asyncio.run(main())
