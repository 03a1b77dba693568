"""A service that keeps instructions, on each store that can keep them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.instruction_places import Place, place

STORES = ("sqlite", "postgres")


@pytest.fixture(params=STORES)
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with place(request.param, tmp_path) as made:
        yield made


@pytest.fixture(params=STORES)
def furnished(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """With all units and a manifest."""
    with place(request.param, tmp_path) as made:
        made.furnish()
        yield made
