"""What pytest does for the mutation tool: note which test runs which line, or run tests in a given order."""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest


def pytest_configure(config: pytest.Config) -> None:
    if folder := os.environ.get("MUTATE_LEARN"):
        config.pluginmanager.register(Learning(Path(folder)))
    if tests := os.environ.get("MUTATE_TESTS"):
        config.pluginmanager.register(Choice(json.loads(Path(tests).read_text())))


class Learning:
    """A line is run by the test that was on, be it in a thread, a task, a fixture or a subprocess."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._switch(item.nodeid)
        started = time.perf_counter()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.perf_counter() - started
            self._switch("")

    def pytest_sessionfinish(self) -> None:
        (self._folder / f"seconds-{os.getpid()}.json").write_text(json.dumps(self._seconds))
        # Workers of xdist end without the clean-up that would save it.
        if measured := coverage.Coverage.current():
            measured.stop()
            measured.save()

    def _switch(self, context: str) -> None:
        os.environ["MUTATE_CONTEXT"] = context
        if measured := coverage.Coverage.current():
            measured.switch_context(context)


class Choice:
    def __init__(self, tests: list[str]) -> None:
        self._place = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._place])
        items[:] = sorted(
            (item for item in items if item.nodeid in self._place), key=lambda item: self._place[item.nodeid]
        )
