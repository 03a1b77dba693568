"""A service with instructions, on each store that supports them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.instruction_service import InstructionService, serve_instructions

STORES = ("sqlite", "postgres")


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
