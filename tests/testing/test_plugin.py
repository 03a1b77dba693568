"""The plugin from the view of a project that tests its agent with it."""

import pytest

AGENT = '''
import urllib.request, json, os
import pytest

LONG = "The quick brown fox jumps over the lazy dog. " * 80
CACHE_CONTROL = {"type": "ephemeral"}

def ask(messages, system=LONG):
    """An agent without any client."""
    body = {"model": "claude-sonnet-5-5", "max_tokens": 100, "messages": messages, "cache_control": CACHE_CONTROL,
            "system": [{"type": "text", "text": system, "cache_control": CACHE_CONTROL}]}
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(),
                                     {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        return json.load(response)["content"]

def converse(*systems):
    messages = []
    for number, system in enumerate(systems):
        messages.append({"role": "user", "content": f"question {number}"})
        messages.append({"role": "assistant", "content": ask(messages, system)})
'''
SUMMARY = "prompt caches (holdfast)"


def run(pytester: pytest.Pytester, tests: str, *options: str, ini: str = "") -> pytest.RunResult:
    settings = "addopts = -p no:cacheprovider\nfilterwarnings = default"
    pytester.makeini(f"[pytest]\n{settings}\n{ini}\n")
    pytester.makepyfile(AGENT + tests)
    return pytester.runpytest_inprocess("-p", "holdfast.testing.plugin", *options)


def output_of(result: pytest.RunResult) -> str:
    return result.stdout.str()


