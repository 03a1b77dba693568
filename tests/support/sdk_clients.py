"""One scripted session through each provider's official client: a tool call, its result, one more question.

Each player returns, call by call, the usage that the client itself reports.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
from google import genai
from google.genai import types
from openrouter import OpenRouter

TIMEOUT_SECONDS = 5.0
SYSTEM = "You read files before you speak of them. " * 700
LOOK, SURE, RESULT = "Look.", "Sure?", "The text of a.txt."
SCRIPT = "\n".join(
    [
        '{"content": [{"type": "text", "text": "I look."},'
        ' {"type": "tool_use", "name": "read", "input": {"path": "a.txt"}}]}',
        '{"content": "It is there."}',
        '{"content": "Yes."}',
    ]
)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}

ShownUsage = tuple[int, int, int, int]
"""Prompt tokens in all, read from the cache, written to it, output."""

Player = Callable[[str], list[ShownUsage]]
AsyncPlayer = Callable[[str], Awaitable[list[ShownUsage]]]


# Anthropic


def _anthropic(messages: list[Any]) -> dict[str, Any]:
    return {
        "model": "claude-sonnet-5-5",
        "max_tokens": 200,
        "system": SYSTEM,
        "cache_control": {"type": "ephemeral"},
        "tools": [{"name": "read", "description": "", "input_schema": SCHEMA}],
        "messages": messages,
    }


def _anthropic_usage(usage: Any) -> ShownUsage:
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return usage.input_tokens + read + written, read, written, usage.output_tokens


def _anthropic_next(messages: list[Any], message: Any) -> None:
    messages.append({"role": "assistant", "content": message.content})
    calls = [block for block in message.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": RESULT} for call in calls]
    messages.append({"role": "user", "content": results or SURE})


def anthropic_sync(url: str, *, stream: bool) -> list[ShownUsage]:
    usages, messages = [], [{"role": "user", "content": LOOK}]
    with anthropic.Anthropic(base_url=url, api_key="any", timeout=TIMEOUT_SECONDS, max_retries=0) as client:
        for _ in range(3):
            if stream:
                with client.messages.stream(**_anthropic(messages)) as events:
                    message: Any = events.get_final_message()
            else:
                message = client.messages.create(**_anthropic(messages))
            usages.append(_anthropic_usage(message.usage))
            _anthropic_next(messages, message)
    return usages


async def anthropic_async(url: str, *, stream: bool) -> list[ShownUsage]:
    usages, messages = [], [{"role": "user", "content": LOOK}]
    options: Any = {"base_url": url, "api_key": "any", "timeout": TIMEOUT_SECONDS, "max_retries": 0}
    async with anthropic.AsyncAnthropic(**options) as client:
        for _ in range(3):
            if stream:
                async with client.messages.stream(**_anthropic(messages)) as events:
                    message: Any = await events.get_final_message()
            else:
                message = await client.messages.create(**_anthropic(messages))
            usages.append(_anthropic_usage(message.usage))
            _anthropic_next(messages, message)
    return usages


# OpenAI


def _openai_options(url: str) -> dict[str, Any]:
    return {"base_url": f"{url}/v1", "api_key": "any", "timeout": TIMEOUT_SECONDS, "max_retries": 0}


def _chat(messages: list[Any], *, stream: bool) -> dict[str, Any]:
    function = {"name": "read", "description": "", "parameters": SCHEMA}
    request: dict[str, Any] = {
        "model": "gpt-6.1-sol",
        "prompt_cache_key": "k",
        "tools": [{"type": "function", "function": function}],
        "messages": [{"role": "developer", "content": SYSTEM}, *messages],
    }
    return {**request, "stream": True, "stream_options": {"include_usage": True}} if stream else request


def _chat_usage(usage: Any) -> ShownUsage:
    details = usage.prompt_tokens_details
    return usage.prompt_tokens, details.cached_tokens, details.cache_write_tokens, usage.completion_tokens


def _chat_next(messages: list[Any], text: str, calls: list[dict[str, Any]]) -> None:
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls]
    messages += [message, *(results or [{"role": "user", "content": SURE}])]


def _chat_whole(messages: list[Any], completion: Any) -> ShownUsage:
    message = completion.choices[0].message
    calls = [_chat_call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    _chat_next(messages, message.content, calls)
    return _chat_usage(completion.usage)


def _chat_call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


class _ChatChunks:
    """The chunks of one reply, combined as an agent without Holdfast would."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: dict[int, dict[str, Any]] = {}
        self.usage: Any = None

    def add(self, chunk: Any) -> None:
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            self.text += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                call = self.calls.setdefault(int(part.index), _chat_call(part.id, part.function.name, ""))
                call["function"]["arguments"] += part.function.arguments or ""

    def close(self, messages: list[Any]) -> ShownUsage:
        _chat_next(messages, self.text, list(self.calls.values()))
        return _chat_usage(self.usage)


