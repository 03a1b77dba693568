"""A bounded run of schemathesis on the gateway: requests made from a description of the providers' calls.

The gateway's own OpenAPI document is the service's; its paths are the providers', whose calls are described here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.served_gateway import serve_gateway

from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

# Read before tests clear the environment.
IS_DEEP = bool(os.environ.get("HOLDFAST_EVERY_CASE"))
PHASES, EXAMPLES_MAX = ("coverage,fuzzing", 100) if IS_DEEP else ("fuzzing", 15)
SECONDS_MAX = 400 if IS_DEEP else 150

_TEXT = {"type": "string", "maxLength": 2_000}
_ROLE = {"enum": ["user", "assistant", "system", "tool"]}
_MESSAGES = {
    "type": "array",
    "maxItems": 6,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": _ROLE,
            "content": {
                "anyOf": [
                    _TEXT,
                    {"type": "array", "items": {"type": "object", "properties": {"type": _TEXT, "text": _TEXT}}},
                ]
            },
        },
    },
}


def _describe(model: str, **properties: object) -> dict[str, Any]:
    fields = {"model": {"enum": [model, "model-of-tomorrow"]}, "stream": {"type": "boolean"}, **properties}
    schema = {"type": "object", "required": ["model", *list(properties)[:1]], "properties": fields}
    answers = {"default": {"description": "Whatever the provider answers."}}
    return {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}, "responses": answers}}


PATHS = {
    "/anthropic/v1/messages": _describe(
        "claude-sonnet-5-5", messages=_MESSAGES, max_tokens={"type": "integer"}, system=_TEXT
    ),
    "/openai/v1/chat/completions": _describe("gpt-5.2", messages=_MESSAGES, n={"type": "integer"}, stop=_TEXT),
    "/openai/v1/responses": _describe("gpt-5.2", input={"anyOf": [_TEXT, _MESSAGES]}, instructions=_TEXT),
    "/openrouter/v1/chat/completions": _describe("anthropic/claude-sonnet-5-5", messages=_MESSAGES),
    "/gemini/v1beta/models/gemini-3-pro:generateContent": _describe(
        "gemini-3-pro", contents={"type": "array", "items": {"type": "object", "properties": {"role": _ROLE}}}
    ),
}


@pytest.mark.timeout(SECONDS_MAX + 30)
@pytest.mark.parametrize("improve", [False, True], ids=["as sent", "improved"])
def test_a_bounded_run_of_schemathesis_through_the_gateway_finds_no_fault(tmp_path: Path, improve: bool) -> None:
    document = {"openapi": "3.1.0", "info": {"title": "Providers", "version": "1"}, "paths": PATHS}
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    words = [
        *(sys.executable, "-m", "schemathesis.cli", "run", str(tmp_path / "openapi.json")),
        *("--max-examples", str(EXAMPLES_MAX), "--seed", "1", "--no-color", "--generation-database", "none"),
        # A provider may answer anything but that it failed.
        *("--phases", PHASES, "--checks", "not_a_server_error", "--mode", "all"),
        *("--header", "x-api-key: sk-any", "--header", "authorization: Bearer sk-any"),
    ]
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url, improve=improve) as gateway:
        result = subprocess.run(
            [*words, "--url", gateway.url],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            cwd=tmp_path,
        )
        gateway.recorded_sessions()
        recorded = sum(row.calls for row in gateway.store.cost_queries().outcomes(LedgerScope(simulated=True)))
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert f"Tested: {len(PATHS)}" in result.stdout
    assert recorded >= len(PATHS)
