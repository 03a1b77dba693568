"""Request files, one for each provider and long enough to be cached."""

import copy
import json
from pathlib import Path
from typing import Any

WORDS = "You are a patient tutor who explains every step. " * 600
TOOL_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}

ANTHROPIC: dict[str, Any] = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 100,
    "tools": [{"name": "read", "description": "Read a file. " * 60, "input_schema": TOOL_SCHEMA}],
    "system": [{"type": "text", "text": WORDS}],
    "messages": [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": "What is it?"}]},
        {"role": "user", "content": [{"type": "text", "text": "A question.", "cache_control": {"type": "ephemeral"}}]},
    ],
}
CHAT: dict[str, Any] = {
    "model": "gpt-5.4",
    "messages": [
        {"role": "system", "content": WORDS},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": [{"type": "text", "text": "A question."}]},
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "gpt-6-sol",
    "instructions": WORDS,
    "input": [
        {"role": "user", "content": "Hello."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "A question."}]},
    ],
}
GEMINI: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": WORDS}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Hello."}]},
        {"role": "model", "parts": [{"text": "Hi."}]},
        {"role": "user", "parts": [{"text": "A question."}]},
    ],
}
GEMINI_MODEL = "gemini:gemini-3.8-flash"


def with_value(body: dict[str, Any], *path: str | int, to: object) -> dict[str, Any]:
    """A copy of the body with one value replaced or added."""
    made = copy.deepcopy(body)
    inner: Any = made
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return made


def write_request(folder: Path, name: str, body: object) -> str:
    path = folder / name
    path.write_text(json.dumps(body))
    return str(path)