def chat_sync(url: str, *, stream: bool) -> list[ShownUsage]:
    usages: list[ShownUsage] = []
    messages: list[Any] = [{"role": "user", "content": LOOK}]
    with openai.OpenAI(**_openai_options(url)) as client:
        for _ in range(3):
            response: Any = client.chat.completions.create(**_chat(messages, stream=stream))
            if stream:
                chunks = _ChatChunks()
                for chunk in response:
                    chunks.add(chunk)
                usages.append(chunks.close(messages))
            else:
                usages.append(_chat_whole(messages, response))
    return usages


async def chat_async(url: str, *, stream: bool) -> list[ShownUsage]:
    usages: list[ShownUsage] = []
    messages: list[Any] = [{"role": "user", "content": LOOK}]
    async with openai.AsyncOpenAI(**_openai_options(url)) as client:
        for _ in range(3):
            response: Any = await client.chat.completions.create(**_chat(messages, stream=stream))
            if stream:
                chunks = _ChatChunks()
                async for chunk in response:
                    chunks.add(chunk)
                usages.append(chunks.close(messages))
            else:
                usages.append(_chat_whole(messages, response))
    return usages


def _responses(items: list[Any]) -> dict[str, Any]:
    return {
        "model": "gpt-6.1-sol",
        "store": False,
        "prompt_cache_key": "k",
        "tools": [{"type": "function", "name": "read", "description": "", "parameters": SCHEMA, "strict": False}],
        "input": [{"role": "developer", "content": SYSTEM}, *items],
    }


def _responses_next(items: list[Any], response: Any) -> ShownUsage:
    calls = [item for item in response.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT} for call in calls]
    output = [item.model_dump(exclude_none=True, exclude={"parsed_arguments", "parsed"}) for item in response.output]
    for item in output:
        for part in item.get("content", ()):
            part.pop("parsed", None)
    items += [*output, *(results or [{"role": "user", "content": SURE}])]
    usage, details = response.usage, response.usage.input_tokens_details
    return usage.input_tokens, details.cached_tokens, details.cache_write_tokens, usage.output_tokens


def responses_sync(url: str, *, stream: bool) -> list[ShownUsage]:
    usages, items = [], [{"role": "user", "content": LOOK}]
    with openai.OpenAI(**_openai_options(url)) as client:
        for _ in range(3):
            if stream:
                with client.responses.stream(**_responses(items)) as events:
                    response: Any = events.get_final_response()
            else:
                response = client.responses.create(**_responses(items))
            usages.append(_responses_next(items, response))
    return usages


async def responses_async(url: str, *, stream: bool) -> list[ShownUsage]:
    usages, items = [], [{"role": "user", "content": LOOK}]
    async with openai.AsyncOpenAI(**_openai_options(url)) as client:
        for _ in range(3):
            if stream:
                async with client.responses.stream(**_responses(items)) as events:
                    response: Any = await events.get_final_response()
            else:
                response = await client.responses.create(**_responses(items))
            usages.append(_responses_next(items, response))
    return usages


