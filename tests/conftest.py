"""The environment of every test: reproducible examples, an empty home, and no credentials of the user who runs it."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Unpack

import pytest
from hypothesis import settings

from holdfast.runtime.options import Options
from holdfast.testing.markers import enforce_prefix_mark
from tests.support.agents import Agent, MakeAgent, Step, changed_prefixes, make_agent
from tests.support.postgres_server import new_database, reused_database
from tests.support.sql_statements import check_recorded, forget_recorded, start_recording

# Many tests run in parallel: threads that compute one sum together would only compete for the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A client loads the authorities that it trusts when it is made: 20 ms for all of the system's. The tests connect to
# this machine only, and this authority has signed nothing.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "authority.pem")
# `check` runs on every change with fixed examples; `make deep` uses the others, with new random examples each time.
settings.register_profile("check", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("wide", deadline=None, max_examples=300, print_blob=True)
settings.register_profile("deep", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))

FOREIGN = ("ANTHROPIC_", "CLAUDE_", "OPENAI_", "OPENROUTER_", "GEMINI_", "GOOGLE_", "HOLDFAST_", "XDG_")


start_recording()


@pytest.fixture(autouse=True)
def statements_with_known_plans(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test of the stores or of analytics that sends PostgreSQL a statement whose plan no test reads."""
    # Other tests in this process have sent statements too.
    forget_recorded()
    yield
    if {"stores", "ledger"} & set(request.path.parts):
        check_recorded()


# Objects loaded before the first test live to the end: scanning them for garbage takes a sixth of the time.
@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Not `monkeypatch` and `tmp_path`: a test may undo the first, and expects the second to be empty.
@pytest.fixture(autouse=True)
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as environment:
        for name in tuple(os.environ):
            if name.startswith(FOREIGN) and name != "HOLDFAST_GOLDEN":
                environment.delenv(name)
        environment.setenv("HOME", str(home))
        environment.setenv("HOLDFAST_HOME", str(home / ".holdfast"))
        # pytest started by a test names the plugins it needs: loading all installed ones takes seconds.
        environment.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        yield


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of an empty database on a real server."""
    with new_database() as url:
        yield url


@pytest.fixture
def emptied_postgres() -> Iterator[str]:
    """The URL of a database with our tables and nothing in them, for tests that do not create them."""
    with reused_database() as url:
        yield url


@pytest.fixture
def agent(request: pytest.FixtureRequest) -> Iterator[MakeAgent]:
    """Builds agents, and checks at the end that each of their requests extended the one before.

    A test that changes the prefix on purpose declares it: `@pytest.mark.changes_prefix(reason="...")`.
    """
    agents: list[Agent] = []

    def make(*steps: Step, **options: Unpack[Options]) -> Agent:
        agents.append(make_agent(*steps, **options))
        return agents[-1]

    yield make
    changes = [line for built in agents for line in changed_prefixes(built.events)]
    enforce_prefix_mark(request.node, "\n".join(changes) or None, at_end=True)
