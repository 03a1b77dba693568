"""`holdfast connect --check`: one call through a real gateway, and what it says when something is wrong."""

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from tests.cli.test_connect import Machine
from tests.support.loopback import says
from tests.support.served import SimulatorServer, serve_handlers
from tests.support.served_gateway import ServedGateway, raw_upstream, serve_gateway

from holdfast.errors import UserError
from holdfast.service.auth.keys import make_key
from holdfast.simulator.script import parse_script

# Reads what Claude Code reads, and sends one request there.
CLIENT = f"""#!{sys.executable}
import json, os, pathlib, urllib.request
home = pathlib.Path(os.environ["HOME"])
url = json.loads((home / ".claude" / "settings.json").read_text())["env"]["ANTHROPIC_BASE_URL"]
body = {{"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{{"role": "user", "content": "Hi."}}]}}
headers = {{"x-api-key": "any", "anthropic-version": "2023-06-01", "content-type": "application/json"}}
request = urllib.request.Request(url + "/v1/messages", json.dumps(body).encode(), headers)
print(urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request).read())
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.environ |= dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"), "any")
    machine.environ["PATH"] = str(tmp_path / "bin")
    return machine


@pytest.fixture
def gateway() -> Iterator[ServedGateway]:
    with SimulatorServer(parse_script("")) as simulator, serve_gateway(simulator.url) as served:
        yield served


def check(machine: Machine, gateway: ServedGateway, *words: str) -> Result:
    return machine.run(*words, "--check", "--url", gateway.url)


@pytest.mark.parametrize(
    ("client", "model"),
    [
        ("claude-code", "anthropic:claude-haiku-5-5"),
        ("aider", "anthropic:claude-haiku-5-5"),
    ],
)
def test_recorded_session_is_shown(machine: Machine, gateway: ServedGateway, client: str, model: str) -> None:
    result = check(machine, gateway, client)
    assert result.exit_code == 0, result.exception
    (session,) = gateway.recorded_sessions()
    assert f"session {session}, {model}: 1 call" in result.output
    assert "call 1: " in result.output
    assert f"more in the dashboard: {gateway.url}/#/session/{session}" in result.output
    assert [row.client for row in gateway.store.sessions()] == ["holdfast-connect"]
    document = json.loads(check(machine, gateway, client, "--json").stdout)
    assert (document["sent_by"], document["problem"], document["model"]) == ("request", None, model)


@pytest.mark.parametrize("client", ["codex", "gemini"])
def test_every_dialect_reaches_its_provider(machine: Machine, client: str) -> None:
    with SimulatorServer(parse_script("")) as simulator, serve_gateway(simulator.url) as gateway:
        check(machine, gateway, client)
        (session,) = gateway.recorded_sessions()
        assert next(iter(gateway.store.read(session))).payload.model.startswith(  # type: ignore[union-attr] # The first event.
            {"codex": "openai:", "gemini": "gemini:"}[client]
        )


def test_connected_client_makes_the_call_itself(machine: Machine, gateway: ServedGateway) -> None:
    program = machine.put("bin/claude", CLIENT)
    program.chmod(0o755)
    machine.run("claude-code", "--write", "--url", gateway.url)
    result = check(machine, gateway, "claude-code")
    assert result.exit_code == 0, result.exception
    assert "sent by claude\n" in result.output
    assert "anthropic:claude-sonnet-5-5: 1 call" in result.output
    assert "sent by claude\n" in machine.run("claude-code", "--check").output
    assert "sent by a request" in check(machine, gateway, "claude-code", "--direct").output
    with SimulatorServer(parse_script("")) as simulator, serve_gateway(simulator.url) as other:
        assert "sent by a request" in check(machine, other, "claude-code").output


def test_client_that_fails_is_quoted_without_its_keys(machine: Machine, gateway: ServedGateway) -> None:
    program = machine.put("bin/claude", "#!/bin/sh\necho 'bad key sk-ant-api03-aaaaaaaaaaaaaaaaaaaaaaaaaaaa'\nexit 3\n")
    program.chmod(0o755)
    machine.run("claude-code", "--write", "--url", gateway.url)
    result = check(machine, gateway, "claude-code")
    assert isinstance(result.exception, UserError)
    assert "claude ended with status 3" in str(result.exception)
    assert "bad key" in str(result.exception)
    assert "sk-ant-api03" not in str(result.exception)


def test_gateway_that_does_not_run_can_be_started_by_the_command_in_the_message(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.connect.START_SECONDS_MAX", 0.0)
    result = machine.run("--check", "--url", "http://127.0.0.1:9")
    assert str(result.exception).startswith("nothing answers at 127.0.0.1:9; start the gateway with `holdfast serve`")


def test_gateway_that_is_starting_is_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = ("connect", "claude-code", "--check", "--direct", "--url", f"http://127.0.0.1:{port}")
    check = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        env=os.environ | {"HOME": str(tmp_path), "ANTHROPIC_API_KEY": "any"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert check.stderr is not None
    assert check.stderr.readline() == f"waiting for a gateway at 127.0.0.1:{port}\n"
    with SimulatorServer(parse_script("")) as simulator, serve_gateway(simulator.url, port=port):
        output, errors = check.communicate(timeout=60)
    assert check.returncode == 0, errors
    assert "anthropic:claude-haiku-5-5: 1 call" in output


def test_other_server_is_not_taken_for_the_gateway(machine: Machine) -> None:
    with serve_handlers(says("hello")) as server:
        result = machine.run("--check", "--url", server.url)
    assert "is not Holdfast" in str(result.exception)


def test_refused_key_says_how_to_make_one(machine: Machine) -> None:
    with SimulatorServer(parse_script("")) as simulator, serve_gateway(simulator.url) as gateway:
        created = make_key("gateway", at=0.0, random_bytes=secrets.token_bytes, name="team")
        gateway.service.records.add_key(created.row)
        missing = check(machine, gateway)
        assert "the gateway refused the key" in str(missing.exception)
        assert "holdfast keys create --scope gateway" in str(missing.exception)
        allowed = check(machine, gateway, "--key", created.key)
        assert "this key may not read what it recorded" in str(allowed.exception)
        assert len(gateway.recorded_sessions()) == 1
        admin = make_key("admin", at=0.0, random_bytes=secrets.token_bytes, name="me")
        gateway.service.records.add_key(admin.row)
        assert check(machine, gateway, "--key", admin.key).exit_code == 0


def test_provider_that_refuses_is_named_with_its_reason(machine: Machine) -> None:
    refusal = says(
        '{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}',
        status=401,
        headers={"content-type": "application/json"},
    )
    with serve_handlers(refusal) as server, serve_gateway(server.url) as gateway:
        result = check(machine, gateway)
    assert "the provider refused the call with status 401: invalid x-api-key; check ANTHROPIC_API_KEY" in str(
        result.exception
    )
    assert "1 call failed: auth" in result.output


def test_provider_out_of_reach_is_not_blamed_on_the_key(machine: Machine) -> None:
    with serve_gateway("http://127.0.0.1:9") as gateway:
        result = check(machine, gateway)
    assert "the gateway cannot reach the provider" in str(result.exception)


def test_unreadable_response_is_reported_as_such(machine: Machine) -> None:
    with raw_upstream() as upstream, serve_gateway(upstream.url) as gateway:
        upstream.parts = (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 6\r\n\r\n", b"<html>")
        result = check(machine, gateway)
    assert "could not be read" in str(result.exception)
    assert "1 call failed: unreadable" in result.output
