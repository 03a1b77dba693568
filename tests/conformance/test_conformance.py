"""The conformance run with a client of our own: a good one passes, and each kind of failure is noticed."""

import json
import sys
from pathlib import Path

import pytest
from conformance.__main__ import install_available
from conformance.checks import check_run, compare_runs, sum_cost_usd
from conformance.client import Client, Launch, Place
from conformance.clients import CLIENTS
from conformance.model_script import ToolCall, Turn
from conformance.page import ClientResult, render_page
from conformance.run import MODES, ClientRun, answer_as_sent, run_client
from conformance.wrapped import FRAMEWORKS
from msgspec.structs import replace

PROGRAM = """
import json, sys, urllib.request
url, prompt = sys.argv[1:]
tools = [{"name": "append", "input_schema": {"type": "object"}}]
messages = [{"role": "user", "content": prompt}]
while True:
    body = {"model": "claude-sonnet-5-5", "max_tokens": 100, "system": "Harbour. " * 900, "tools": tools}
    headers = {"x-api-key": "any", "anthropic-version": "2023-06-01", "content-type": "application/json"}
    data = json.dumps({**body, "messages": messages}).encode()
    request = urllib.request.Request(f"{url}/v1/messages", data, headers)
    content = json.load(urllib.request.urlopen(request))["content"]
    messages.append({"role": "assistant", "content": content})
    if content[0]["type"] == "text":
        print(content[0]["text"])
        break
    open("notes.txt", "a").write(content[0]["input"]["line"])
    result = {"type": "tool_result", "tool_use_id": content[0]["id"], "content": "appended"}
    messages.append({"role": "user", "content": [result]})
"""
PROMPT = "Add Kittiwake."


def start(place: Place) -> Launch:
    return Launch(((sys.executable, "-c", PROGRAM, place.url, PROMPT),))


CLIENT = Client(
    name="test",
    registry="pypi",
    packages=(("test", "1"),),
    provider="anthropic",
    turns=(Turn(PROMPT, (ToolCall("append", {"line": "Kittiwake"}),), "It is added."),),
    start=start,
    setting="none",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClientRun, ...]:
    folder = tmp_path_factory.mktemp("runs")
    return tuple(run_client(CLIENT, mode, folder=folder / mode) for mode in MODES)


def test_a_client_that_works_has_no_problems(runs: tuple[ClientRun, ...]) -> None:
    assert [list(check_run(CLIENT, run)) for run in runs] == [[], [], []]
    direct, gateway, improved = runs
    assert list(compare_runs(direct, gateway, improved)) == []
    # The client marks nothing, so the rewrite saves, and only the rewritten requests read from the cache.
    usages = [request.reply.usage for request in improved.unimproved if request.reply]
    assert [usage.cache_read for usage in usages] == [0, 0]
    assert sum_cost_usd(improved.simulated) < sum_cost_usd(improved.unimproved)
    again = answer_as_sent(CLIENT, improved.received)
    assert sum_cost_usd(again) == sum_cost_usd(improved.simulated)


def test_what_the_gateway_must_not_do_is_noticed(runs: tuple[ClientRun, ...]) -> None:
    _, gateway, improved = runs
    first, *others = gateway.received
    session = gateway.sessions[0]
    changed_body = replace(gateway, received=(replace(first, body=first.body + b" "), *others))
    changed_response = replace(improved, received=(replace(first, response=b"{}"), *others))
    refused = replace(gateway.sent[0], status=502, by_gateway=True)
    cases = {
        "1 of 2 requests were not forwarded byte for byte": changed_body,
        "other response bytes": changed_response,
        "502 of the gateway": replace(gateway, sent=(refused, *gateway.sent)),
        "0 of 2 model calls were recorded": replace(gateway, sessions=()),
        "no session was recorded": replace(gateway, sessions=()),
        "recorded 0 and 1": replace(gateway, sessions=(session, replace(session, id="other"))),
        "the child of another session": replace(gateway, sessions=(replace(session, parent="other"),)),
        "cache breaks: expected 0": replace(gateway, sessions=(replace(session, verdicts=("held", "miss")),)),
        "gateway log: trouble": replace(gateway, gateway_log="trouble\nstopped\n"),
        "exit statuses 1": replace(gateway, exit_statuses=(1,)),
        "tools were not called": replace(gateway, notes=""),
        "was not shown": replace(gateway, output=""),
    }
    assert [text for text, run in cases.items() if not any(text in line for line in check_run(CLIENT, run))] == []


def test_an_improved_run_that_costs_more_or_calls_more_is_noticed(runs: tuple[ClientRun, ...]) -> None:
    direct, gateway, improved = runs
    # The client marks nothing, so the rewrite saves; the other way round it would cost.
    costly = replace(improved, simulated=improved.unimproved, unimproved=improved.simulated)
    assert "--improve costs more" in "".join(compare_runs(direct, gateway, costly))
    unanswered = replace(improved, unimproved=improved.unimproved[:-1])
    assert "1 of 2 model calls could be answered" in "".join(compare_runs(direct, gateway, unanswered))
    shorter = replace(direct, simulated=direct.simulated[:-1])
    assert list(compare_runs(shorter, gateway, improved)) == ["the runs made 1, 2 and 2 model calls"]


def test_a_known_problem_is_no_regression_until_it_is_gone() -> None:
    client = replace(CLIENT, known_problems=("costs more",))
    none = dict.fromkeys(MODES, ())
    assert not ClientResult(client, "1", none, ("--improve costs more: ...",)).list_regressions()
    assert ClientResult(client, "1", none, ("something else", "costs more")).list_regressions() == ["something else"]
    assert "no longer seen" in ClientResult(client, "1", none).list_regressions()[0]


def test_the_page_names_every_client_with_its_pinned_version() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
    for client in CLIENTS:
        assert all(f"{name} {version}" in page for name, version in client.packages), client.name
        assert client.setting in page
    assert "never tried against a live provider" in page.replace("\n", " ")


def test_the_page_lists_problems() -> None:
    problems = {**dict.fromkeys(MODES, ()), "gateway": ("no session was recorded",)}
    page = render_page([ClientResult(CLIENT, "1", problems)], "2026-01-01")
    assert "| test | 1 | ok | FAILED | ok |" in page
    assert "- test, gateway: no session was recorded" in page


def test_the_programs_are_named_in_the_table(tmp_path: Path) -> None:
    place = Place("http://127.0.0.1:1", tmp_path, tmp_path, tmp_path)
    words = json.dumps([client.start(place).commands for client in CLIENTS])
    words += json.dumps([f"wrapped_{name.replace('-', '_')}.py" for name in FRAMEWORKS])
    programs = sorted(path.name for path in (Path(__file__).parents[2] / "conformance" / "programs").iterdir())
    assert [name for name in programs if name not in words and not name.startswith("__")] == []


def test_ci_skips_what_cannot_be_installed_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("conformance.client.FOLDER", tmp_path)
    # A machine without npm and without a package index.
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in {"INDEX_URL": "http://127.0.0.1:9", "CONFIG_FILE": "/dev/null", "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    installed = replace(CLIENT, name="installed", folder_name="")
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "installed.txt").write_text("test==1")
    missing = [replace(CLIENT, name=name, registry="npm") for name in ("first", "second")]
    available = list(install_available([installed, *missing, replace(CLIENT, name="third")]))
    assert [client.name for client in available] == ["installed"]
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("clients skipped: first, second: npm is not installed; third: python failed: ERROR: ")
