"""No credential reaches a file, a log line, an error or an answer: canaries are looked for wherever we write."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from holdfast.errors import ProviderError
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.testing.serving import served
from simulated_gemini import LONG

PROVIDER_KEY = "sk-ant-canary-of-the-provider"
COLLECTOR_KEY = "canary-of-the-collector"
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
    with served(SimulatedProvider(script=parse_script(SCRIPT))) as url:
        async with Session.create(
            model="anthropic:claude-sonnet-5-5", system_prompt=LONG, store=str(db), base_url=url, api_key=PROVIDER_KEY
        ) as session:
            await session.send("One.")
            with pytest.raises(ProviderError) as refused:
                await session.send("Two.")
            return str(refused.value)


async def test_no_canary_is_found_in_anything_that_was_written(tmp_path: Path) -> None:
    db = tmp_path / "store" / "log.db"
    said = [await play(db)]
    key = holdfast("keys", "create", "--scope", "admin", "--db", str(db)).stdout.strip()
    said.append(holdfast("keys", "list", "--db", str(db)).stdout)
    words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--db", str(db), "--otlp", "http://127.0.0.1:9"]
    environ = {**os.environ, "ANTHROPIC_API_KEY": PROVIDER_KEY, "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={COLLECTOR_KEY}"}
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        answers = [fetched(url + path, key) for path in PATHS]
        answers += [fetched(f"{url}/api/cache", key + "0"), fetched(f"{url}/api/cache?{key}=1&limit={key}", key)]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS_MAX)
        said += [out, err]
    secret = key.rpartition("_")[2]
    written = [path for folder in (tmp_path, Path(os.environ["HOME"])) for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "log.db" for path in written)
    canaries = re.compile("|".join((PROVIDER_KEY, COLLECTOR_KEY, secret)).encode())
    found = [path.name for path in written if canaries.search(path.read_bytes())]
    found += [text for text in said if canaries.search(text.encode())]
    found += [answer.decode() for answer in answers if canaries.search(answer)]
    assert found == []
    assert len(answers[0]) > 100
