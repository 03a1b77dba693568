"""The plugin as a project sees it that tests its agent with it."""

import pytest

AGENT = '''
import urllib.request, json, os
import pytest

LONG = "The quick brown fox jumps over the lazy dog. " * 80
MARK = {"type": "ephemeral"}

def ask(messages, system=LONG):
    """An agent without any client."""
    body = {"model": "claude-sonnet-5-5", "max_tokens": 100, "messages": messages, "cache_control": MARK,
            "system": [{"type": "text", "text": system, "cache_control": MARK}]}
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(),
                                     {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        return json.load(response)["content"]

def talk(*systems):
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


def printed(result: pytest.RunResult) -> str:
    return result.stdout.str()


def test_a_test_that_moves_the_prefix_fails_with_layer_and_byte(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(prefix_guard):\n    talk(LONG + 'A', LONG + 'B')\n")
    result.assert_outcomes(failed=1)
    assert "the cached prefix changed: call 2 does not extend call 1 (anthropic:claude-sonnet-5-5)" in printed(result)
    assert "system.0 differs: layer system, block 0, byte 36" in printed(result)
    assert 'to change it on purpose: @pytest.mark.changes_prefix(reason="...")' in printed(result)


def test_a_test_that_does_not_move_it_passes(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(prefix_guard):\n    talk(LONG, LONG)\n    assert prefix_guard.breaks == ()\n")
    result.assert_outcomes(passed=1)


def test_without_the_guard_nobody_minds(pytester: pytest.Pytester) -> None:
    run(pytester, "def test_it(simulated_provider):\n    talk(LONG, LONG + 'x')\n").assert_outcomes(passed=1)


def test_the_guard_can_be_asked_in_the_middle(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_it(prefix_guard):\n    talk(LONG)\n    prefix_guard.check()\n    talk('A' + LONG, LONG)\n"
        "    with pytest.raises(pytest.fail.Exception, match='call 3 does not extend call 2'):\n"
        "        prefix_guard.check()\n",
    )
    result.assert_outcomes(failed=1)


def test_a_mark_with_a_reason_lets_the_prefix_move(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "@pytest.mark.changes_prefix(reason='to see it')\n"
        "def test_it(prefix_guard):\n    talk(LONG, LONG + 'x')\n    prefix_guard.check()\n"
        "    assert len(prefix_guard.breaks) == 1\n",
        "--strict-markers",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("given", ["", "()", "('to see it')", "(reason=' ')", "(reason=3)", "(because='x')"])
def test_a_mark_without_a_reason_is_an_error(pytester: pytest.Pytester, given: str) -> None:
    result = run(pytester, f"@pytest.mark.changes_prefix{given}\ndef test_it():\n    pass\n")
    result.assert_outcomes(errors=1)
    assert '::test_it: give a reason: @pytest.mark.changes_prefix(reason="...")' in printed(result)


def test_a_mark_that_was_not_needed_is_warned_of(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "@pytest.mark.changes_prefix(reason='long ago')\n"
        "def test_it(prefix_guard):\n    talk(LONG, LONG)\n    prefix_guard.check()\n",
    )
    result.assert_outcomes(passed=1, warnings=1)
    assert "test_it is marked as changing the prefix, but did not change it" in printed(result)


def test_a_failure_tells_of_the_prefix_beside_its_own_reason(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_it(prefix_guard):\n    talk(LONG, LONG + 'x')\n    assert 1 == 2\n")
    result.assert_outcomes(failed=1)
    assert "assert 1 == 2" in printed(result)
    assert "the cached prefix changed: call 2" in printed(result)


def test_a_failure_that_has_nothing_to_do_with_the_prefix_is_told_alone(pytester: pytest.Pytester) -> None:
    tests = "def test_it(prefix_guard):\n    talk(LONG, LONG)\n    assert 1 == 2\n"
    marked = (
        "@pytest.mark.changes_prefix(reason='x')\n"
        "def test_marked(prefix_guard):\n    talk(LONG, LONG + 'x')\n    assert 1 == 2\n"
    )
    result = run(pytester, tests + marked)
    result.assert_outcomes(failed=2)
    assert "prefix moved" not in printed(result)


def test_the_run_ends_with_what_each_test_read_paid_and_saved(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_much(simulated_provider):\n    talk(LONG, LONG, LONG)\n"
        "def test_little(cache_report):\n    talk(LONG)\n"
        "    assert (cache_report.calls, cache_report.read_share) == (1, 0)\n",
    )
    lines = printed(result).splitlines()
    start = next(number for number, line in enumerate(lines) if SUMMARY in line)
    assert lines[start + 1].split() == ["calls", "read", "cost", "saved", "test"]
    assert [line.split()[0] for line in lines[start + 2 : start + 5]] == ["3", "1", "4"]
    assert lines[start + 2].endswith("::test_much")
    assert lines[start + 3].split()[1] == "0.0%"
    assert lines[start + 3].split()[3].startswith("-$0.00")
    assert lines[start + 4].endswith("total")


@pytest.mark.parametrize("fixture", ["", "simulated_provider"])
def test_a_run_without_calls_is_told_of_none(pytester: pytest.Pytester, fixture: str) -> None:
    assert SUMMARY not in printed(run(pytester, f"def test_it({fixture}):\n    pass\n"))


def test_a_run_that_uses_none_of_it_imports_nothing_for_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\n\ndef test_it():\n    assert 'holdfast.testing.plugin' in sys.modules\n"
        "    assert not {'msgspec', 'aiohttp', 'splintr', 'holdfast.simulator'} & sys.modules.keys()\n"
    )
    pytester.runpytest_subprocess("-p", "holdfast.testing.plugin").assert_outcomes(passed=1)


def test_workers_tell_the_run_what_they_took(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        AGENT + "@pytest.mark.parametrize('n', range(4))\ndef test_it(prefix_guard, n):\n    talk(LONG, LONG)\n"
    )
    options = ("-p", "holdfast.testing.plugin", "-p", "xdist", "-n", "2", "--holdfast-max-cost", "0.001")
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=4)
    assert any(line.split()[:1] == ["8"] and line.endswith("total") for line in result.outlines)
    assert "the run cost $" in printed(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("share", ["0.9", "90%"])
def test_a_test_that_reads_too_little_fails(pytester: pytest.Pytester, share: str) -> None:
    result = run(
        pytester, "def test_it(simulated_provider):\n    talk(LONG, LONG)\n", f"--holdfast-min-read-share={share}"
    )
    result.assert_outcomes(failed=1)
    assert "of the prompts were read from the cache, less than 90.0% (--holdfast-min-read-share)" in printed(result)


def test_a_test_that_reads_enough_passes(pytester: pytest.Pytester) -> None:
    tests = "def test_it(simulated_provider):\n    talk(LONG, LONG)\n"
    run(pytester, tests, "--holdfast-min-read-share=0.4").assert_outcomes(passed=1)


def test_one_call_and_a_prefix_that_may_move_need_not_read(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "def test_one_call(simulated_provider):\n    talk(LONG)\n"
        "@pytest.mark.changes_prefix(reason='x')\ndef test_moved(simulated_provider):\n    talk(LONG, 'x' + LONG)\n"
        "def test_no_provider():\n    pass\n",
        "--holdfast-min-read-share=1",
    )
    result.assert_outcomes(passed=3)


def test_limits_stand_in_the_file_too_and_the_command_line_beats_it(pytester: pytest.Pytester) -> None:
    tests = "def test_it(simulated_provider):\n    talk(LONG, LONG)\n"
    run(pytester, tests, ini="holdfast_min_read_share = 90%").assert_outcomes(failed=1)
    run(pytester, tests, "--holdfast-min-read-share=10%", ini="holdfast_min_read_share = 90%").assert_outcomes(passed=1)


def test_a_run_that_costs_too_much_fails_and_names_the_dearest_test(pytester: pytest.Pytester) -> None:
    tests = (
        "def test_dear(simulated_provider):\n    talk(LONG, LONG)\n"
        "def test_cheap(simulated_provider):\n    talk(LONG)\n"
    )
    result = run(pytester, tests, "--holdfast-max-cost=$0.004")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "more than $0.004 (--holdfast-max-cost); the most expensive test is " in printed(result)
    assert "::test_dear: $0.00" in printed(result)
    assert run(pytester, tests, "--holdfast-max-cost=1").ret == pytest.ExitCode.OK


@pytest.mark.parametrize("share", ["80", "-0.1", "much", "nan", "%", "200%"])
def test_what_is_no_share_is_one_line(pytester: pytest.Pytester, share: str) -> None:
    result = run(pytester, "def test_it():\n    pass\n", f"--holdfast-min-read-share={share}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--holdfast-min-read-share: '{share}' is not a share; write 0.8 or 80%" in result.stderr.str()


@pytest.mark.parametrize("cost", ["-1", "free", "inf"])
def test_what_is_no_amount_is_one_line(pytester: pytest.Pytester, cost: str) -> None:
    result = run(pytester, "def test_it():\n    pass\n", ini=f"holdfast_max_cost = {cost}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"holdfast_max_cost: '{cost}' is not an amount in US dollars; write 0.05" in result.stderr.str()


def test_many_tests_are_shown_by_the_dearest(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "@pytest.mark.parametrize('n', range(32))\n"
        "def test_it(simulated_provider, n):\n    talk(*[LONG] * (1 + (n == 31)))\n",
    )
    lines = printed(result).splitlines()
    start = next(number for number, line in enumerate(lines) if SUMMARY in line)
    assert lines[start + 2].endswith("test_it[31]")
    assert lines[start + 32].endswith("  2 more")
    assert lines[start + 33].split()[0] == "33"
