"""Commands as a user types them, and their output."""

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.commands import run_command, run_in_process

from holdfast import __version__
from holdfast.catalog.lookup import find_model
from holdfast.cli.demo import scenario
from holdfast.cli.format import format_usd
from holdfast.cli.main import COMMANDS, command
from holdfast.errors import HoldfastError
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.events.payloads.session import MessageAppended, SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.blocks import make_user_message
from holdfast.types.usage import Usage


def run(*arguments: str, text: str | None = None) -> Result:
    """Runs the command in this process; errors appear as `main` would print them."""
    result = CliRunner().invoke(command, arguments, input=text)
    if isinstance(result.exception, HoldfastError):
        result.stderr_bytes = f"holdfast: {result.exception}\n".encode()
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@functools.cache
def demo(*arguments: str) -> str:
    """The demo's output, which is the same every time, so that one run is enough."""
    return run("demo", *arguments).output


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "events.db"
    with SqliteStore(path) as log:
        started = SessionStarted("anthropic:claude-sonnet-5-5", name="fix the parser")
        payloads: list[AnyPayload] = [started, MessageAppended(make_user_message("hi"))]
        log.append(
            [Event(f"e{number}", 1e9 + number, "s1", "user", payload) for number, payload in enumerate(payloads)]
        ).result()
    return path


def test_the_version_is_printed() -> None:
    assert run("--version").output == f"holdfast, version {__version__}\n"


def test_help_names_every_command() -> None:
    output = run("--help").output
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.help_text[:40])}", output, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"Usage: command {name}" in result.output


HEAVY = ("aiohttp", "rich", "msgspec", "splintr", "sqlite3")


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], HEAVY),
        (["config", "--json"], ("aiohttp", "splintr", "sqlite3", "holdfast.providers.anthropic.encode")),
        (["skills", "index"], ("aiohttp", "rich", "splintr", "sqlite3")),
    ],
    ids=["help", "config", "skills"],
)
def test_a_command_imports_no_heavy_module_that_it_does_not_need(words: list[str], heavy: tuple[str, ...]) -> None:
    program = f"""
import sys
before = set(sys.modules)
from holdfast.cli.main import command
command.main({words!r}, standalone_mode=False)
print(sorted(set({heavy!r}) & (set(sys.modules) - before)))
"""
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert completed.splitlines()[-1] == "[]"


def test_an_unknown_command_lists_the_known_ones() -> None:
    result = run_command("zzz")
    assert result.returncode == 2
    assert "No such command 'zzz'" in result.stderr
    assert f"Known commands: {', '.join(sorted(COMMANDS))}." in result.stderr
    assert {"audit", "certify", "demo", "sessions"} <= COMMANDS.keys()


def test_an_error_is_one_line_without_a_traceback() -> None:
    result = run_command("demo", "--model", "anthropic:claude-sonet-5-5")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("holdfast: unknown model 'anthropic:claude-sonet-5-5'; did you mean")
    assert result.stdout == ""


def test_an_error_moves_no_cursor(tmp_path: Path) -> None:
    file = tmp_path / "a\x1b]0;title\x07\x9b2J\u202e"
    file.write_bytes(b"")
    result = run_command("db", "import", str(file))
    assert result.returncode == 1
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr[:-1].isprintable()


def test_the_demo_reads_from_the_cache_from_the_second_call_on() -> None:
    result = json.loads(demo("--json"))
    turns = result["turns"]
    assert len(turns) >= 8
    assert [turn["call"] for turn in turns] == list(range(1, len(turns) + 1))
    assert turns[0]["cache_read"] == 0
    assert all(turn["cache_read"] > 0 for turn in turns[1:])
    assert result["read_share"] >= 0.85


def test_the_demos_sums_are_the_sums_of_its_calls() -> None:
    result = json.loads(demo("--json"))
    turns = result["turns"]
    total = sum(turn["input"] + turn["cache_read"] + turn["cache_write"] for turn in turns)
    assert result["read_share"] == round(sum(turn["cache_read"] for turn in turns) / total, 4)
    assert Decimal(result["total_cost_usd"]) == sum(Decimal(turn["cost_usd"]) for turn in turns)
    output = sum(turn["output"] for turn in turns)
    assert Decimal(result["uncached_cost_usd"]) == (total * Decimal(2) + output * Decimal(10)) / 1_000_000


def test_the_demo_prints_a_line_per_call_and_what_it_saved() -> None:
    output = demo()
    assert output.startswith("anthropic:claude-sonnet-5-5, a simulated provider on this machine\n")
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +\$[\d.]+ +-?\$[\d.]+$", output, re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(range(1, 13))
    for row in rows:
        prompt, read, cache_write, uncached = map(int, row[1:5])
        assert prompt == read + cache_write + uncached
    assert "12 calls, 12 of them with an unchanged prefix; 90% of the prompt read from cache" in output
    assert re.search(r"cost \$0\.\d{6}; without caching \$0\.\d{6}: saved \$0\.\d{6} \(\d\d %\)\n$", output)


