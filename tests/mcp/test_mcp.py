"""`holdfast mcp`, with the official client: over stdio and over HTTP."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from tests.support.instruction_service import UNITS
from tests.support.skill_folders import library_of as skills_of

from holdfast import Library
from holdfast.cli.instructions.command import open_instruction_context
from holdfast.cli.mcp import make_mcp_authorizer
from holdfast.instructions.settings import InstructionSettings
from holdfast.mcp.server import make_mcp_server
from holdfast.mcp.tools import McpToolbox
from holdfast.service.auth.keys import make_key
from holdfast.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TOOLS = ["recall_instruction", "list_instructions", "read_instruction", "submit_usage", "skill_search", "skill_load"]


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = path / "kept.db"
        self.environ = {**os.environ, "HOME": str(path), "HOLDFAST_HOME": str(path), "HOLDFAST_DB": str(self.db)}
        self.words = [sys.executable, "-m", "holdfast", "mcp"]

    def key(self, scope: str) -> str:
        new_key = make_key(scope, at=time.time(), random_bytes=secrets.token_bytes)
        with SqliteStore(self.db) as store:
            store.records.add_key(new_key.row)
        return new_key.key

    @asynccontextmanager
    async def over_stdio(self, key: str | None = None) -> AsyncIterator[Client]:
        environ = self.environ | ({"HOLDFAST_KEY": key} if key else {})
        words = StdioServerParameters(command=self.words[0], args=self.words[1:], env=environ, cwd=self.path)
        async with Client(stdio_client(words)) as client:
            yield client

    @asynccontextmanager
    async def in_process(self, key: str | None = None) -> AsyncIterator[Client]:
        """A client in this process of what the command serves over stdio: the command itself takes seconds to start."""
        with SqliteStore(self.db) as store, pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOLDFAST_HOME", str(self.path))
            library = open_instruction_context(store, wanted=True)
            assert library is not None
            toolbox = McpToolbox(library, lambda: skills_of(self.path / "skills").store, agent="main")
            authorize = make_mcp_authorizer(store.records, agent="main", require_keys=False)
            async with Client(make_mcp_server(toolbox, authorize, stdio_key=key)) as client:
                yield client

    @contextmanager
    def serving(self) -> Iterator[str]:
        words = [*self.words, "--http", "--port", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=self.environ, cwd=self.path) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip()
            finally:
                process.terminate()

    @asynccontextmanager
    async def over_http(self, key: str | None = None) -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with self.serving() as url:
            async with (
                httpx2.AsyncClient(headers=headers) as http,
                Client(streamable_http_client(url, http_client=http)) as client,
            ):
                yield client


def make_home(tmp_path: Path) -> Home:
    folder = tmp_path / "folder"
    folder.mkdir()
    entries = []
    for name, (description, intents, content) in UNITS.items():
        (folder / f"{name}.md").write_text(content)
        uri = f"instruction:local/main/{name}/v1"
        entry = {"name": name, "description": description, "load_triggers": {"intents": intents}, "fact_uri": uri}
        entries.append(entry)
    (folder / "manifest.json").write_text(json.dumps({"agent_id": "main", "version": "v1", "entries": entries}))
    skill = tmp_path / "skills" / "refunds"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: refunds\ndescription: How money is paid back\n---\n\nAsk first.\n")
    settings = InstructionSettings(encoder="wordllama")
    with Library(tmp_path / "kept.db", settings=settings, key_path=tmp_path / "instructions.key") as library:
        library.publish(folder)
    return Home(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path)


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_every_tool_is_listed_and_answers(home: Home, way: str) -> None:
    connection: Any = home.over_stdio() if way == "stdio" else home.over_http()
    async with connection as client:
        tool_list = await client.list_tools()
        assert [tool.name for tool in tool_list.tools] == TOOLS
        recalled = await client.call_tool("recall_instruction", {"intent": "review a pull request", "max_chunks": 1})
        assert not recalled.is_error
        assert recalled.structured_content["chunks"][0]["content"] == UNITS["code-review"][2]
        assert UNITS["code-review"][2] in recalled.content[0].text
        units = await client.call_tool("list_instructions", {})
        assert [entry["name"] for entry in units.structured_content["entries"]] == list(UNITS)
        token = recalled.structured_content["audit_token"]
        submission = await client.call_tool("submit_usage", {"audit_token": token, "used_chunks": ["code-review"]})
        assert submission.structured_content == {"closed": True}
        skills = await client.call_tool("skill_search", {"query": "money"})
        assert [skill["name"] for skill in skills.structured_content["skills"]] == ["refunds"]
        loaded = await client.call_tool("skill_load", {"name": "refunds"})
        assert "Ask first." in loaded.content[0].text
        refused = await client.call_tool("skill_load", {"name": "refund"})
        assert (refused.is_error, refused.structured_content["error"]["code"]) == (True, "skill_not_found")
        with pytest.raises(MCPError, match="there is no tool"):
            await client.call_tool("other_tool", {})
    with Library(home.db, key_path=home.path / "instructions.key") as library:
        assert library.metrics().hit_at_k == 1.0


async def test_error_is_returned_to_the_model_with_its_code(home: Home) -> None:
    cases = [
        ("recall_instruction", {}, "invalid_arguments"),
        ("recall_instruction", {"intent": 3}, "invalid_arguments"),
        ("recall_instruction", {"intent": "x", "max_chunks": 0}, "invalid_arguments"),
        ("recall_instruction", {"intent": "x", "color": "red"}, "invalid_arguments"),
        ("recall_instruction", {"intent": "  "}, "intent_required"),
        ("list_instructions", {"name": "code-reviews"}, "unit_not_found"),
        ("submit_usage", {"audit_token": "audi_none"}, "audit_token_invalid"),
        ("skill_load", {"name": "refund"}, "skill_not_found"),
        ("skill_search", {"query": "a", "limit": 1000}, "invalid_arguments"),
    ]
    connection: Any = home.in_process()
    async with connection as client:
        for name, arguments, code in cases:
            response = await client.call_tool(name, arguments)
            assert response.is_error, (name, arguments)
            assert response.structured_content["error"]["code"] == code, response
        unit = await client.call_tool("list_instructions", {"name": "code-reviews"})
        assert "near matches: code-review" in unit.content[0].text
        hinted = await client.call_tool(
            "recall_instruction", {"intent": "claim a ticket", "manifest_hint": ["nothing"]}
        )
        assert hinted.structured_content["missed_hints"] == ["nothing"]


async def test_over_stdio_every_tool_reports_a_missing_key_once_keys_exist(home: Home) -> None:
    key = home.key("agent:main")
    async with home.in_process() as client:
        for name in TOOLS:
            response = await client.call_tool(name, {})
            assert response.structured_content["error"]["code"] == "key_required"
    async with home.over_stdio(key) as client:
        assert not (await client.call_tool("list_instructions", {})).is_error
    async with home.in_process("hf_0000000000000000_" + "0" * 64) as client:
        response = await client.call_tool("list_instructions", {})
        assert response.structured_content["error"]["code"] == "invalid_key"


class Served(NamedTuple):
    url: str
    own: str
    other: str
    reader: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The command over HTTP, with keys that exist."""
    home = make_home(tmp_path_factory.mktemp("served"))
    keys = [home.key(scope) for scope in ("agent:main", "agent:other", "read")]
    with home.serving() as url:
        yield Served(url, *keys)


