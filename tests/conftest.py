"""What every test stands on: reproducible examples, an empty home, and no credentials of whoever runs it."""

import gc
import os
from collections.abc import Generator, Iterator
from typing import Unpack

import pytest
from hypothesis import settings

from holdfast.runtime.options import Options
from holdfast.testing.markers import enforce_prefix_mark
from tests.support.agents import Agent, MakeAgent, Step, changed_prefixes, make_agent
from tests.support.postgres_server import new_database, reused_database

# Many tests run side by side: threads that wait for each other's part of a sum would only take their time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The first is for every change, and finds what is plainly wrong; the others, by `make deep`, look elsewhere every time.
settings.register_profile("check", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("wide", deadline=None, max_examples=300, print_blob=True)
settings.register_profile("deep", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))

FOREIGN = ("ANTHROPIC_", "CLAUDE_", "OPENAI_", "OPENROUTER_", "GEMINI_", "GOOGLE_", "HOLDFAST_", "XDG_")


# What is loaded before the first test stays to the end: to look through it for garbage takes a sixth of the time.
@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Not `monkeypatch` and `tmp_path`: a test may undo the one, and expects the other to be empty.
@pytest.fixture(autouse=True)
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as environment:
        for name in tuple(os.environ):
            if name.startswith(FOREIGN) and name != "HOLDFAST_GOLDEN":
                environment.delenv(name)
        environment.setenv("HOME", str(home))
        environment.setenv("HOLDFAST_HOME", str(home / ".holdfast"))
        # A run of pytest within a test names what it needs: to load all that is installed takes seconds.
        environment.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        yield


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of an empty database on a real server."""
    with new_database() as url:
        yield url


@pytest.fixture
def emptied_postgres() -> Iterator[str]:
    """The URL of a database with our tables and nothing in them, for tests that are not about how they are made."""
    with reused_database() as url:
        yield url


@pytest.fixture
def agent(request: pytest.FixtureRequest) -> Iterator[MakeAgent]:
    """Builds agents, and checks at the end that each of their requests extended the one before.

    A test that moves the prefix on purpose says so: `@pytest.mark.changes_prefix(reason="...")`.
    """
    made: list[Agent] = []

    def make(*steps: Step, **options: Unpack[Options]) -> Agent:
        made.append(make_agent(*steps, **options))
        return made[-1]

    yield make
    moved = [line for one in made for line in changed_prefixes(one.events)]
    enforce_prefix_mark(request.node, "\n".join(moved) or None, at_end=True)