def test_the_first_prompt_of_the_demo_is_at_least_twice_the_models_floor() -> None:
    first = json.loads(demo("--json"))["turns"][0]
    assert first["cache_write"] >= 2 * 512


@pytest.mark.parametrize("name", ["claude-haiku-4-5", "claude-opus-4-7", "claude-fable-5-2"])
def test_the_demo_is_long_enough_for_models_that_cache_only_long_prompts(name: str) -> None:
    result = json.loads(demo("--json", "--model", f"anthropic:{name}"))
    floor = find_model(f"anthropic:{name}").cache.tokens_min
    assert result["turns"][0]["cache_write"] >= 2 * floor
    assert result["read_share"] >= 0.85


def test_the_demo_of_a_gemini_model_reads_all_but_the_newest_messages() -> None:
    result = json.loads(demo("--json", "--model", "gemini:gemini-3.8-flash"))
    assert [turn["cache_read"] > 8_192 for turn in result["turns"]] == [False] + [True] * 11
    assert result["read_share"] >= 0.85


def test_the_demo_is_the_same_whatever_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LAYOUT", "seed"), ("PROFILE", "seed"), ("STEPS_MAX", "1"), ("SPEND_MAX_USD", "0.001")):
        monkeypatch.setenv(f"HOLDFAST_{name}", value)
    assert run("demo", "--json").output == demo("--json")


def test_the_demo_ran_its_tools_for_real() -> None:
    output = demo()
    assert "All four tests pass." in output
    assert "Five tests pass." in output


def test_the_demo_stores_nothing_unless_requested(tmp_path: Path) -> None:
    run("demo", "--json")
    assert json.loads(run("sessions", "list", "--json").output) == []
    stored_output = run("demo", "--keep").output
    (row,) = json.loads(run("sessions", "list", "--json").output)
    assert stored_output.endswith(f"\nStored: holdfast sessions show {row['id']}\n")
    again = json.loads(run("demo", "--keep", "--json").output)["session_id"]
    assert {session_row["id"] for session_row in json.loads(run("sessions", "list", "--json").output)} == {
        row["id"],
        again,
    }
    calls = json.loads(run("sessions", "show", row["id"], "--json").output)["calls"]
    assert len(calls) == 12
    assert all(call["blocks_shared"] == call["blocks_before"] and call["prefix_held"] for call in calls)


def test_the_demo_needs_a_key_to_run_live() -> None:
    assert "set ANTHROPIC_API_KEY" in run("demo", "--live").stderr
    assert "set GEMINI_API_KEY" in run("demo", "--live", "--model", "gemini:gemini-3.8-flash").stderr


@pytest.mark.parametrize(
    "model", ["openai:gpt-6-luna", "openai-chat:gpt-6-luna", "openai:gpt-5.4-mini", "gemini:gemini-3.8-flash"]
)
def test_the_demo_runs_with_a_model_of_every_provider_and_hits_the_cache(model: str) -> None:
    result = json.loads(demo("--json", "--model", model))
    assert len(result["turns"]) == 12
    assert all(turn["cache_read"] > 0 for turn in result["turns"][1:])
    assert result["read_share"] >= 0.85
    assert Decimal(result["total_cost_usd"]) < Decimal(result["uncached_cost_usd"]) / 2


def test_the_demo_says_how_to_enable_caching_for_a_route_and_caches_once_it_is_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = "openrouter:anthropic/claude-sonnet-5.5"
    off = run("demo", "--model", route).output
    assert "0% of the prompt read from cache" in off
    assert f'Caching is off for this route. To turn it on: [models."{route}"] supports_prompt_caching = true' in off
    (tmp_path / "config.toml").write_text(f'[models."{route}"]\nsupports_prompt_caching = true\n')
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    assert json.loads(run("demo", "--json", "--model", route).output)["read_share"] >= 0.85


def test_the_demo_has_tools_and_says_so_to_models_that_cannot_use_them() -> None:
    refused = run("demo", "--model", "claude-code:claude-sonnet-5-5").stderr
    assert refused == ("holdfast: claude-code runs its own tools and cannot use the demo's; try another --model\n")


def test_sessions_are_listed_with_name_and_model(store: Path) -> None:
    output = run("sessions", "list", "--db", str(store)).output
    assert "fix the parser" in output
    assert "anthropic:claude-sonnet-5-5" in output
    (row,) = json.loads(run("sessions", "list", "--db", str(store), "--json").output)
    assert (row["id"], row["event_count"], row["last_event_at"]) == ("s1", 2, 1e9 + 1)


