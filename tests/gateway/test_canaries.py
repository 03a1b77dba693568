"""Canaries in keys, headers, prompts and tool results are found where content belongs, and nowhere else.

Content belongs in the store and, until it is recorded, in the spool; and in the routes that show content to an admin.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.service.auth.keys import make_key
from holdfast.service.route_table import ROUTES
from holdfast.stores.sqlite.store import SqliteStore

PROVIDER_KEY = "sk-ant-canaryofaclientskey0011223344556677"
GRANTED_KEY = "sk-ant-canaryofagrantedkey0011223344556677"
CREDENTIALS = {
    "x-api-key": PROVIDER_KEY,
    "authorization": "Bearer canaryoftheauthorization00112233445566",
    "x-goog-api-key": "AIzacanaryofthegooglekey00112233445566778",
    "api-key": "canaryoftheazurekey001122334455667788",
    "cookie": "session=canaryofthecookie0011223344556677",
    "x-amz-security-token": "canaryoftheamazontoken0011223344556677",
}
HEADER = "canaryofanotherheader00112233"
QUERY_KEY = "AIzacanaryofthequery0011223344556677889900"
CONTENT = {
    "system": "canary of the system prompt 4711",
    "prompt": "canary of the prompt 4712",
    "tool result": "canary of the tool result 4713",
    "tool": "canary of the tool description 4714",
}
CONTENT_SUFFIXES = (".db", ".db-wal", ".db-shm")
"""Of the store; beside it is the spool, which holds bodies until they are recorded."""

CONTENT_PATHS = ("/bytes", "/prompt", "/cache/stream")
"""What ends with one of these shows content, to keys that may read it."""


def make_body(**more: object) -> dict[str, Any]:
    return {
        "model": "claude-sonnet-5-5",
        "max_tokens": 50,
        "system": CONTENT["system"] * 200,
        "tools": [{"name": "read", "description": CONTENT["tool"], "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": CONTENT["prompt"]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": CONTENT["tool result"]}],
            },
        ],
        **more,
    }


class Served:
    """`holdfast serve` in a process of its own, with all of its files below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "store" / "log.db"
        self.db.parent.mkdir()
        with SqliteStore(str(self.db)) as store:
            keys = {scope: make_key(scope, at=0.0, random_bytes=os.urandom) for scope in ("gateway", "admin")}
            for made in keys.values():
                store.records.add_key(made.row)
        self.keys = {scope: made.key for scope, made in keys.items()}
        grants = folder / "secret" / "grants.toml"
        grants.parent.mkdir()
        grants.write_text(f'[keys."*"]\nanthropic = "{GRANTED_KEY}"\nbudget_usd_a_day = 5.0\n')
        grants.chmod(0o600)
        self.log = folder / "log.txt"
        words = ["serve", "--simulate", "--port", "0", "--db", str(self.db), "--grants", str(grants)]
        environ = {
            **os.environ,
            "HOLDFAST_HOME": str(folder / "home"),
            "TMPDIR": str(folder),
            "PYTHONWARNINGS": "ignore",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *words],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
                cwd=folder,
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def ask(
        self, path: str = "/anthropic/v1/messages", body: object = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(make_body() if body is None else body).encode()
        sent = {"content-type": "application/json", "x-canary": HEADER, "user-agent": "agent/1.0", **(headers or {})}
        return httpx.post(f"{self.url}{path}", content=content, headers=sent, timeout=30)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = Served(tmp_path_factory.mktemp("served"))
    try:
        yield running
    finally:
        running.stop()


def find_canaries(text: str, *, content: bool) -> list[str]:
    canaries = [
        *(
            value.removeprefix("Bearer ").partition("=")[2] or value.removeprefix("Bearer ")
            for value in CREDENTIALS.values()
        )
    ]
    canaries += [GRANTED_KEY, HEADER, QUERY_KEY, *(CONTENT.values() if content else ())]
    return [canary for canary in canaries if canary in text]


def attack(served: Served) -> list[httpx.Response]:
    """Requests that are answered by the provider, and ones that fail in as many ways as there are."""
    ours = {"x-holdfast-key": served.keys["gateway"]}
    all_keys = {**ours, **CREDENTIALS}
    return [
        served.ask(headers=all_keys),
        served.ask(headers=all_keys, body=make_body(stream=True)),
        served.ask(headers={"x-api-key": served.keys["gateway"]}),
        served.ask(headers={**all_keys, "x-holdfast-fault": "500"}),
        served.ask(headers={**all_keys, "x-holdfast-fault": "429"}),
        served.ask("/openai/v1/responses", {"model": "gpt-5.2", "input": CONTENT["prompt"]}, headers=all_keys),
        served.ask(f"/gemini/v1beta/models/gemini-3-pro:generateContent?key={QUERY_KEY}", headers=all_keys),
        served.ask(body=json.dumps(make_body()).encode()[:-40], headers=all_keys),
        served.ask(body=make_body(messages=CONTENT["prompt"]), headers=all_keys),
        served.ask(body=make_body(model=CONTENT["prompt"]), headers=all_keys),
        served.ask("/anthropic/v1/organizations", headers={"x-api-key": served.keys["gateway"], "x-canary": HEADER}),
        served.ask(headers=CREDENTIALS),
        served.ask(headers={**CREDENTIALS, "x-holdfast-key": PROVIDER_KEY}),
        served.ask("/nothing", headers=all_keys),
        served.ask(headers={**all_keys, "content-encoding": "canary"}),
        served.ask("/anthropic/v1/messages", headers={**all_keys, "host": "canary.example"}),
        httpx.put(f"{served.url}/api/cache/settings", json={"ttl": CONTENT["prompt"]}, headers=ours),
        httpx.get(f"{served.url}/api/cache?limit={QUERY_KEY}", headers={"authorization": CREDENTIALS["authorization"]}),
    ]


def test_canaries_are_only_where_content_belongs(served: Served) -> None:
    responses = attack(served)
    assert {200, 401, 403, 404, 421} <= {response.status_code for response in responses}
    # The answers of the provider are its own; ours quote nothing.
    own = [response for response in responses if response.status_code >= 400 and "request-id" not in response.headers]
    assert [find_canaries(f"{response.headers} {response.text}", content=True) for response in own] == [[]] * len(own)
    admin = {"authorization": f"Bearer {served.keys['admin']}"}
    pages = {}
    for route in ROUTES:
        if route.method == "GET" and "{" not in route.path and not route.path.endswith(CONTENT_PATHS):
            pages[route.path] = httpx.get(f"{served.url}{route.path}", headers=admin, timeout=30).text
    assert "holdfast_llm_calls_total" in pages["/metrics"]
    found = {path: find_canaries(page, content=path == "/metrics") for path, page in pages.items()}
    assert {path: canaries for path, canaries in found.items() if canaries} == {}
    served.stop()
    files = [file for file in served.folder.rglob("*") if file.is_file() and file.parent.name != "secret"]
    assert served.db in files
    assert served.log in files
    for file in files:
        has_content = file.name.endswith(CONTENT_SUFFIXES) or f"{served.db.name}-spool" in str(file)
        raw = file.read_bytes().decode("latin-1")
        assert find_canaries(raw, content=not has_content) == [], file
    # The search would have found them.
    assert CONTENT["prompt"] in served.db.read_bytes().decode("latin-1")
    assert "Traceback" not in served.log.read_text()
