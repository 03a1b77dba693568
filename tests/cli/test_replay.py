"""`holdfast replay`: the table, the JSON, the requests it writes, and its refusals."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.recordings import encode_line, tool_loop_recording

from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.providers.anthropic import anthropic

MODEL = ("--model", "anthropic:claude-sonnet-4-6")


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(
        encode_line(tool_loop_recording([10, 2000, 10]))
        + b"broken\n"
        + encode_line(tool_loop_recording([10], id="two"))
    )
    return path


def replay(*arguments: object) -> Result:
    result = CliRunner().invoke(command, ["replay", *map(str, arguments)], catch_exceptions=True)
    if isinstance(result.exception, UserError):
        raise result.exception
    return result


def test_every_policy_has_a_row_cheapest_first(traces: Path) -> None:
    lines = replay(traces, *MODEL).output.splitlines()
    names = [line.split()[0] for line in lines[1 : 2 + len(new_compared_policies())]]
    assert sorted(names) == sorted([AdaptivePolicy.name, *new_compared_policies()])
    costs = [float(line.split()[1].lstrip("$")) for line in lines[1 : 2 + len(new_compared_policies())]]
    assert costs == sorted(costs)
    assert "2 conversations, 6 calls" in "\n".join(lines)
    assert "1 broken lines were skipped" in "\n".join(lines)


def test_json_has_the_ratios(traces: Path) -> None:
    report = json.loads(replay(traces, *MODEL, "--policy", "tail-5m", "--json").output)
    (row,) = report["policies"]
    assert row["policy"] == "tail-5m"
    assert row["to_best"] == 1
    assert row["to_bound"] == pytest.approx(row["cost_usd"] / report["bound_usd"])
    assert row["to_optimum"] == pytest.approx(row["cost_usd"] / report["optimum_usd"])
    assert report["broken_lines"] == 1
    assert report["model_fit"] is None


def test_the_assumed_truth_changes_the_value_of_an_anchor(traces: Path) -> None:
    costs = [
        json.loads(
            replay(traces, *MODEL, "--policy", "upgrade-ping", "--keep-alive", "--truth", truth, "--json").output
        )
        for truth in ("upgrade", "no-upgrade")
    ]
    assert costs[0]["policies"][0]["cost_usd"] < costs[1]["policies"][0]["cost_usd"]


@pytest.mark.parametrize(("keep_alive", "requests"), [(False, 6), (True, 6 + 3)])
def test_requests_are_written_as_they_would_be_sent_with_pings_only_if_allowed(
    traces: Path, tmp_path: Path, keep_alive: bool, requests: int
) -> None:
    out = tmp_path / "requests.jsonl"
    flags = ("--keep-alive",) if keep_alive else ()
    replay(traces, *MODEL, "--policy", "upgrade-ping", "--requests-out", out, *flags)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == requests
    assert {tuple(line) for line in lines} == {("conversation", "at", "body")}
    for line in lines:
        wire = anthropic.decode_request(json.dumps(line["body"]).encode())
        assert 1 <= len(wire.plan.breakpoints) <= 4
        assert line["body"]["messages"][-1]["role"] == "user"
    pinged = [line["body"]["max_tokens"] for line in lines].count(0)
    assert pinged == requests - 6


def test_recorded_usage_is_compared_with_the_cache_model(tmp_path: Path) -> None:
    line = tool_loop_recording([10, 400])
    for message in line["messages"]:  # type: ignore[attr-defined]
        if message["role"] == "assistant":
            message["usage"] = {"input_tokens": 5, "cache_creation_input_tokens": 4_000}
    (tmp_path / "used.jsonl").write_bytes(encode_line(line))
    output = replay(tmp_path, *MODEL, "--policy", "tail-5m").output
    assert "read share of 2 recorded calls: 0.00% reported" in output
    assert "predicted from times and bytes: 1 of 2 (50.0%)" in output
    assert "lost: 1, predicted 0" in output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--policy", "wishful"), "known policies: holdfast, tail-5m"),
        (("--requests-out", "x.jsonl"), "name it with --policy"),
    ],
)
def test_invalid_arguments_are_one_line(traces: Path, arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        replay(traces, *MODEL, *arguments)


def test_traces_without_a_conversation_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("nothing\nat all\n")
    with pytest.raises(UserError, match="none of the 2 lines"):
        replay(tmp_path / "bad.jsonl", *MODEL)


def test_a_file_that_cannot_be_written_is_named(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "nowhere" / "requests.jsonl"
    completed = subprocess.run(
        [sys.executable, "-m", "holdfast", "replay", traces, *MODEL, "--policy", "none", "--requests-out", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr == f"holdfast: {out}: No such file or directory\n"
