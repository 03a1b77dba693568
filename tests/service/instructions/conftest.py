"""A service with instructions, on each store that supports them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.instruction_service import InstructionService, serve_instructions

HERE = Path(__file__).parent
STORES = ("sqlite", "postgres")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_store: run every case on PostgreSQL too, not only the first")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs each case on SQLite and the first case of each test on PostgreSQL; `HOLDFAST_EVERY_CASE=1` runs all on both.

    A test marked `every_store` always runs all cases on both.
    """
    if os.environ.get("HOLDFAST_EVERY_CASE"):
        return
    seen: set[str] = set()
    left_out: dict[pytest.Item, None] = {}
    for item in items:
        name, _, case = item.nodeid.partition("[")
        if item.get_closest_marker("every_store") is not None:
            continue
        if HERE in item.path.parents and case.startswith("postgres-"):
            if name in seen:
                left_out[item] = None
            seen.add(name)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(params=STORES)
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InstructionService]:
    with serve_instructions(request.param, tmp_path) as made:
        yield made


@pytest.fixture(params=STORES)
def published_service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InstructionService]:
    """A service with all units written and a manifest published."""
    with serve_instructions(request.param, tmp_path) as made:
        made.publish_all()
        yield made