# OpenRouter


def _routed(messages: list[Any], *, stream: bool) -> dict[str, Any]:
    system_block = {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}
    request = _chat(messages, stream=False)
    return {
        "model": "anthropic/claude-sonnet-5.5",
        "session_id": "s",
        "tools": request["tools"],
        "messages": [{"role": "system", "content": [system_block]}, *messages],
        "retries": None,
        "stream": stream,
    }


def openrouter_sync(url: str, *, stream: bool) -> list[ShownUsage]:
    usages: list[ShownUsage] = []
    messages: list[Any] = [{"role": "user", "content": LOOK}]
    with OpenRouter(api_key="any", server_url=f"{url}/api/v1", timeout_ms=5_000) as client:
        for _ in range(3):
            response: Any = client.chat.send(**_routed(messages, stream=stream))
            if stream:
                chunks = _ChatChunks()
                for chunk in response:
                    chunks.add(chunk)
                usages.append(chunks.close(messages))
            else:
                usages.append(_chat_whole(messages, response))
    return usages


async def openrouter_async(url: str, *, stream: bool) -> list[ShownUsage]:
    usages: list[ShownUsage] = []
    messages: list[Any] = [{"role": "user", "content": LOOK}]
    async with OpenRouter(api_key="any", server_url=f"{url}/api/v1", timeout_ms=5_000) as client:
        for _ in range(3):
            response: Any = await client.chat.send_async(**_routed(messages, stream=stream))
            if stream:
                chunks = _ChatChunks()
                async for chunk in response:
                    chunks.add(chunk)
                usages.append(chunks.close(messages))
            else:
                usages.append(_chat_whole(messages, response))
    return usages


# Gemini


def _gemini(url: str) -> genai.Client:
    options = types.HttpOptions(base_url=url, timeout=int(TIMEOUT_SECONDS * 1000))
    return genai.Client(api_key="any", http_options=options)


def _gemini_config() -> types.GenerateContentConfig:
    declaration = types.FunctionDeclaration(name="read", description="", parameters_json_schema=SCHEMA)
    return types.GenerateContentConfig(
        system_instruction=SYSTEM,
        tools=[types.Tool(function_declarations=[declaration])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )


def _gemini_next(contents: list[Any], chunks: list[Any]) -> ShownUsage:
    parts = [part for chunk in chunks for part in (chunk.candidates[0].content.parts or ())]
    contents.append(types.Content(role="model", parts=parts))
    calls = [part.function_call for part in parts if part.function_call]
    answers = [
        types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response={"result": RESULT}))
        for call in calls
    ]
    contents.append(types.Content(role="user", parts=answers or [types.Part(text=SURE)]))
    usage = chunks[-1].usage_metadata
    return usage.prompt_token_count, usage.cached_content_token_count or 0, 0, usage.candidates_token_count


def gemini_sync(url: str, *, stream: bool) -> list[ShownUsage]:
    usages, client = [], _gemini(url)
    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=LOOK)])]
    for _ in range(3):
        request: dict[str, Any] = {"model": "gemini-3.8-flash", "contents": contents, "config": _gemini_config()}
        if stream:
            chunks: list[Any] = list(client.models.generate_content_stream(**request))
        else:
            chunks = [client.models.generate_content(**request)]
        usages.append(_gemini_next(contents, chunks))
    client.close()
    return usages


async def gemini_async(url: str, *, stream: bool) -> list[ShownUsage]:
    usages, client = [], _gemini(url)
    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=LOOK)])]
    for _ in range(3):
        request: dict[str, Any] = {"model": "gemini-3.8-flash", "contents": contents, "config": _gemini_config()}
        if stream:
            chunks: list[Any] = [chunk async for chunk in await client.aio.models.generate_content_stream(**request)]
        else:
            chunks = [await client.aio.models.generate_content(**request)]
        usages.append(_gemini_next(contents, chunks))
    await client.aio.aclose()
    return usages
