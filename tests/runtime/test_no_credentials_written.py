"""No credential reaches a file, a log line, an error or a response: every output is searched for canaries."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.support.simulated_gemini import LONG

from holdfast.errors import ProviderError
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.testing.server_thread import serve_provider

PROVIDER_KEY = "sk-ant-canary-of-the-provider"
COLLECTOR_KEY = "canary-of-the-collector"
PROMPT = "the launch code is swordfish"
SECONDS_MAX = 20
SCRIPT = '{"content": "First."}\n{"fault": "401"}\n{"content": "Third."}'
PATHS = (
    "/api/cache",
    "/api/cache/settings",
    "/analytics/sessions",
    "/analytics/cost",
    "/analytics/breaks",
    "/analytics/reliability",
    "/analytics/savings",
    "/metrics",
    "/openapi.json",
    "/nothing",
)


def holdfast(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words], capture_output=True, text=True, timeout=SECONDS_MAX, check=True
    )


def fetch(url: str, key: str) -> bytes:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as response:
            answer: bytes = response.read()
    except urllib.error.HTTPError as error:
        answer = error.read()
    return answer


async def play(db: Path) -> str:
    """Run a session over a real socket with a key, one call of which is refused; return the error text."""
    with serve_provider(SimulatedProvider(script=parse_script(SCRIPT))) as url:
        async with Session.create(
            model="anthropic:claude-sonnet-5-5", system_prompt=LONG, store=str(db), base_url=url, api_key=PROVIDER_KEY
        ) as session:
            await session.send("One.")
            with pytest.raises(ProviderError) as refused:
                await session.send("Two.")
            return str(refused.value)


class Collector(ThreadingHTTPServer):
    """Stores every body it receives; the exporter sends its key in the headers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _CollectorHandler)
        self.bodies: list[bytes] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def call_through_gateway(url: str, key: str) -> bytes:
    """A call of a provider's client, with its key, through the gateway."""
    body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": PROMPT}]}
    headers = {"x-api-key": PROVIDER_KEY, "x-holdfast-key": key, "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/anthropic/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as response:
        answer: bytes = response.read()
    return answer


def files_in(*folders: Path) -> dict[str, bytes]:
    contents = {}
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        # A running server renames and deletes files of its spool meanwhile.
        with contextlib.suppress(FileNotFoundError):
            contents[path.name] = path.read_bytes()
    return contents


async def test_no_credential_is_found_in_anything_that_was_written(tmp_path: Path, collector: Collector) -> None:
    db, home = tmp_path / "store" / "log.db", Path(os.environ["HOME"])
    texts = [await play(db)]
    key = holdfast("keys", "create", "--scope", "admin", "--db", str(db)).stdout.strip()
    texts.append(holdfast("keys", "list", "--db", str(db)).stdout)
    environ = {**os.environ, "ANTHROPIC_API_KEY": PROVIDER_KEY, "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={COLLECTOR_KEY}"}
    with serve_provider(SimulatedProvider()) as provider:
        words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--db", str(db), "--otlp", collector.url]
        words += ["--upstream", f"anthropic={provider}"]
        with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
        ) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            answers = [fetch(url + path, key) for path in PATHS]
            answers += [fetch(f"{url}/api/cache", key + "0"), fetch(f"{url}/api/cache?{key}=1&limit={key}", key)]
            answers.append(call_through_gateway(url, key))
            # While the server runs, the latest writes are in files that are gone at its end.
            during = files_in(tmp_path)
            while not (collector.bodies and any(b"gateway.forwarded" in content for content in during.values())):
                during = files_in(tmp_path)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=SECONDS_MAX)
            texts += [out, err]
    holdfast("db", "export", "--db", str(db), "--content", str(tmp_path / "exported.jsonl"))
    after = files_in(tmp_path, home)
    assert {"log.db", "log.db-wal"} <= during.keys()
    assert {"log.db", "exported.jsonl"} <= after.keys()
    canaries = re.compile("|".join((PROVIDER_KEY, COLLECTOR_KEY, key.rpartition("_")[2])).encode())
    leaks = [name for files in (during, after) for name, content in files.items() if canaries.search(content)]
    leaks += [text for text in texts if canaries.search(text.encode())]
    leaks += [answer.decode() for answer in (*answers, *collector.bodies) if canaries.search(answer)]
    assert leaks == []
    assert len(answers[0]) > 100
    # The gateway stores no prompt but in its spool, until the call is recorded; a collector that did not ask for
    # content gets none.
    assert collector.bodies
    stored = [content for name, content in during.items() if not name.endswith(".frames")]
    assert not any(PROMPT.encode() in body for body in (*stored, *after.values(), *collector.bodies))
    assert not any(name.endswith(".frames") for name in after)
