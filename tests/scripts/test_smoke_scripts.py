"""The scripts that spend a few cents to check a provider's cache, run against the simulator on a real port."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from aiohttp import web
from tests.support.served import SimulatorServer, serve_handlers

from holdfast.providers.anthropic import anthropic
from holdfast.simulator.script import parse_script
from holdfast.types.blocks import Text
from holdfast.types.reply import Reply
from holdfast.types.usage import Usage

SCRIPTS = Path(__file__).parents[2] / "scripts"
PROVIDERS = ("anthropic", "openai", "openai-chat", "gemini", "openrouter")


@pytest.fixture
def url() -> Iterator[str]:
    with SimulatorServer(parse_script("")) as simulated:
        yield simulated.url


def play(script: str, *words: str, **environment: str) -> tuple[int, str]:
    given = [sys.executable, str(SCRIPTS / script), *words]
    source = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        given, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **source, **environment}
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def test_padded_prompt_is_read_from_the_cache_on_the_second_turn_for_under_five_cents(url: str) -> None:
    status, output = play("smoke_cache.py", "--base-url", url)
    assert status == 0, output
    first, second, _, verdict = output.splitlines()
    assert first.startswith("anthropic:claude-haiku-4-5: turn 1: ")
    assert int(second.split(" read")[0].split()[-1]) > 4_000
    assert verdict.startswith("anthropic:claude-haiku-4-5: the cache held; $0.0")
    assert verdict.endswith("spent of at most $0.05")


def test_every_provider_reads_from_its_cache(url: str) -> None:
    status, output = play("smoke_live.py", "all", "--no-gateway", "--base-url", url)
    assert status == 0, output
    held = [line.partition(":")[0] for line in output.splitlines() if "the cache held; $" in line]
    assert tuple(held) == PROVIDERS
    assert output.count(": no field is new to us\n") == len(PROVIDERS) - 1
    # The simulator reports a cost as OpenRouter does, which we do not read.
    assert "openrouter:openai/gpt-5.4-mini: 1 field is new to us: event.usage.cost\n" in output


@pytest.mark.parametrize("provider", ["gemini", "openrouter"])
def test_provider_is_tried_directly_and_through_the_gateway_after_an_estimate(url: str, provider: str) -> None:
    status, output = play("smoke_live.py", provider, "--base-url", url)
    assert status == 0, output
    estimate, *lines = output.splitlines()
    assert re.fullmatch(r"estimate: \$0\.0\d\d\d for 4 calls; at most \$0\.10", estimate)
    assert {line.partition(":")[0] for line in lines} == {provider}
    assert sum("the cache held" in line for line in lines) == 2
    assert lines[-1].endswith("through the gateway: 2 of 2 calls recorded, everything decoded")


def test_estimate_covers_what_is_spent(url: str) -> None:
    _, output = play("smoke_live.py", "anthropic", "--no-gateway", "--base-url", url)
    estimated, spent = (Decimal(amount) for amount in re.findall(r"(?:estimate: |held; )\$([\d.]+)", output))
    assert spent <= estimated <= 3 * spent


def test_field_that_we_do_not_know_is_named() -> None:
    reply = Reply((Text("Two words."),), "end_turn", Usage(cache_read=600, output=2), "claude-haiku-5-5", "m1")

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = b"".join(anthropic.encode_stream(reply))
        extended = stream.replace(b'"type":"message",', b'"type":"message","mood":{"level":3},')
        return web.Response(body=extended, content_type="text/event-stream")

    with serve_handlers(answer) as server:
        status, output = play("smoke_live.py", "anthropic", "--no-gateway", "--base-url", server.url)
    assert status == 0, output
    new = "2 fields are new to us: message_start.message.mood, message_start.message.mood.level"
    assert f"anthropic:claude-haiku-5-5: {new}\n" in output


def test_missing_key_names_the_variable_and_sends_nothing() -> None:
    status, output = play("smoke_cache.py")
    assert status == 2
    assert "no key for anthropic: set ANTHROPIC_API_KEY" in output
    status, output = play("smoke_live.py", "all")
    assert status == 2
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"):
        assert f"set {variable}" in output


def test_key_is_sent_only_to_its_provider(url: str) -> None:
    status, output = play("smoke_cache.py", "--base-url", url, ANTHROPIC_API_KEY="sk-secret\nwith a break")
    assert status == 0, output


def test_provider_that_fails_or_does_not_cache_is_a_failure() -> None:
    with SimulatorServer(parse_script('{"fault": "401"}\n{"fault": "401"}\n{"content": "no"}')) as simulated:
        status, output = play("smoke_cache.py", "--base-url", simulated.url)
    assert status == 1
    assert len(output.splitlines()) == 1


def test_command_without_cache_reads_is_a_failure(tmp_path: Path) -> None:
    program = tmp_path / "command.py"
    program.write_text(
        'import json\nprint(json.dumps({"type": "result", "is_error": False, "result": "Well.", "session_id": "s",'
        ' "total_cost_usd": 0.001, "usage": {"input_tokens": 3, "output_tokens": 7}}))\n'
    )
    config = tmp_path / "home"
    config.mkdir()
    (config / "config.toml").write_text(f'claude_code_command = "{sys.executable} {program}"\n')
    status, output = play("smoke_live.py", "claude-code", "--base-url", "http://127.0.0.1:1", HOLDFAST_HOME=str(config))
    assert status == 1
    assert "the second turn read nothing from the cache" in output
