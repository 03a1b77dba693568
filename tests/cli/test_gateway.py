"""`holdfast serve` with its gateway as a user starts it, on the event loop that it runs on."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from tests.support import sdk_clients as players
from tests.support.served_gateway import raw_upstream

from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.ledger.calls import iter_calls
from holdfast.stores.sqlite.store import SqliteStore

SECONDS_MAX = 20
TEMPORARY_STORE = "the store is temporary: it is deleted at the end; --db FILE keeps one"


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=SECONDS_MAX)
            temporary = "" if "--db" in arguments else f"{TEMPORARY_STORE}\n"
            assert stderr == f"{temporary}stopped\n"
        finally:
            process.kill()


def test_clients_work_through_the_gateway_and_their_calls_are_stored(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    with serving("--simulate", "--db", path) as url:
        result = players.anthropic_sync(f"{url}/anthropic", stream=True)
        players.chat_sync(f"{url}/openai", stream=False)
        with urlopen(f"{url}/metrics", timeout=SECONDS_MAX) as metrics:
            assert b"holdfast_gateway_lost_calls_total 0" in metrics.read()
    with closing(SqliteStore(path)) as store:
        sessions = {row.model: list(iter_calls(store.read(row.id))) for row in store.sessions()}
    assert len(sessions) == 2
    recorded = sessions["anthropic:claude-sonnet-5-5"]
    assert [call.usage.cache_read for call in recorded] == [read for _, read, _, _ in result]


def test_without_a_store_calls_are_visible_while_the_gateway_runs() -> None:
    with serving("--simulate") as url:
        players.anthropic_sync(f"{url}/anthropic", stream=False)
        deadline = time.monotonic() + SECONDS_MAX
        while not (sessions := sessions_at(url)) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert [session["model"] for session in sessions] == ["anthropic:claude-sonnet-5-5"]


def sessions_at(url: str) -> list[dict[str, object]]:
    with urlopen(f"{url}/api/cache", timeout=SECONDS_MAX) as reply:
        sessions: list[dict[str, object]] = json.loads(reply.read())["discussions"]
    return sessions


def test_a_session_shows_how_it_was_recognised_and_what_could_be_fixed(tmp_path: Path) -> None:
    for arguments, expected in (
        ((), "can be fixed in 1 call: volatile date"),
        (("--improve",), "fixed in 1 call: volatile date"),
    ):
        path = str(tmp_path / f"store{len(arguments)}.db")
        with serving("--simulate", "--db", path, *arguments) as url:
            request_body = {
                "model": "claude-sonnet-5-5",
                "max_tokens": 9,
                "system": "Today's date is 2026-11-16.\nBe kind.",
                "messages": [{"role": "user", "content": "Hello."}],
            }
            request = Request(f"{url}/anthropic/v1/messages", json.dumps(request_body).encode(), {"x-api-key": "any"})
            with urlopen(request, timeout=SECONDS_MAX) as reply:
                reply.read()
        with closing(SqliteStore(path)) as store:
            newest = store.sessions()[0].id
        result = CliRunner().invoke(command, ("sessions", "show", newest, "--db", path))
        assert "sent through the gateway; calls matched to this session with at least 70% confidence" in result.output
        assert any(line.startswith(expected) for line in result.output.splitlines())


def test_bytes_are_forwarded_to_the_configured_upstream(tmp_path: Path) -> None:
    large = bytes(range(256)) * 8_000
    with (
        raw_upstream() as upstream,
        serving("--upstream", f"openai={upstream.url}", "--db", str(tmp_path / "s.db")) as url,
    ):
        upstream.parts = (
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(large),
            large,
        )
        with urlopen(f"{url}/openai/v1/files", data=large, timeout=SECONDS_MAX) as reply:
            assert reply.read() == large
    assert upstream.bodies == [large]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--simulate", "--upstream", "openai=http://x"), "--simulate"),
        (("--upstream", "nobody=http://x"), "unknown upstream 'nobody'"),
        (("--upstream", "api=openai:http://x"), "would hide the service's own path /api"),
        (("--upstream", "openai"), "NAME=VALUE"),
        (("--upstream", "openai=ftp://x"), "https://host"),
        (("--upstream", "openai=http://[::"), "https://host"),
        (("--volatile", "mine=("), "'mine'"),
        (("--grants", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_invalid_arguments_are_one_line(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    result = CliRunner().invoke(command, ("serve", "--db", str(tmp_path / "s.db"), *arguments))
    assert isinstance(result.exception, UserError)
    assert expected in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_configured_upstream_is_served_below_its_name_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    path = str(tmp_path / "store.db")
    reply = json.dumps({"model": "m", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}).encode()
    with raw_upstream() as upstream:
        settings = f'dialect = "openai"\nurl = "{upstream.url}/base/v1"\nprovider = "openai"\n'
        (tmp_path / "config.toml").write_text(f"[gateway.upstreams.ours]\n{settings}")
        head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        upstream.parts = (head % len(reply), reply)
        with serving("--db", path) as url:
            body = json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}]}).encode()
            with urlopen(f"{url}/ours/v1/chat/completions", data=body, timeout=SECONDS_MAX) as response:
                assert response.read() == reply
    assert upstream.heads[0].startswith(b"POST /base/v1/chat/completions ")
    with closing(SqliteStore(path)) as store:
        (session,) = store.sessions()
        (call,) = iter_calls(store.read(session.id))
    assert (session.model, call.usage.input, call.usage.output) == ("openai-chat:gpt-5", 5, 2)