def test_a_name_cannot_colour_the_terminal_or_move_its_cursor(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    with SqliteStore(path) as log:
        named = SessionStarted("anthropic:x", name="[bold]a\x1b[31mb\nc")
        log.append([Event("e1", 1e9, "s1", "user", named)]).result()
    output = run("sessions", "list", "--db", str(path)).output
    assert "[bold]a [31mb c" in output
    assert "\x1b" not in output


def test_an_empty_store_says_how_to_fill_it_and_is_not_created_by_reading() -> None:
    assert "No sessions are stored yet" in run("sessions", "list").output
    assert not Path(os.environ["HOLDFAST_HOME"]).exists()


@pytest.mark.parametrize("action", [["list"], ["show", "s1"], ["delete", "s1"]])
def test_a_missing_store_is_named_and_not_created(tmp_path: Path, action: list[str]) -> None:
    missing = tmp_path / "typo.db"
    result = run("sessions", *action, "--db", str(missing))
    assert f"there is no store at {str(missing)!r}" in result.stderr
    assert not missing.exists()


def test_a_list_has_at_least_one_line(store: Path) -> None:
    assert run("sessions", "list", "--limit", "0", "--db", str(store)).exit_code == 2


def test_output_that_cannot_be_written_is_one_clear_line() -> None:
    done = subprocess.run(
        f"{sys.executable} -m holdfast sessions list > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "holdfast: No space left on device\n")


def test_without_a_home_the_remedy_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("HOLDFAST_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert "set HOME or HOLDFAST_HOME" in run("config").stderr


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_configured_model_can_be_simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text('[models."anthropic:mine"]\nlike = "anthropic:claude-sonnet-5-5"\n')
    assert json.loads(run("demo", "--json", "--model", "anthropic:mine").output)["read_share"] >= 0.85
    with simulate("--port", "0") as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        body = {"model": "mine", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), {"x-api-key": "any"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["model"] == "mine"
        process.terminate()


def test_a_session_shows_its_calls() -> None:
    run("demo", "--keep")
    (row,) = json.loads(run("sessions", "list", "--json").output)
    output = run("sessions", "show", row["id"]).output
    *rows, legend, total, padding = output.splitlines()
    numbers = [*map(str, range(1, 13))]
    assert [line.split()[0] for line in rows] == ["call", *numbers, *numbers]
    assert legend.endswith(" history")
    assert total == "12 calls, $0.032946; anthropic:claude-sonnet-5-5"
    assert padding.startswith("not padded: ")
    assert output.count("held") == 23 + 11
    assert output.count("first_use") == 2


def test_a_session_shows_the_cost_of_keep_alive_and_prewarm_requests(tmp_path: Path) -> None:
    path = tmp_path / "pinged.db"
    with SqliteStore(path) as log:
        ping = CachePinged("prewarm", "anthropic:m", "5m", Usage(cache_write_5m=9), Decimal("0.25"), "v")
        log.append([Event(id="1", at=0.0, session_id="s", actor="system", payload=ping)]).result()
    total = run("sessions", "show", "s", "--db", str(path)).output.splitlines()[-1]
    assert total == "0 calls, $0.250000, $0.250000 of it for keep-alive and prewarm requests; none"


def test_an_estimated_output_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.db"
    with SqliteStore(path) as log:
        model, usage = "anthropic:claude-sonnet-5-5", Usage(input=9, output=7)
        cancelled_call = LlmCallFailed(
            model, "anthropic", "cancelled", "cancelled", 0, 1, "r1", usage, is_output_estimated=True
        )
        failed_call = LlmCallFailed(model, "anthropic", "network", "gone", 0, 1, "r2", usage)
        payloads: list[AnyPayload] = [SessionStarted(model), cancelled_call, failed_call]
        log.append([Event(f"e{at}", 1e9 + at, "s1", "agent", payload) for at, payload in enumerate(payloads)]).result()
    first, second, note, *_ = run("sessions", "show", "s1", "--db", str(path)).output.splitlines()[1:]
    assert (first.split()[7], second.split()[7]) == ("~7", "7")
    assert note == "~ the call broke off; what the provider did not report is estimated"
    calls = json.loads(run("sessions", "show", "s1", "--db", str(path), "--json").output)["calls"]
    assert [call["output_estimated"] for call in calls] == [True, False]


@pytest.mark.parametrize("action", ["show", "delete"])
def test_an_unknown_session_is_named(store: Path, action: str) -> None:
    result = run("sessions", action, "nope", "--db", str(store))
    assert result.exit_code == 1
    assert "there is no session 'nope'; `holdfast sessions list` shows all" in result.stderr


def test_deleting_asks_first(store: Path) -> None:
    refused = run("sessions", "delete", "s1", "--db", str(store), text="n\n")
    assert refused.exit_code == 1
    assert "Delete session s1 with 2 events for good?" in refused.output
    assert len(json.loads(run("sessions", "list", "--db", str(store), "--json").output)) == 1


def test_a_dry_run_deletes_nothing(store: Path) -> None:
    result = run("sessions", "delete", "s1", "--db", str(store), "--dry-run")
    assert result.output == "would delete session s1 with 2 events\n"
    assert len(json.loads(run("sessions", "list", "--db", str(store), "--json").output)) == 1


def test_deleting_removes_a_session(store: Path) -> None:
    result = run("sessions", "delete", "s1", "--db", str(store), "--yes")
    assert result.output == "deleted session s1 with 2 events\n"
    assert json.loads(run("sessions", "list", "--db", str(store), "--json").output) == []


def test_a_corrupt_store_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"this is not a database" * 100)
    result = run_in_process("sessions", "list", "--db", str(tmp_path / "bad.db"))
    assert result.returncode == 1
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr.count("\n") == 1
    assert "bad.db" in result.stderr


def test_the_configuration_is_shown_with_its_origins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_MODEL", "anthropic:claude-opus-5-5")
    (tmp_path / ".holdfast").mkdir()
    (tmp_path / ".holdfast" / "config.toml").write_text('steps_max = 7\n[project]\ncontext = "a\\nb"\n')
    home = Path(os.environ["HOLDFAST_HOME"])
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[models."anthropic:mine"]\nlike = "anthropic:claude-sonnet-5-5"\n')
    configuration = json.loads(run("config", "--json", "--workspace", str(tmp_path)).output)
    assert configuration["model"] == {"value": "anthropic:claude-opus-5-5", "from": "HOLDFAST_MODEL"}
    assert configuration["steps_max"] == {"value": 7, "from": str(tmp_path / ".holdfast" / "config.toml")}
    assert configuration["layout"] == {"value": "default", "from": "default"}
    assert configuration["home"] == {"value": os.environ["HOLDFAST_HOME"], "from": "HOLDFAST_HOME"}
    assert configuration["db"]["value"].endswith("holdfast.db")
    assert configuration["models"] == {"anthropic:mine": {"like": "anthropic:claude-sonnet-5-5"}}
    table = run("config", "--workspace", str(tmp_path)).output
    assert re.search(r"^spend_max_usd +none +default", table, re.MULTILINE)
    assert "models.anthropic:mine" in table
    assert configuration["project"] == {"context": "a\nb"}
    assert re.search(r"^project.context +a\ufffdb ", table, re.MULTILINE)


def simulate(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "simulate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_simulator_prints_its_address_at_once_and_runs_until_stopped(tmp_path: Path, stop: signal.Signals) -> None:
    (tmp_path / "script.jsonl").write_text('{"content": [{"type": "text", "text": "scripted"}]}\n')
    with simulate("--port", "0", "--script", str(tmp_path / "script.jsonl")) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        request = urllib.request.Request(f"{url}/v1/messages", json.dumps(body).encode(), {"x-api-key": "any"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["content"][0]["text"] == "scripted"
        process.send_signal(stop)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "stopped\n"


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        result = run_command("simulate", "--port", str(port))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert str(port) in result.stderr
    assert "choose another host or port, or port 0 for a free one" in result.stderr


def test_an_unreadable_script_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n")
    result = run_in_process("simulate", "--script", str(tmp_path / "bad.jsonl"))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "line 1" in result.stderr


def test_a_closed_output_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m holdfast demo | head -n 1", shell=True, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_the_demo_runs_live_against_any_compatible_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "script.jsonl").write_bytes(scenario.read_script())
    with simulate("--script", str(tmp_path / "script.jsonl")) as process:
        assert process.stdout is not None
        monkeypatch.setenv("ANTHROPIC_BASE_URL", process.stdout.readline().strip())
        monkeypatch.setenv("ANTHROPIC_API_KEY", "a key of my own")
        output = run("demo", "--live").output
        process.terminate()
    assert output.startswith("anthropic:claude-sonnet-5-5, the real API\n")
    assert output.splitlines()[3:] == demo().splitlines()[3:]


@pytest.mark.parametrize("group", ["curation", "db", "gateway", "keys", "knowledge", "rag", "recovery", "sessions"])
def test_the_help_of_a_group_truncates_no_sentence(group: str) -> None:
    output = CliRunner().invoke(command, [group, "--help"], terminal_width=80).output
    assert "Commands:" in output
    assert "..." not in output.split("Commands:")[1]
    assert all(len(line) <= 80 for line in output.splitlines())


@pytest.mark.parametrize(
    ("amount", "expected"), [(Decimal("-0.0072"), "-$0.0072"), (0.5, "$0.5000"), (Decimal("-0.00001"), "$0.0000")]
)
def test_the_sign_comes_before_the_dollar(amount: Decimal | float, expected: str) -> None:
    assert format_usd(amount, 4) == expected
