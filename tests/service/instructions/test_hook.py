"""`holdfast instructions hook` with a service: stub, preloads by signed token, and a key that is never shown."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry

from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.runtime.instructions.client import InstructionClient

REASON = "issue_assigned"
TITLE = "## Instructions for this task"


def run_hook(url: str, *words: str, key: str | None, source: str = "startup", home: Path) -> Result:
    return CliRunner().invoke(
        command,
        ["instructions", "hook", "--url", url, "--agent", AGENT, *words],
        input=json.dumps({"hook_event_name": "SessionStart", "source": source}),
        env={"HOLDFAST_HOME": str(home), "HOLDFAST_KEY": key},
    )


def context_of(result: Result) -> str:
    assert result.exit_code == 0, result.output
    text = json.loads(result.stdout)["hookSpecificOutput"]["additionalContext"]
    assert isinstance(text, str)
    return text


def error_line_of(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (0, "{}\n")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_hook_prints_stub_units_and_recall_address_of_the_service(
    published_service: InstructionService, tmp_path: Path
) -> None:
    url, key = published_service.client.url, published_service.agent_key
    context_text = context_of(run_hook(url, key=key, home=tmp_path))
    stub = InstructionClient(url, key=key, agent=AGENT).stub()
    assert context_text.startswith(stub.partition("\n---\n\n")[2])
    for name, (description, intents, _) in UNITS.items():
        assert f"- {name}: {description} | when: {'; '.join(intents)}\n" in context_text
    assert f"`{url}/v1/agents/{AGENT}/recall-instruction`" in context_text
    assert key not in context_text
    assert run_hook(url, "--plain", key=key, home=tmp_path).stdout == context_text


def test_service_preloads_once_per_signed_token(service: InstructionService, tmp_path: Path) -> None:
    service.publish_all([entry("code-review", required_by_task_types=[REASON]), entry("checkout-procedure")])
    alone = context_of(run_hook(service.client.url, key=service.agent_key, home=tmp_path))
    words = ("--wake-token", service.wake(REASON))
    context_text = context_of(run_hook(service.client.url, *words, key=service.agent_key, home=tmp_path))
    assert context_text == f"{alone}\n{TITLE}\n\n### code-review\n\n{UNITS['code-review'][2]}\n"
    assert [record["loaded_chunks"] for record in service.records("preload")] == [["code-review"]]
    assert (
        context_of(run_hook(service.client.url, *words, key=service.agent_key, source="compact", home=tmp_path))
        == alone
    )
    forged = ("--wake-token", service.wake(REASON, secret="made up by somebody who is not asked"))
    error_line = error_line_of(run_hook(service.client.url, *forged, key=service.agent_key, home=tmp_path))
    assert forged[1] not in error_line


def test_missing_guaranteed_unit_fails_the_hook_without_output(service: InstructionService, tmp_path: Path) -> None:
    service.write("code-review")
    listed = [
        entry("code-review", required_by_task_types=[REASON]),
        entry("gone", guarantee_load=True, required_by_task_types=[REASON]),
    ]
    assert service.publish(listed, approvals=[{"kind": "guarantee_load", "unit": "gone"}]).status == 200
    result = run_hook(service.client.url, "--wake-token", service.wake(REASON), key=service.agent_key, home=tmp_path)
    assert "'gone' is unavailable" in error_line_of(result)
    strict = ("--strict", "--wake-token", service.wake(REASON, jti="two"))
    assert isinstance(run_hook(service.client.url, *strict, key=service.agent_key, home=tmp_path).exception, UserError)
    # A restarted session gets the same.
    again = ("--wake-token", service.wake(REASON, jti="three"))
    error_line_of(run_hook(service.client.url, *again, key=service.agent_key, source="compact", home=tmp_path))


def test_key_of_another_agent_gets_nothing(published_service: InstructionService, tmp_path: Path) -> None:
    stranger = published_service.client.key("agent:other")
    assert stranger not in error_line_of(run_hook(published_service.client.url, key=stranger, home=tmp_path))


@pytest.mark.parametrize("key", [None, ""])
def test_no_service_is_called_without_a_key(key: str | None, tmp_path: Path) -> None:
    assert "set HOLDFAST_KEY" in error_line_of(run_hook("http://127.0.0.1:1", key=key, home=tmp_path))


@pytest.mark.parametrize(
    "url",
    [
        "http://ann:letmein@127.0.0.1:1",
        "http://127.0.0.1:1/?key=letmein",
        "http://127.0.0.1:1/#letmein",
        "http://[letmein",
        "file:///letmein",
        "http://127.0.0.1:1",
    ],
)
def test_unreachable_address_is_a_one_line_error_without_the_key(url: str, tmp_path: Path) -> None:
    error_line = error_line_of(run_hook(url, key="hf_of_mine", home=tmp_path))
    assert "letmein" not in error_line
    assert "hf_of_mine" not in error_line


def test_store_and_service_cannot_be_combined(tmp_path: Path) -> None:
    result = run_hook("http://127.0.0.1:1", "--db", str(tmp_path / "a.db"), key="k", home=tmp_path)
    assert "--db or --url" in error_line_of(result)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, b'{"error": {"code": "x", "message": "you said hf_of_mine\\nand\\u001b[31m more"}}'),
        (403, b"\xff"),
        (200, b'{"error": "hf_of_mine"}'),
        (200, b"[" * 100_000),
    ],
)
def test_hostile_service_reply_prints_one_line_without_escape_codes(status: int, body: bytes, tmp_path: Path) -> None:
    class HostileService(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), HostileService) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        error_line = error_line_of(run_hook(f"http://127.0.0.1:{server.server_port}", key="hf_of_mine", home=tmp_path))
        server.shutdown()
    assert "hf_of_mine" not in error_line
    assert error_line.rstrip("\n").isprintable()
