"""`holdfast serve` and `holdfast keys` as a user types them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from tests.support.event_examples import message_events

from holdfast.cli.main import command
from holdfast.cli.options import parse_expiry
from holdfast.cli.serve import workers
from holdfast.errors import UserError
from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.stores.sqlite.store import SqliteStore

SECONDS_MAX = 20


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(command, arguments)
    if isinstance(result.exception, UserError):
        result.stderr_bytes = str(result.exception).encode()
    return result


def create_key(*arguments: str) -> dict[str, str]:
    """A new key in the form of `--json`."""
    result = run("keys", "create", "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    created: dict[str, str] = json.loads(result.output)
    return created


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The service in its own process; its first line is its address."""
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def fetch(url: str, key: str | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_key_is_shown_once_and_its_digest_is_stored(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    created = create_key("--scope", "admin", "--name", "Ann", "--entity", "acme:user/ann", "--db", db)
    assert created.keys() == {"id", "key", "scope"}
    assert created["key"].startswith(f"hf_{created['id']}_")
    secret = created["key"].rpartition("_")[2]
    listed = run("keys", "list", "--db", db)
    assert (created["id"] in listed.output, "Ann" in listed.output) == (True, True)
    everything = run("keys", "list", "--db", db, "--json")
    (row,) = json.loads(everything.output)
    assert (row["scope"], row["entity"], row["state"]) == ("admin", "acme:user/ann", "usable")
    assert "digest" not in row
    assert all(secret.encode() not in path.read_bytes() for path in tmp_path.iterdir())


def test_without_json_only_the_key_is_printed(tmp_path: Path) -> None:
    result = run("keys", "create", "--scope", "read", "--db", str(tmp_path / "log.db"))
    assert result.stdout.startswith("hf_")
    assert result.stdout.count("\n") == 1
    assert "it is not shown again" in result.stderr


def test_two_keys_have_nothing_in_common(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    first, two = create_key("--scope", "read", "--db", db), create_key("--scope", "read", "--db", db)
    assert first["id"] != two["id"]
    assert first["key"][-64:] != two["key"][-64:]


@pytest.mark.parametrize(
    ("arguments", "trouble"),
    [
        (("--scope", "root"), "unknown scope 'root'; use admin, read, gateway, or agent:<id>"),
        (("--scope", "agent:"), "unknown scope"),
        (("--scope", "agent:a b"), "unknown scope"),
        (("--scope", "read", "--entity", "acme:ann"), "needs a key of scope admin"),
        (("--scope", "admin", "--entity", "Ann"), "an entity must be a URI"),
        (("--scope", "admin", "--name", "a\nb"), "a name must be printable text"),
        (("--scope", "admin", "--expires", "2020-01-01"), "the expiry time is in the past"),
        (("--scope", "admin", "--expires", "soon"), "--expires takes 30d"),
    ],
)
def test_an_invalid_key_is_refused_in_one_line(tmp_path: Path, arguments: tuple[str, ...], trouble: str) -> None:
    db = str(tmp_path / "log.db")
    result = run("keys", "create", "--db", db, *arguments)
    assert result.exit_code == 1
    assert trouble in result.stderr
    assert not Path(db).exists()


@pytest.mark.parametrize(
    ("expires", "at"), [("12h", 143_200.0), ("2d", 272_800.0), ("1970-01-03", 172_800.0), ("19700103", 172_800.0)]
)
def test_an_expiry_must_be_in_the_future(expires: str, at: float) -> None:
    assert parse_expiry(expires, 100_000.0) == at


def test_a_revoked_key_is_listed_as_such_and_revoked_once(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    created = create_key("--scope", "agent:builder", "--db", db)
    assert run("keys", "revoke", created["id"], "--db", db).output == f"revoked key {created['id']}\n"
    assert "revoked" in run("keys", "list", "--db", db).output
    again = run("keys", "revoke", created["id"], "--db", db)
    assert again.exit_code == 1
    assert "was revoked before" in again.stderr


def test_a_key_is_changed_and_revoked_by_its_name_unless_two_have_it(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    first = create_key("--scope", "gateway", "--name", "laptop", "--db", db)
    result = run("keys", "set", "laptop", "--requests-a-minute", "600", "--db", db)
    assert result.output == f"changed key {first['id']}\n"
    assert "600/min" in run("keys", "list", "--db", db).output
    second = create_key("--scope", "gateway", "--name", "laptop", "--db", db)
    ambiguous = run("keys", "revoke", "laptop", "--db", db)
    assert ambiguous.stderr.rstrip().endswith(f"give the id: {first['id']}, {second['id']}")
    assert run("keys", "revoke", first["id"], "--db", db).exit_code == 0
    assert run("keys", "revoke", "laptop", "--db", db).output == f"revoked key {second['id']}\n"


def test_instructions_are_published_and_recalled_on_postgres(postgres: str) -> None:
    key = create_key("--scope", "admin", "--entity", "acme:user/ann", "--db", postgres)["key"]
    agent_key = create_key("--scope", "agent:a1", "--db", postgres)["key"]
    written = {"fact_uri": "instruction:local/a1/checkout/v1", "content": "Claim the ticket before you branch."}
    entry = {
        "name": "checkout",
        "description": "How to claim a ticket before work.",
        "load_triggers": {"intents": ["claim a ticket", "check out an issue"]},
        "fact_uri": written["fact_uri"],
    }
    with served("--instructions", "--db", postgres) as (url, process):
        assert url.startswith("http://127.0.0.1:"), process.stderr and process.stderr.read()
        assert send_json(f"{url}/v1/instruction/units", key, written, method="PUT")[0] == 201
        manifest = {"version": "v1", "entries": [entry]}
        assert send_json(f"{url}/v1/agents/a1/instruction-manifest", key, manifest, method="PUT")[0] == 200
        status, recalled = send_json(f"{url}/v1/agents/a1/recall-instruction", agent_key, {"intent": "claim a ticket"})
        assert (status, [chunk["content"] for chunk in recalled["chunks"]]) == (200, [written["content"]])
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    # Another process serves what was published.
    with served("--instructions", "--db", postgres) as (url, _):
        again = send_json(f"{url}/v1/agents/a1/recall-instruction", agent_key, {"intent": "claim a ticket"})[1]
        assert again["chunks"] == recalled["chunks"]


def send_json(url: str, key: str, body: object, *, method: str = "POST") -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_keys_can_be_stored_in_postgres(postgres: str) -> None:
    created = create_key("--scope", "read", "--db", postgres)
    assert created["id"] in run("keys", "list", "--db", postgres).output


def test_the_address_is_printed_at_once_and_the_service_stops_on_a_signal(tmp_path: Path) -> None:
    db = tmp_path / "log.db"
    with SqliteStore(db) as store:
        store.append(message_events(2)).result(10)
    with served("--db", str(db)) as (url, process):
        assert url.startswith("http://127.0.0.1:")
        assert fetch(f"{url}/readyz")[0] == 200
        assert b'"id":"s"' in fetch(f"{url}/analytics/sessions")[1]
        key = create_key("--scope", "admin", "--db", f"sqlite:///{db}")
        assert fetch(f"{url}/api/cache")[0] == 401
        assert fetch(f"{url}/api/cache", key["key"])[0] == 200
        run("keys", "revoke", key["id"], "--db", str(db))
        assert fetch(f"{url}/api/cache", key["key"])[0] == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "stopped\n"


def test_calls_forwarded_before_the_end_are_on_the_log(tmp_path: Path) -> None:
    db = tmp_path / "log.db"
    body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}
    with served("--db", str(db), "--simulate") as (url, process):
        headers = {"x-api-key": "any", "content-type": "application/json"}
        for _ in range(20):
            request = urllib.request.Request(f"{url}/anthropic/v1/messages", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=SECONDS_MAX) as response:
                response.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    with SqliteStore(db) as store:
        assert store.cost_queries().totals(LedgerScope(simulated=True)).calls == 20


def test_a_live_feed_does_not_keep_the_service_from_stopping(tmp_path: Path) -> None:
    with served("--db", str(tmp_path / "log.db")) as (url, process):
        with urllib.request.urlopen(f"{url}/api/cache/stream", timeout=SECONDS_MAX) as feed:
            assert feed.readline() == b": listening\n"
            process.send_signal(signal.SIGINT)
            assert feed.read() == b"\n"
        assert process.wait(SECONDS_MAX) == 0


def test_a_public_address_needs_an_admin_key(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    create_key("--scope", "read", "--db", db)
    revoked = create_key("--scope", "admin", "--db", db)
    run("keys", "revoke", revoked["id"], "--db", db)
    result = run("serve", "--host", "0.0.0.0", "--port", "0", "--db", db)
    assert result.exit_code == 1
    assert "there is no key of scope admin" in result.stderr
    key = create_key("--scope", "admin", "--db", db)
    with served("--db", db, "--host", "0.0.0.0") as (url, _):
        assert fetch(f"{url}/api/cache")[0] == 401
        assert fetch(f"{url}/api/cache", key["key"])[0] == 200


def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with served("--db", str(tmp_path / "log.db")) as (url, _):
        port = url.rpartition(":")[2]
        result = run("serve", "--port", port, "--db", str(tmp_path / "other.db"))
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in result.stderr


def test_an_invalid_address_is_reported_in_one_line(tmp_path: Path) -> None:
    key = create_key("--scope", "admin", "--db", str(tmp_path / "log.db"))
    result = run("serve", "--host", "no such host", "--port", "0", "--db", str(tmp_path / "log.db"))
    assert key
    assert "is not an address to listen on" in result.stderr


def test_without_its_packages_the_service_says_how_to_install_them(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['starlette'] = None\n"
        "from holdfast.cli.main import main\n"
        f"sys.argv[1:] = ['serve', '--db', {str(tmp_path / 'log.db')!r}]\nmain()"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ
    )
    assert completed.returncode == 1
    assert completed.stderr == "holdfast: the service needs extra packages: pip install 'holdfast-context[server]'\n"


def test_a_temporary_store_is_announced_and_one_of_the_user_is_not(tmp_path: Path) -> None:
    for options, announced in (((), True), (("--db", str(tmp_path / "log.db")), False)):
        with served("--simulate", *options) as (url, process):
            assert fetch(f"{url}/readyz")[0] == 200
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=SECONDS_MAX)
        assert ("the store is temporary" in errors) == announced


def test_keep_alive_without_improve_is_refused() -> None:
    result = run("serve", "--simulate", "--port", "0", "--keep-alive", "1")
    assert (result.exit_code, "add --improve" in result.stderr) == (1, True)


def test_volatile_rules_without_improve_say_that_nothing_is_moved() -> None:
    for options, said in ((("--improve",), False), ((), True)):
        with served("--simulate", "--volatile", "memory=<memory>", *options) as (_, process):
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=SECONDS_MAX)
        assert ("nothing is moved" in errors) == said


def test_workers_share_a_port_answer_for_each_other_and_end_together(tmp_path: Path) -> None:
    with served("--db", str(tmp_path / "w.db"), "--workers", "2") as (url, process):
        assert fetch(f"{url}/healthz")[0] == 200
        _, metrics = fetch(f"{url}/metrics")
        assert all(f'holdfast_failed_keys_total{{worker="{number}"}} 0'.encode() in metrics for number in range(2))
        assert metrics.count(b"# TYPE holdfast_failed_keys_total") == 1
        assert json.loads(fetch(f"{url}/readyz")[1])["status"] == "ready"
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "stopped\n"


def test_workers_that_cannot_start_say_why_once(tmp_path: Path) -> None:
    with served("--db", str(tmp_path / "w.db"), "--workers", "2", "--grants", "missing.toml") as (url, process):
        assert process.wait(SECONDS_MAX) != 0
        assert process.stderr is not None
        assert url == ""
        assert len(process.stderr.read().splitlines()) == 1


def test_a_simulator_is_served_by_one_process() -> None:
    assert "--simulate serves from one process" in run("serve", "--simulate", "--workers", "2").stderr


def test_a_service_removes_content_older_than_the_retention_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "log.db"
    with SqliteStore(db) as store:
        old = [replace(event, at=1_700_000_000.0 + number) for number, event in enumerate(message_events(3))]
        store.append(old).result(SECONDS_MAX)
        assert sum(1 for _ in store.read("s")) == 3
    monkeypatch.setenv("HOLDFAST_RETENTION_DAYS", "30")
    with served("--db", str(db)), SqliteStore(db) as store:
        deadline = time.monotonic() + SECONDS_MAX
        while list(store.read("s")):
            assert time.monotonic() < deadline, "nothing was removed"
            time.sleep(0.05)


def test_a_worker_that_cannot_be_started_is_started_once_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As when the system has no process left at the moment a worker ends."""
    program = tmp_path / "program"
    monkeypatch.setattr(sys, "executable", str(program))
    stop = threading.Event()
    with socket.socket() as bound:
        worker = workers._Worker(workers.WorkerPlace(0, 1, bound.fileno(), str(tmp_path)), stop)
        # It has run before.
        worker.started.set()
        worker.start()
        deadline = time.monotonic() + 10
        while "worker 0 cannot be started: No such file" not in capfd.readouterr().err:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        unfinished = tmp_path / "unfinished"
        unfinished.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexec cat\n")
        unfinished.chmod(0o700)
        unfinished.rename(program)
        while not (tmp_path / "ran").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        stop.set()
        worker.terminate()
        worker.join()


def test_workers_of_which_the_first_cannot_be_started_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    stop = threading.Event()
    with socket.socket() as bound:
        worker = workers._Worker(workers.WorkerPlace(0, 2, bound.fileno(), str(tmp_path)), stop)
        worker.start()
        assert stop.wait(10)
        worker.join()
    assert worker.exit_status == 1