def test_a_test_that_changes_the_prefix_fails_with_layer_and_byte(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(prefix_guard):\n    converse(LONG + 'A', LONG + 'B')\n")
    result.assert_outcomes(failed=1)
    assert "the cached prefix changed: call 2 does not extend call 1 (anthropic:claude-sonnet-5-5)" in output_of(result)
    assert "system.0 differs: layer system, block 0, byte 36" in output_of(result)
    assert 'to change it on purpose: @pytest.mark.changes_prefix(reason="...")' in output_of(result)


def test_a_test_that_keeps_the_prefix_passes(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, "def test_it(prefix_guard):\n    converse(LONG, LONG)\n    assert prefix_guard.breaks == ()\n"
    )
    result.assert_outcomes(passed=1)


def test_without_the_guard_a_changed_prefix_is_ignored(pytester: pytest.Pytester) -> None:
    run(pytester, "def test_it(simulated_provider):\n    converse(LONG, LONG + 'x')\n").assert_outcomes(passed=1)


def test_the_guard_can_be_checked_in_the_middle(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_it(prefix_guard):\n    converse(LONG)\n    prefix_guard.check()\n    converse('A' + LONG, LONG)\n"
        "    with pytest.raises(pytest.fail.Exception, match='call 3 does not extend call 2'):\n"
        "        prefix_guard.check()\n",
    )
    result.assert_outcomes(failed=1)


def test_a_marker_with_a_reason_allows_the_change(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "@pytest.mark.changes_prefix(reason='to see it')\n"
        "def test_it(prefix_guard):\n    converse(LONG, LONG + 'x')\n    prefix_guard.check()\n"
        "    assert len(prefix_guard.breaks) == 1\n",
        "--strict-markers",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("arguments", ["", "()", "('to see it')", "(reason=' ')", "(reason=3)", "(because='x')"])
def test_a_marker_without_a_reason_is_an_error(pytester: pytest.Pytester, arguments: str) -> None:
    result = run(pytester, f"@pytest.mark.changes_prefix{arguments}\ndef test_it():\n    pass\n")
    result.assert_outcomes(errors=1)
    assert '::test_it: give a reason: @pytest.mark.changes_prefix(reason="...")' in output_of(result)


def test_an_unneeded_marker_is_warned_about(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "@pytest.mark.changes_prefix(reason='long ago')\n"
        "def test_it(prefix_guard):\n    converse(LONG, LONG)\n    prefix_guard.check()\n",
    )
    result.assert_outcomes(passed=1, warnings=1)
    assert "test_it is marked as changing the prefix, but did not change it" in output_of(result)


def test_a_failed_test_also_reports_the_changed_prefix(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(prefix_guard):\n    converse(LONG, LONG + 'x')\n    assert 1 == 2\n")
    result.assert_outcomes(failed=1)
    assert "assert 1 == 2" in output_of(result)
    assert "the cached prefix changed: call 2" in output_of(result)


def test_a_failure_without_a_prefix_change_is_reported_alone(pytester: pytest.Pytester) -> None:
    tests = "def test_it(prefix_guard):\n    converse(LONG, LONG)\n    assert 1 == 2\n"
    with_marker = (
        "@pytest.mark.changes_prefix(reason='x')\n"
        "def test_marked(prefix_guard):\n    converse(LONG, LONG + 'x')\n    assert 1 == 2\n"
    )
    result = run(pytester, tests + with_marker)
    result.assert_outcomes(failed=2)
    assert "prefix changed" not in output_of(result)


def test_the_run_ends_with_the_reads_cost_and_savings_of_each_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_much(simulated_provider):\n    converse(LONG, LONG, LONG)\n"
        "def test_little(cache_report):\n    converse(LONG)\n"
        "    assert (cache_report.calls, cache_report.read_share) == (1, 0)\n",
    )
    lines = output_of(result).splitlines()
    start = next(number for number, line in enumerate(lines) if SUMMARY in line)
    assert lines[start + 1].split() == ["calls", "read", "cost", "saved", "test"]
    assert [line.split()[0] for line in lines[start + 2 : start + 5]] == ["3", "1", "4"]
    assert lines[start + 2].endswith("::test_much")
    assert lines[start + 3].split()[1] == "0.0%"
    assert lines[start + 3].split()[3].startswith("-$0.00")
    assert lines[start + 4].endswith("total")


@pytest.mark.parametrize("fixture", ["", "simulated_provider"])
def test_a_run_without_calls_has_no_summary(pytester: pytest.Pytester, fixture: str) -> None:
    assert SUMMARY not in output_of(run(pytester, f"def test_it({fixture}):\n    pass\n"))


def test_a_run_without_the_fixtures_imports_nothing_for_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\n\ndef test_it():\n    assert 'holdfast.testing.plugin' in sys.modules\n"
        "    assert not {'msgspec', 'aiohttp', 'splintr', 'holdfast.simulator'} & sys.modules.keys()\n"
    )
    pytester.runpytest_subprocess("-p", "holdfast.testing.plugin").assert_outcomes(passed=1)


def test_xdist_workers_report_their_usage_to_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        AGENT + "@pytest.mark.parametrize('n', range(4))\ndef test_it(prefix_guard, n):\n    converse(LONG, LONG)\n"
    )
    options = ("-p", "holdfast.testing.plugin", "-p", "xdist", "-n", "2", "--holdfast-max-cost", "0.001")
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=4)
    assert any(line.split()[:1] == ["8"] and line.endswith("total") for line in result.outlines)
    assert "the run cost $" in output_of(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("share", ["0.9", "90%"])
def test_a_test_that_reads_too_little_fails(pytester: pytest.Pytester, share: str) -> None:
    result = run(
        pytester, "def test_it(simulated_provider):\n    converse(LONG, LONG)\n", f"--holdfast-min-read-share={share}"
    )
    result.assert_outcomes(failed=1)
    assert "of the prompts were read from the cache, less than 90.0% (--holdfast-min-read-share)" in output_of(result)


def test_a_test_that_reads_enough_passes(pytester: pytest.Pytester) -> None:
    tests = "def test_it(simulated_provider):\n    converse(LONG, LONG)\n"
    run(pytester, tests, "--holdfast-min-read-share=0.4").assert_outcomes(passed=1)


def test_single_calls_and_marked_tests_are_exempt_from_the_minimum_read_share(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_one_call(simulated_provider):\n    converse(LONG)\n"
        "@pytest.mark.changes_prefix(reason='x')\ndef test_moved(simulated_provider):\n    converse(LONG, 'x' + LONG)\n"
        "def test_no_provider():\n    pass\n",
        "--holdfast-min-read-share=1",
    )
    result.assert_outcomes(passed=3)


def test_limits_can_be_set_in_the_ini_file_and_the_command_line_wins(pytester: pytest.Pytester) -> None:
    tests = "def test_it(simulated_provider):\n    converse(LONG, LONG)\n"
    run(pytester, tests, ini="holdfast_min_read_share = 90%").assert_outcomes(failed=1)
    run(pytester, tests, "--holdfast-min-read-share=10%", ini="holdfast_min_read_share = 90%").assert_outcomes(passed=1)


def test_a_run_that_costs_too_much_fails_and_names_the_most_expensive_test(pytester: pytest.Pytester) -> None:
    tests = (
        "def test_expensive(simulated_provider):\n    converse(LONG, LONG)\n"
        "def test_cheap(simulated_provider):\n    converse(LONG)\n"
    )
    result = run(pytester, tests, "--holdfast-max-cost=$0.004")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "more than $0.004 (--holdfast-max-cost); the most expensive test is " in output_of(result)
    assert "::test_expensive: $0.00" in output_of(result)
    assert run(pytester, tests, "--holdfast-max-cost=1").ret == pytest.ExitCode.OK


@pytest.mark.parametrize("share", ["80", "-0.1", "much", "nan", "%", "200%"])
def test_an_invalid_share_is_a_one_line_error(pytester: pytest.Pytester, share: str) -> None:
    result = run(pytester, "def test_it():\n    pass\n", f"--holdfast-min-read-share={share}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--holdfast-min-read-share: '{share}' is not a share; write 0.8 or 80%" in result.stderr.str()


@pytest.mark.parametrize("cost", ["-1", "free", "inf"])
def test_an_invalid_amount_is_a_one_line_error(pytester: pytest.Pytester, cost: str) -> None:
    result = run(pytester, "def test_it():\n    pass\n", ini=f"holdfast_max_cost = {cost}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"holdfast_max_cost: '{cost}' is not an amount in US dollars; write 0.05" in result.stderr.str()


def test_of_many_tests_the_most_expensive_are_shown(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "@pytest.mark.parametrize('n', range(32))\n"
        "def test_it(simulated_provider, n):\n    converse(*[LONG] * (1 + (n == 31)))\n",
    )
    lines = output_of(result).splitlines()
    start = next(number for number, line in enumerate(lines) if SUMMARY in line)
    assert lines[start + 2].endswith("test_it[31]")
    assert lines[start + 32].endswith("  2 more")
    assert lines[start + 33].split()[0] == "33"
