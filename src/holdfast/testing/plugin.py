"""What does pytest offer to whoever tests an agent? Three fixtures, a mark, two limits and a summary.

A run that uses none of them pays for none: what is heavy is imported by the fixture that needs it.
"""

import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from holdfast.testing.limits import Limits, add_options, limits_of
from holdfast.testing.marks import DECLARED, reason_of

if TYPE_CHECKING:
    from holdfast.testing.calls import Spending
    from holdfast.testing.guard import PrefixGuard
    from holdfast.testing.provider import ServedProvider
    from holdfast.testing.report import CacheReport

SPENT = "holdfast"
"""The property of a test's report that holds what the test has taken."""

SHADOWING = ("ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
"""Variables that would lead an official client away from the simulator."""

_limits = pytest.StashKey[Limits]()
_provider = pytest.StashKey["ServedProvider"]()
_guard = pytest.StashKey["PrefixGuard"]()


@pytest.fixture
def simulated_provider(request: pytest.FixtureRequest) -> Iterator["ServedProvider"]:
    """A simulated provider on a local port, to which the official clients are pointed by their variables."""
    from holdfast.testing.calls import spending
    from holdfast.testing.provider import ServedProvider
    from holdfast.testing.report import packed

    # Not the fixture `monkeypatch`: a test may undo that one.
    with ServedProvider().serving() as provider, pytest.MonkeyPatch.context() as environment:
        for name in SHADOWING:
            environment.delenv(name, raising=False)
        for name, value in provider.environment().items():
            environment.setenv(name, value)
        for name in ("NO_PROXY", "no_proxy"):
            environment.setenv(name, ",".join(filter(None, (os.environ.get(name), "127.0.0.1"))))
        request.node.stash[_provider] = provider
        yield provider
        if (spent := spending(provider.calls)).calls:
            request.node.user_properties.append((SPENT, packed(spent)))


@pytest.fixture
def prefix_guard(request: pytest.FixtureRequest, simulated_provider: "ServedProvider") -> "PrefixGuard":
    """Fails the test if one of its requests does not extend the one that it goes on from."""
    from holdfast.testing.guard import PrefixGuard

    guard = PrefixGuard(request.node, simulated_provider)
    request.node.stash[_guard] = guard
    return guard


@pytest.fixture
def cache_report(simulated_provider: "ServedProvider") -> "CacheReport":
    """What the test has read from the cache, paid and saved so far."""
    from holdfast.testing.report import CacheReport

    return CacheReport(simulated_provider)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", DECLARED)
    config.stash[_limits] = limits_of(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(config.stash[_limits]), "holdfast summary")


def pytest_runtest_setup(item: pytest.Item) -> None:
    reason_of(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """What the guard and the limits find is a failure of the test, and not an error behind it."""
    try:
        outcome = yield
    except Exception:
        _tell_beside_failure(item)
        raise
    if (guard := item.stash.get(_guard, None)) is not None:
        guard.close()
    if (provider := item.stash.get(_provider, None)) is not None and reason_of(item) is None:
        from holdfast.testing.calls import spending
        from holdfast.testing.report import check_read_share

        check_read_share(spending(provider.calls), item.config.stash[_limits])
    return outcome


def _tell_beside_failure(item: pytest.Item) -> None:
    """A test that fails by itself may do so because of the prefix."""
    guard = item.stash.get(_guard, None)
    if guard is None or reason_of(item) is not None:
        return
    from holdfast.testing.guard import told

    if found := guard.breaks:
        item.add_report_section("call", "holdfast", told(found))


class Summary:
    """What all tests took, from whichever process; it stands at the end of the run."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._packed: list[tuple[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._packed += [(report.nodeid, value) for name, value in report.user_properties if name == SPENT]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._packed and session.exitstatus == pytest.ExitCode.OK and self._too_much() is not None:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._packed:
            return
        from holdfast.testing.report import table

        terminalreporter.section("prompt caches (holdfast)")
        for line in table(self._rows()):
            terminalreporter.line(line)
        if (trouble := self._too_much()) is not None:
            terminalreporter.line(trouble, red=True)

    def _too_much(self) -> str | None:
        from holdfast.testing.report import over_cost

        return over_cost(self._rows(), self._limits)

    def _rows(self) -> "list[tuple[str, Spending]]":
        from holdfast.testing.report import unpacked

        return [(test, unpacked(value)) for test, value in self._packed if isinstance(value, dict)]
