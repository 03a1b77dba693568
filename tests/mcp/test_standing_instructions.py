"""What a client gets before any recall: the server's instructions, and the texts that they name."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.test_handshake import initialize
from tests.mcp.test_mcp import Home, make_home
from tests.support.instruction_service import UNITS

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path)


def opened_instructions(home: Home, key: str | None = None) -> str | None:
    """`instructions` in the answer to `initialize` of the command on stdio."""
    environ = home.environ | ({"HOLDFAST_KEY": key} if key else {})
    line = json.dumps(initialize()).encode() + b"\n"
    run = subprocess.run(
        home.words, input=line, env=environ, cwd=home.path, capture_output=True, timeout=120, check=True
    )
    result = json.loads(run.stdout.split(b"\n", 1)[0])["result"]
    text: str | None = result.get("instructions")
    return text


def test_initialize_carries_stub_and_index(home: Home) -> None:
    text = opened_instructions(home)
    assert text is not None
    assert text.startswith("# Agent Boot Stub")
    assert all(f"- {name}: " in text for name in UNITS)
    assert UNITS["code-review"][2] not in text


def test_client_without_a_valid_key_gets_no_instructions(home: Home) -> None:
    home.key("agent:main")
    assert opened_instructions(home) is None
    assert opened_instructions(home, home.key("agent:other")) is None


async def test_sdk_gives_the_same_instructions_as_the_handshake(home: Home) -> None:
    async with home.in_process() as client:
        assert client.instructions == opened_instructions(home)


async def test_text_is_read_by_address_or_name_and_recorded(home: Home) -> None:
    connection: Any = home.in_process()
    async with connection as client:
        for uri in (
            "instruction:local/main/code-review/v1",
            "instruction:local/agent/main/code-review/v1",
            "code-review",
        ):
            read = await client.call_tool("read_instruction", {"uri": uri})
            assert UNITS["code-review"][2] in read.content[0].text
            assert read.structured_content["audit_token"].startswith("audi_")
        manifest = await client.call_tool("read_instruction", {"uri": "instruction:local/main/manifest/v1"})
        assert "- code-review: " in manifest.content[0].text


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("instruction:local/main/code-reviews/v1", "unit_not_found"),
        ("instruction:local/other/code-review/v1", "unit_not_found"),
        ("instruction:bad", "uri_invalid"),
        ("https://example.test/x", "unit_not_found"),
        ("", "unit_not_found"),
    ],
)
async def test_address_of_nothing_or_of_another_agent_is_refused(home: Home, uri: str, code: str) -> None:
    connection: Any = home.in_process()
    async with connection as client:
        response = await client.call_tool("read_instruction", {"uri": uri})
        assert response.structured_content["error"]["code"] == code
        assert os.fspath(home.path) not in response.content[0].text
