"""What commands print fits a terminal of 80 columns."""

import json
import re
from pathlib import Path

import pytest
from tests.support.commands import run_in_process
from tests.support.terminals import Terminal

TRANSCRIPTS = Path(__file__).parents[2] / "examples" / "transcripts"


def write_request(path: Path, question: str) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": question}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Nothing."}]},
        {"role": "user", "content": "Are you sure?"},
    ]
    body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "system": "Be brief. " * 400, "messages": messages}
    path.write_text(json.dumps(body))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a stored session and a key, beside two requests."""
    for name, question in (("request", "What is left?"), ("other", "Who is there?")):
        write_request(tmp_path / f"{name}.json", question)
    home = tmp_path / "home"
    environ = {"HOLDFAST_HOME": str(home)}
    assert run_in_process("demo", "--keep", cwd=tmp_path, **environ).returncode == 0
    words = (
        "--scope",
        "gateway",
        "--name",
        "ann's laptop",
        "--user",
        "ann",
        "--team",
        "platform",
        "--budget-usd-day",
        "9",
    )
    assert run_in_process("keys", "create", *words, cwd=tmp_path, **environ).returncode == 0
    return home


@pytest.mark.parametrize(
    "words",
    [
        ("audit", str(TRANSCRIPTS)),
        ("report", "--simulated"),
        ("sessions", "list"),
        ("keys", "list"),
        ("gateway", "costs", "--simulated"),
        ("gateway", "costs", "--since", "7d"),
        ("sessions", "show", "SESSION"),
        ("compact", "SESSION", "--dry-run"),
        ("learned",),
        ("demo",),
        ("models", "--search", "sonnet"),
        ("explain", "request.json"),
        ("diff", "request.json", "other.json"),
        ("doctor", "request.json"),
        ("config",),
        ("--help",),
    ],
    ids=" ".join,
)
def test_output_fits_80_columns(words: tuple[str, ...], home: Path, tmp_path: Path) -> None:
    environ = {"HOLDFAST_HOME": str(home)}
    if "SESSION" in words:
        (session,) = json.loads(run_in_process("sessions", "list", "--json", cwd=tmp_path, **environ).stdout)
        words = tuple(session["id"] if word == "SESSION" else word for word in words)
    with Terminal(*words, folder=tmp_path, environ=environ) as terminal:
        assert terminal.end() == (words[0] in ("diff", "compact"))
        lines = [line.rstrip() for line in terminal.rest().splitlines()]
    assert len(lines) > 1 or words[0] in ("gateway", "doctor", "compact")
    if words[0] == "keys":
        ids = [line.split("  ")[0] for line in lines[1:] if line]
        assert all(re.fullmatch(r"[0-9a-f]{16}|", key_id) for key_id in ids), "what other commands take is whole"
    if words[0] == "explain":
        text = " ".join(line.strip() for line in lines)
        assert re.search(r"a pause of 5 to 60 minutes follows with probability [\d.]+%", text), "no word is cut"
    # A path or an address is not cut.
    assert [line for line in lines if len(line) > 80 and not re.search(r"\S{60}", line)] == []