async def test_over_http_a_missing_key_is_401_and_a_key_opens_only_its_own_agent(served: Served) -> None:
    async with httpx2.AsyncClient() as http:
        response = await http.post(served.url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert response.status_code == 401
    assert response.json()["error"]["data"] == {"code": "key_required"}
    assert response.headers["www-authenticate"] == "Bearer"
    with pytest.raises(ExceptionGroup) as refused:
        async with Client(served.url) as client:
            await client.list_tools()
    assert refused.group_contains(MCPError, match="key_required: a key is needed")
    for key, code in (
        (served.own, None),
        (served.other, "manifest_not_found"),
        (served.reader, "instruction_scope_denied"),
    ):
        headers = {"authorization": f"Bearer {key}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(served.url, http_client=http)) as client,
        ):
            result = await client.call_tool("recall_instruction", {"intent": "claim a ticket"})
            assert (result.structured_content.get("error") or {}).get("code") == code


async def test_request_from_another_origin_is_refused_over_http(served: Served) -> None:
    foreign_headers = {"host": "evil.example", "origin": "http://evil.example", "authorization": f"Bearer {served.own}"}
    async with httpx2.AsyncClient(headers=foreign_headers) as http:
        response = await http.post(served.url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert response.status_code in (403, 421)


HEAVY = ("numpy", "tokenizers", "safetensors", "onnxruntime", "wordllama")


async def test_what_a_recall_needs_is_imported_by_the_first_recall(home: Home, tmp_path: Path) -> None:
    home.words[1:1] = ["-X", "importtime"]
    with (tmp_path / "imports.txt").open("w") as imports:
        words = StdioServerParameters(command=home.words[0], args=home.words[1:], env=home.environ, cwd=home.path)
        async with Client(stdio_client(words, errlog=imports)) as client:
            await client.list_tools()
            await client.call_tool("list_instructions", {})
            before = _imported(tmp_path / "imports.txt")
            await client.call_tool("recall_instruction", {"intent": "review a pull request"})
            after = _imported(tmp_path / "imports.txt")
    assert "mcp" in before
    assert before.isdisjoint(HEAVY)
    assert {"numpy", "tokenizers"} <= after


def _imported(path: Path) -> set[str]:
    """The top-level packages in the output of `-X importtime`."""
    lines = (line.rpartition("|")[2].strip() for line in path.read_text().splitlines() if "import time:" in line)
    return {name.partition(".")[0] for name in lines}


def test_session_start_hook_imports_nothing_heavy(home: Home) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "holdfast", "instructions", "hook"]
    run = subprocess.run(words, capture_output=True, text=True, check=True, env=home.environ, input="{}")
    assert "Agent Boot Stub" in run.stdout
    (home.path / "imports.txt").write_text(run.stderr)
    assert _imported(home.path / "imports.txt").isdisjoint({*HEAVY, "mcp", "aiohttp", "starlette", "pydantic"})
    # Sessions and the HTTP client of the service are for other commands.
    assert "holdfast.runtime.options" not in run.stderr
    assert "urllib.request" not in run.stderr
