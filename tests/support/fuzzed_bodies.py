"""Request bodies of today's clients, some more with other fields, and mutations of them."""

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.support.wire_corpus import FILES, load_exchanges

_TOOL = {"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}}
_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}

_HANDMADE: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "/anthropic/v1/messages?beta=true",
        {
            "model": "claude-sonnet-4-6",
            "max_tokens": 32_000,
            "stream": False,
            "metadata": {"user_id": "user_x_account__session_0123-4567"},
            "thinking": {"type": "enabled", "budget_tokens": 1_024},
            "system": [
                {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
            ],
            "tools": [_TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Fix it."}, _IMAGE]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                        {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a.py"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "x"}]}
                    ],
                },
                {"role": "system", "content": "Think less.", "output_config": {"effort": "low"}},
            ],
        },
    ),
    (
        "/openai/v1/responses",
        {
            "model": "gpt-5.2",
            "instructions": "You are an agent.",
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "thread-1",
            "reasoning": {"effort": "high"},
            "tools": [
                {"type": "function", "name": "shell", "description": None, "parameters": {}, "strict": False},
                {"type": "web_search"},
            ],
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"},
                {"type": "function_call", "call_id": "call_1", "name": "shell", "arguments": '{"cmd": "ls"}'},
                {"type": "function_call_output", "call_id": "call_1", "output": "a.py"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "Done.", "annotations": []}]},
            ],
        },
    ),
    (
        "/openai/v1/chat/completions",
        {
            "model": "gpt-4o-mini",
            "temperature": 0.2,
            "messages": [
                {"role": "system", "content": "You are an agent."},
                {"role": "user", "content": [{"type": "text", "text": "Fix it."}]},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "a.py"},
            ],
            "tools": [{"type": "function", "function": {"name": "ls", "description": "List.", "parameters": {}}}],
        },
    ),
    (
        "/gemini/v1beta/models/gemini-3-pro:generateContent",
        {
            "systemInstruction": {"role": "user", "parts": [{"text": "You are an agent."}]},
            "tools": {"functionDeclarations": [{"name": "ls", "parameters": {"type": "OBJECT"}}]},
            "generationConfig": {"temperature": 0, "thinkingConfig": {"includeThoughts": True}},
            "contents": [
                {"role": "user", "parts": [{"text": "Fix it."}]},
                {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {}}, "thoughtSignature": "c2ln"}]},
                {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": "a.py"}}}]},
            ],
        },
    ),
    (
        "/openrouter/api/v1/chat/completions",
        {
            "model": "anthropic/claude-sonnet-4.6",
            "messages": [
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "Agent.", "cache_control": {"type": "ephemeral"}}],
                },
                {"role": "user", "content": "Fix it."},
            ],
        },
    ),
)


BODIES = _HANDMADE + tuple(
    (exchange.gateway_path, exchange.request) for file in FILES for exchange in load_exchanges(file)
)


def iterate_bodies(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """So many paths with bodies, most of them mutated; the same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        path, body = chance.choice(BODIES)
        value: Any = json.loads(json.dumps(body))
        for _ in range(chance.randint(0, 4)):
            _mutate(value, chance)
        encoded = json.dumps(value).encode()
        if chance.random() < 0.05:
            encoded = encoded[: chance.randrange(len(encoded))]
        yield path, encoded


def _mutate(value: Any, chance: random.Random) -> None:
    """Changes one random place: an unknown field, a null, another type or name, a removed or moved element."""
    places = list(_iterate_places(value))
    if not places:
        return
    parent, key = chance.choice(places)
    match chance.randrange(7):
        case 0 if isinstance(parent, dict):
            parent[chance.choice(["new_field", "beta", "x"])] = chance.choice([1, None, "text", {"a": []}])
        case 1:
            parent[key] = None
        case 2:
            parent[key] = chance.choice([0, -1, 1.5, True, "", "x" * 50, [], {}, [[]], {"type": "unheard_of"}])
        case 3 if isinstance(parent, dict):
            parent[f"{key}_renamed"] = parent.pop(key)
        case 4:
            del parent[key]
        case 5 if isinstance(parent, list):
            chance.shuffle(parent)
        case 6 if isinstance(parent, dict) and "type" in parent:
            parent["type"] = chance.choice(["text", "tool_result", "document", "unheard_of", 3])
        case _:
            pass


def _iterate_places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _iterate_places(item)
