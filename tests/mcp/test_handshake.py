"""The first message of an MCP client on stdio: answered before the SDK is loaded, exactly as the SDK answers it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from tests.mcp.test_mcp import TOOLS, Home, make_home

from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.units.signatures import KEY_BYTES, DeploymentKey
from holdfast.mcp.handshake import HANDSHAKE_VERSIONS, Opening, read_opening
from holdfast.mcp.server import make_mcp_server
from holdfast.mcp.tools import McpToolbox
from holdfast.sources.skills.store import SkillStore
from holdfast.stores.memory import MemoryStore


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path)


def initialize(version: str = "2025-06-18", *, id: object = 1, **params: object) -> dict[str, Any]:
    client = {"name": "test", "version": "1"}
    fields = {"protocolVersion": version, "capabilities": {}, "clientInfo": client, **params}
    return {"jsonrpc": "2.0", "id": id, "method": "initialize", "params": fields}


def open_with(data: bytes) -> Opening:
    read, write = os.pipe()
    try:
        os.write(write, data)
        os.close(write)
        return read_opening(read)
    finally:
        os.close(read)


async def ask_sdk(request: dict[str, Any]) -> dict[str, Any]:
    """What the SDK's own server answers to the request."""
    with MemoryStore() as store:
        library = InstructionContext(store.instructions, InstructionSettings(), key=DeploymentKey(bytes(KEY_BYTES)))
        toolbox = McpToolbox(library, lambda: SkillStore(()), agent="main")
        server = make_mcp_server(toolbox, lambda header: InstructionCaller("agent:main", "test"))
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](1)
        outgoing, answers = anyio.create_memory_object_stream[SessionMessage](1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run, received, outgoing, server.create_initialization_options())
            await incoming.send(SessionMessage(types.jsonrpc_message_adapter.validate_python(request)))
            answer = await answers.receive()
            await incoming.aclose()
            await answers.aclose()
    answered: dict[str, Any] = json.loads(answer.message.model_dump_json(by_alias=True, exclude_unset=True))
    return answered


def test_versions_with_a_handshake_are_those_of_the_sdk() -> None:
    assert HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS


@pytest.mark.parametrize("version", [*HANDSHAKE_VERSIONS, "2026-07-28", "2019-01-01", ""])
@pytest.mark.parametrize("request_id", [0, "first"])
async def test_initialize_is_answered_as_the_sdk_answers_it(version: str, request_id: object) -> None:
    request = initialize(version, id=request_id, capabilities={"roots": {"listChanged": True}, "sampling": {}})
    opening = open_with(json.dumps(request).encode() + b"\n")
    assert opening.request_id == request_id
    assert json.loads(opening.answer) == await ask_sdk(request)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{bad\n",
        b"\xff\xfe\n",
        b"[]\n",
        b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n',
        b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n',
        json.dumps(initialize(id=None)).encode(),
        json.dumps(initialize(id=True)).encode(),
        json.dumps(initialize(id=1.5)).encode(),
        json.dumps(initialize(protocolVersion=3)).encode(),
        json.dumps(initialize(capabilities=[])).encode(),
        json.dumps(initialize(clientInfo={"name": "no version"})).encode(),
        json.dumps(initialize(_meta={"io.modelcontextprotocol/protocolVersion": "2026-07-28"})).encode(),
    ],
)
def test_every_other_first_line_is_left_to_the_sdk(line: bytes) -> None:
    assert open_with(line) == Opening(line)


def test_only_the_first_line_is_read() -> None:
    read, write = os.pipe()
    line = json.dumps(initialize()).encode() + b"\n"
    os.write(write, line + b"the rest")
    assert read_opening(read).line == line
    assert os.read(read, 100) == b"the rest"
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("before", [b"", b"{bad\n", b'{"jsonrpc": "2.0", "id": 7, "method": "ping"}\n'])
def test_messages_sent_before_the_server_is_loaded_are_answered_once_and_in_order(home: Home, before: bytes) -> None:
    messages = [
        initialize(),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        # The id of `initialize` again: only the repeated answer to that is left out.
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    ]
    sent = before + b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    expected = ([7] if b"ping" in before else []) + [1, 1]
    with subprocess.Popen(
        home.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=home.environ, cwd=home.path
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(sent)
        server.stdin.flush()
        # At the end of the input the SDK drops the requests that it is still working on.
        answers = [json.loads(server.stdout.readline()) for _ in expected]
        rest, _ = server.communicate(timeout=50)
    assert (server.returncode, rest) == (0, b"")
    assert [answer["id"] for answer in answers] == expected
    assert answers[-2]["result"]["protocolVersion"] == "2025-06-18"
    assert [tool["name"] for tool in answers[-1]["result"]["tools"]] == TOOLS


def test_client_that_sends_nothing_ends_the_server_without_a_word(home: Home) -> None:
    ended = subprocess.run(home.words, input=b"", capture_output=True, env=home.environ, cwd=home.path, timeout=50)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_initialize_is_answered_before_the_sdk_is_imported(home: Home) -> None:
    words = [home.words[0], "-X", "importtime", *home.words[1:]]
    # One pipe for both: what is imported, and among it the answer.
    ended = subprocess.run(
        words,
        input=json.dumps(initialize()).encode() + b"\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=home.environ,
        cwd=home.path,
        timeout=50,
        check=True,
    )
    lines = ended.stdout.decode().splitlines()
    answered_at = next(index for index, line in enumerate(lines) if line.startswith('{"jsonrpc"'))
    imported = [
        {line.rpartition("|")[2].strip() for line in part} for part in (lines[:answered_at], lines[answered_at:])
    ]
    assert imported[0].isdisjoint({"mcp_types", "pydantic", "starlette", "anyio"})
    assert {"mcp_types", "mcp.server", "pydantic"} <= imported[1]
