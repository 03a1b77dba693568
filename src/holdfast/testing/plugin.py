"""The pytest plugin for testing agents: three fixtures, a mark, two limits and a summary.

Each fixture imports what it needs, so a test run that uses none of them starts as fast as without the plugin.
"""

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from holdfast.testing.limits import Limits, add_limit_options, read_limits
from holdfast.testing.markers import MARK_DECLARATION, get_mark_reason

if TYPE_CHECKING:
    from holdfast.testing.cache_report import CacheReport
    from holdfast.testing.prefix_guard import PrefixGuard
    from holdfast.testing.simulated_provider import ServedProvider, Spending

SPENDING_PROPERTY = "holdfast"
"""Name of the report property that holds the spending of a test."""

BYPASSING_VARIABLES = (
    "ANTHROPIC_AUTH_TOKEN",
    "GOOGLE_API_KEY",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_GENAI_USE_ENTERPRISE",
)
"""Environment variables that would make an official client bypass the simulator."""

_limits = pytest.StashKey[Limits]()
_provider = pytest.StashKey["ServedProvider"]()
_guard = pytest.StashKey["PrefixGuard"]()


@pytest.fixture
def simulated_provider(request: pytest.FixtureRequest) -> Iterator["ServedProvider"]:
    """A simulated provider on a local port; environment variables point the official clients to it."""
    from holdfast.testing.cache_report import pack_spending
    from holdfast.testing.simulated_provider import ServedProvider, sum_spending

    # Not the `monkeypatch` fixture: a test may call its undo().
    with ServedProvider().serve_on_port() as provider, pytest.MonkeyPatch.context() as environment:
        for name in BYPASSING_VARIABLES:
            environment.delenv(name, raising=False)
        for name, value in provider.client_environment().items():
            environment.setenv(name, value)
        # A proxy configured in the environment must not receive the requests for the local port.
        for name in ("NO_PROXY", "no_proxy"):
            environment.setenv(name, ",".join(filter(None, (os.environ.get(name), "127.0.0.1"))))
        request.node.stash[_provider] = provider
        yield provider
        if (spent := sum_spending(provider.calls)).calls:
            request.node.user_properties.append((SPENDING_PROPERTY, pack_spending(spent)))


@pytest.fixture
def prefix_guard(request: pytest.FixtureRequest, simulated_provider: "ServedProvider") -> "PrefixGuard":
    """Fails the test if one of its requests does not extend the request that it continues."""
    from holdfast.testing.prefix_guard import PrefixGuard

    guard = PrefixGuard(request.node, simulated_provider)
    request.node.stash[_guard] = guard
    return guard


@pytest.fixture
def cache_report(simulated_provider: "ServedProvider") -> "CacheReport":
    """What the test has read from the cache, spent and saved so far."""
    from holdfast.testing.cache_report import CacheReport

    return CacheReport(simulated_provider)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_limit_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK_DECLARATION)
    config.stash[_limits] = read_limits(config)
    # pytest-xdist workers have `workerinput`; only the main process prints the summary.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunSummary(config.stash[_limits]), "holdfast summary")


def pytest_runtest_setup(item: pytest.Item) -> None:
    get_mark_reason(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Check guard and limits inside the call phase, so that pytest reports a failure and not a teardown error."""
    try:
        outcome = yield
    except Exception:
        _add_breaks_to_report(item)
        raise
    if (guard := item.stash.get(_guard, None)) is not None:
        guard.check(at_end=True)
    if (provider := item.stash.get(_provider, None)) is not None and get_mark_reason(item) is None:
        from holdfast.testing.cache_report import check_read_share
        from holdfast.testing.simulated_provider import sum_spending

        check_read_share(sum_spending(provider.calls), item.config.stash[_limits])
    return outcome


def _add_breaks_to_report(item: pytest.Item) -> None:
    """Add the prefix breaks to the report of a test that failed otherwise: they may be the cause."""
    guard = item.stash.get(_guard, None)
    if guard is None or get_mark_reason(item) is not None:
        return
    from holdfast.testing.prefix_guard import describe_breaks

    if breaks := guard.breaks:
        item.add_report_section("call", "holdfast", describe_breaks(breaks))


class RunSummary:
    """Collects the spending of all tests, from all worker processes, and prints it at the end of the run."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._packed: list[tuple[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            properties = report.user_properties
            self._packed += [(report.nodeid, value) for name, value in properties if name == SPENDING_PROPERTY]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._packed and session.exitstatus == pytest.ExitCode.OK and self._over_cost_message() is not None:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._packed:
            return
        from holdfast.testing.cache_report import format_spending_table

        terminalreporter.section("prompt caches (holdfast)")
        for line in format_spending_table(self._rows()):
            terminalreporter.line(line)
        if (message := self._over_cost_message()) is not None:
            terminalreporter.line(message, red=True)

    def _over_cost_message(self) -> str | None:
        from holdfast.testing.cache_report import describe_over_cost

        return describe_over_cost(self._rows(), self._limits)

    def _rows(self) -> "list[tuple[str, Spending]]":
        from holdfast.testing.cache_report import unpack_spending

        return [(test, unpack_spending(value)) for test, value in self._packed if isinstance(value, dict)]
