"""No credential reaches a file, a log line, an error or an answer: canaries are looked for wherever we write."""

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


def fetched(url: str, key: str) -> bytes:
    asked = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(asked, timeout=SECONDS_MAX) as response:
            answer: bytes = response.read()
    except urllib.error.HTTPError as error:
        answer = error.read()
    return answer


async def play(db: Path) -> str:
    """A session over a real socket, with a key, one call of which is refused; what was raised."""
    with serve_provider(SimulatedProvider(script=parse_script(SCRIPT))) as url:
        async with Session.create(
            model="anthropic:claude-sonnet-5-5", system_prompt=LONG, store=str(db), base_url=url, api_key=PROVIDER_KEY
        ) as session:
            await session.send("One.")
            with pytest.raises(ProviderError) as refused:
                await session.send("Two.")
            return str(refused.value)


class Collector(ThreadingHTTPServer):
    """Keeps what it is told; headers are its own, and carry its key."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.bodies: list[bytes] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Taking(BaseHTTPRequestHandler):
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


def asked_through(url: str, key: str) -> bytes:
    """A call of a client of its own, with its provider's key, through the gateway."""
    body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": PROMPT}]}
    headers = {"x-api-key": PROVIDER_KEY, "x-holdfast-key": key, "content-type": "application/json"}
    sent = urllib.request.Request(f"{url}/anthropic/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(sent, timeout=SECONDS_MAX) as response:
        answer: bytes = response.read()
    return answer


def written(*folders: Path) -> dict[str, bytes]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path.name: path.read_bytes() for path in files}


async def test_no_canary_is_found_in_anything_that_was_written(tmp_path: Path, collector: Collector) -> None:
    db, home = tmp_path / "store" / "log.db", Path(os.environ["HOME"])
    said = [await play(db)]
    key = holdfast("keys", "create", "--scope", "admin", "--db", str(db)).stdout.strip()
    said.append(holdfast("keys", "list", "--db", str(db)).stdout)
    environ = {**os.environ, "ANTHROPIC_API_KEY": PROVIDER_KEY, "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={COLLECTOR_KEY}"}
    with serve_provider(SimulatedProvider()) as provider:
        words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--db", str(db), "--otlp", collector.url]
        words += ["--upstream", f"anthropic={provider}"]
        with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
        ) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            answers = [fetched(url + path, key) for path in PATHS]
            answers += [fetched(f"{url}/api/cache", key + "0"), fetched(f"{url}/api/cache?{key}=1&limit={key}", key)]
            answers.append(asked_through(url, key))
            # While it runs, what was written last is in files that are gone at its end.
            during = written(tmp_path)
            while not (collector.bodies and any(b"gateway.forwarded" in content for content in during.values())):
                during = written(tmp_path)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=SECONDS_MAX)
            said += [out, err]
    holdfast("db", "export", "--db", str(db), "--content", str(tmp_path / "exported.jsonl"))
    after = written(tmp_path, home)
    assert {"log.db", "log.db-wal"} <= during.keys()
    assert {"log.db", "exported.jsonl"} <= after.keys()
    canaries = re.compile("|".join((PROVIDER_KEY, COLLECTOR_KEY, key.rpartition("_")[2])).encode())
    found = [name for files in (during, after) for name, content in files.items() if canaries.search(content)]
    found += [text for text in said if canaries.search(text.encode())]
    found += [answer.decode() for answer in (*answers, *collector.bodies) if canaries.search(answer)]
    assert found == []
    assert len(answers[0]) > 100
    # The gateway keeps no word of what went through, and a collector that did not ask for words is told none.
    assert collector.bodies
    assert not any(PROMPT.encode() in body for body in (*during.values(), *after.values(), *collector.bodies))
