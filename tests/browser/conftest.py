"""One browser for all tests of a process, and one service with a sample that has been played."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import new_ulid, system_clock
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.units.signatures import DeploymentKey
from holdfast.service.sample import SamplePlayer
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.browsers import Page, open_browser
from tests.support.served_service import Client, serve_store


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture(scope="session")
def sample_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A service over a played sample, shared by all tests; tests that change something start their own."""
    folder = tmp_path_factory.mktemp("sampled")
    with SqliteStore(folder / "log.db") as store:
        library = InstructionContext(
            store.instructions,
            InstructionSettings(),
            key=DeploymentKey(bytes(range(32))),
            clock=system_clock,
            new_id=new_ulid,
            warn=lambda line: None,
        )
        with serve_store(store, simulated=True, library=library) as client:
            client.service.workspace = folder / "project"
            client.service.workspace.mkdir()
            player = SamplePlayer(
                store, shipped_models(), pause=0, instructions=library, workspace=client.service.workspace
            )
            client.service.sample, client.service.has_sample_only = player, True
            asyncio.run(player.play())
            yield client


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """A wide screen in the light theme; fails a test that sent requests elsewhere or left console errors."""
    browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    browser.leave()
    browser.resize(1280, 900)
    browser.set_theme("light")
    browser.console_errors()
    browser.requested_urls()
    yield browser
    # A page that stays open would keep polling a stopped service during all later tests.
    browser.leave()
    elsewhere = [url for url in browser.requested_urls() if not url.startswith((browser.url, "about:"))]
    assert elsewhere == [], "a request left the origin"
    assert [line for line in browser.console_errors() if not browser.is_expected(line)] == []
    browser.expected_errors = ()
