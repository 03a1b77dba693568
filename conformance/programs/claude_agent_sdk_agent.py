"""An agent of the Claude Agent SDK with its own tools: `claude_agent_sdk_agent.py URL MODEL PROMPT ...`."""

import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage

url, model, *prompts = sys.argv[1:]
environment = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "any", "IS_SANDBOX": "1"}
options = ClaudeAgentOptions(model=model, permission_mode="bypassPermissions", env=environment)


async def main() -> None:
    async with ClaudeSDKClient(options=options) as client:
        for prompt in prompts:
            await client.query(prompt)
            async for message in client.receive_response():
                if isinstance(message, ResultMessage):
                    print(message.result)


asyncio.run(main())
