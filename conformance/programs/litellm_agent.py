"""A loop around LiteLLM's completion with two tools: `litellm_agent.py URL MODEL PROMPT ...`, one turn per prompt."""

import json
import sys
from pathlib import Path

from litellm import completion

url, model, *prompts = sys.argv[1:]


def describe_tool(name: str, *arguments: str) -> dict:
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def call_tool(name: str, path: str, line: str = "") -> str:
    if name == "read_file":
        return Path(path).read_text()
    with Path(path).open("a") as file:
        file.write(line + "\n")
    return "appended"


tools = [describe_tool("read_file", "path"), describe_tool("append_line", "path", "line")]
messages = [{"role": "system", "content": "You keep the notes of a harbour. " * 200}]
for prompt in prompts:
    messages.append({"role": "user", "content": prompt})
    while True:
        response = completion(
            model=f"anthropic/{model}", api_base=url, api_key="any", messages=messages, tools=tools, max_tokens=500
        )
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            print(message.content)
            break
        for call in message.tool_calls:
            result = call_tool(call.function.name, **json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
