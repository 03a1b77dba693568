"""`holdfast replay --via`: recorded conversations through the code of a gateway, a session and a wrapped client."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.recordings import SYSTEM, encode_line, parallel_tools_recording, tool_loop_recording

from holdfast.catalog.lookup import find_model
from holdfast.cli.costs.entry_points import ENTRY_POINTS, WrapPlayer, create_player
from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.events.payloads.cache import CachePinged
from holdfast.planning.policies.fixed import FixedPolicy, prefix_and_tail_rule
from holdfast.replay.comparison import compare_policies
from holdfast.replay.playback import ReplayResult, make_replay_setting
from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import parse_trace_line

MODEL = "anthropic:claude-sonnet-4-6"


def read_recording(line: dict[str, object]) -> Recording:
    recording = parse_trace_line(encode_line(line))
    assert isinstance(recording, Recording)
    return recording


def play(
    recordings: Sequence[Recording], *, upgrade: bool = True, keep_alive: bool = False
) -> list[dict[str, ReplayResult]]:
    """The results of each recording, by policy."""
    setting = make_replay_setting(find_model(MODEL), ttl_upgrade=upgrade)
    setting = msgspec.structs.replace(setting, keep_alive=keep_alive)
    players = [create_player(name, setting) for name in ENTRY_POINTS]
    results = []
    for recording in recordings:
        for player in players:
            player.open_recording(recording)
        tail = FixedPolicy("tail-5m", prefix_and_tail_rule("5m", "5m"))
        played = compare_policies(recording, (*players, tail), setting).results
        results.append({result.policy: result for result in played})
    return results


def replay(*arguments: object) -> Result:
    result = CliRunner().invoke(command, ["replay", *map(str, arguments)])
    if isinstance(result.exception, UserError):
        raise result.exception
    return result


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(encode_line(tool_loop_recording([10, 2000, 10])) + encode_line(parallel_tools_recording(3, 25)))
    return path


@pytest.mark.parametrize("truth", ["upgrade", "no-upgrade"])
def test_entry_points_have_a_row_beside_the_policies_and_cost_the_same(traces: Path, truth: str) -> None:
    arguments = (traces, "--model", MODEL, "--truth", truth, *(f"--via={name}" for name in ENTRY_POINTS), "--json")
    rows = {row["policy"]: row for row in json.loads(replay(*arguments).output)["policies"]}
    assert {"holdfast", "tail-5m", "via-gateway", "via-session", "via-wrap"} <= rows.keys()
    for name in ("gateway", "wrap"):
        assert rows[f"via-{name}"]["cost_usd"] == pytest.approx(rows["via-session"]["cost_usd"], rel=0.01)
    assert rows["via-gateway"]["cost_usd"] < rows["none"]["cost_usd"]
    table = replay(*arguments[:-1]).output
    assert "via-gateway" in table
    assert "via-session" in table


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_pings_of_every_entry_point_follow_the_planner(tmp_path: Path, entry_point: str) -> None:
    traces = tmp_path / "traces.jsonl"
    # A client's conversation without a pause is planned like a session's from the eighth call on.
    traces.write_bytes(encode_line(tool_loop_recording([*[10] * 9, 2000, 2000, 10])))
    arguments = (traces, "--model", MODEL, "--via", entry_point, "--keep-alive", "--json")
    rows = {row["policy"]: row for row in json.loads(replay(*arguments).output)["policies"]}
    assert rows[f"via-{entry_point}"]["pings"] == rows["holdfast"]["pings"] > 0
    assert rows[f"via-{entry_point}"]["cost_usd"] == pytest.approx(rows["holdfast"]["cost_usd"], rel=0.01)


def test_the_pings_of_a_wrapped_client_are_recorded_as_its_planner_learns_from_its_log() -> None:
    recording = read_recording(tool_loop_recording([*[10] * 9, 2000, 2000, 10]))
    setting = msgspec.structs.replace(make_replay_setting(find_model(MODEL), ttl_upgrade=True), keep_alive=True)
    player = create_player("wrap", setting)
    assert isinstance(player, WrapPlayer)
    player.open_recording(recording)
    (result,) = compare_policies(recording, (player,), setting).results
    recorded = [event for event in player.recorder.read_events() if isinstance(event.payload, CachePinged)]
    assert len(recorded) == sum(call.is_ping for call in result.calls) > 0


def test_a_plan_learns_from_the_usage_of_the_calls_before() -> None:
    """After long pauses both choose the 1-hour TTL, which no fixed 5-minute plan does."""
    results = play([read_recording(tool_loop_recording([1500] * 8))])[0]
    for name in ("via-gateway", "via-session", "via-wrap"):
        assert results[name].usage.cache_write_1h > 0
        assert results[name].cost_usd < results["tail-5m"].cost_usd


def test_a_recording_that_goes_back_is_played_with_what_it_kept() -> None:
    recording = read_recording(tool_loop_recording([10, 10, 10, 10]))
    calls = list(recording.calls)
    calls[3] = msgspec.structs.replace(calls[3], kept_entries=1)
    results = play([msgspec.structs.replace(recording, calls=tuple(calls))])[0]
    sizes = {name: [call.usage.tokens_sent for call in result.calls] for name, result in results.items()}
    assert sizes["via-session"] == sizes["via-gateway"] == sizes["via-wrap"] == sizes["tail-5m"]
    assert sizes["tail-5m"][3] < sizes["tail-5m"][2]


def test_text_that_the_gateway_moves_is_not_cached_and_leaves_the_rest_cached() -> None:
    """Each conversation has another time in its system prompt: as recorded, the second one reads nothing."""
    lines = []
    for minute in range(2):
        line = tool_loop_recording([10, 10])
        line["system"] = f"{SYSTEM}\n\nCurrent time: 2026-03-01 10:{minute:02d}:00\n"
        lines.append(read_recording(line))
    calls = [msgspec.structs.replace(call, at=call.at + 60) for call in lines[1].calls]
    played = [lines[0], msgspec.structs.replace(lines[1], calls=tuple(calls))]
    for results in play(played):
        gateway, recorded = results["via-gateway"].calls, results["tail-5m"].calls
        # The moved text is a block of its own at the end, so the prompt keeps its size and loses nothing but that.
        assert gateway[-1].usage.tokens_sent == pytest.approx(recorded[-1].usage.tokens_sent, abs=40)
        assert 0 < gateway[-1].usage.input < 60
        assert gateway[-1].usage.cache_read > 0.5 * gateway[-1].usage.tokens_sent


def test_a_wrapped_client_cannot_be_played_without_its_sdk(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(UserError, match="install it with: pip install anthropic"):
        replay(traces, "--model", MODEL, "--via", "wrap")


def test_requests_are_written_for_a_policy_only(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "requests.jsonl"
    with pytest.raises(UserError, match="without --via"):
        replay(traces, "--model", MODEL, "--policy", "tail-5m", "--via", "gateway", "--requests-out", out)


@pytest.mark.parametrize(
    "model",
    [
        "openai:gpt-6.1-sol",
        "openai-chat:gpt-6.1-sol",
        "openai:gpt-5.4",
        "gemini:gemini-3.8-flash",
        "openrouter:anthropic/claude-sonnet-5.5",
    ],
)
def test_entry_points_cost_the_same_at_every_provider(traces: Path, model: str) -> None:
    result = json.loads(replay(traces, "--model", model, "--via", "gateway", "--via", "session", "--json").output)
    rows = result.get("entry_points") or result["policies"]
    costs = {row.get("entry_point") or row["policy"]: row["cost_usd"] for row in rows}
    assert costs["via-gateway"] == pytest.approx(costs["via-session"], rel=0.01)
    assert costs["via-gateway"] > 0


def test_a_model_without_breakpoints_shows_the_entry_points_alone(traces: Path) -> None:
    output = replay(traces, "--model", "gemini:gemini-3.8-flash", "--via", "gateway").output
    assert "via-gateway" in output
    assert "2 conversations" in output
