"""The OpenAPI document: complete, and consistent with the service's responses."""

import cProfile
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.instruction_service import library_of, open_store_of_kind
from tests.support.served_service import Client, serve_store
from tests.support.simulated_gemini import LONG

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.runtime.session import Session
from holdfast.service.app import make_app
from holdfast.service.context import AppContext
from holdfast.service.dashboard.static_files import load_page_files
from holdfast.service.http.openapi import has_body, make_openapi, make_operation_id
from holdfast.service.route_table import ROUTES
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore

# Read before tests clear the environment. All boundary values of all schemas take thousands of requests.
PHASES = "coverage,fuzzing" if os.environ.get("HOLDFAST_EVERY_CASE") else "fuzzing"
EXAMPLES_MAX = 5
SECONDS_MAX = 200


@pytest.fixture
def client() -> Iterator[Client]:
    with serve_store(MemoryStore()) as served:
        yield served


def test_document_describes_every_route_and_nothing_else(client: Client) -> None:
    document = client.get("/openapi.json")
    described = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert described == {(route.method, route.path) for route in ROUTES}
    assert document["openapi"] == "3.1.0"
    names = [make_operation_id(route) for route in ROUTES]
    assert len(set(names)) == len(names)


def test_a_service_starts_without_the_document_and_the_files_of_the_page() -> None:
    """Both take as long as all else of the start, and a gateway is rarely asked for them."""
    load_page_files.cache_clear()
    profile = cProfile.Profile()
    store = MemoryStore()
    profile.runcall(make_app, AppContext(store, store.records, shipped_models()), ROUTES)
    called = {str(getattr(entry.code, "co_name", "")) for entry in profile.getstats()}
    assert "make_page_routes" in called
    assert not called & {"make_openapi", "schema_components", "load_page_files", "compress"}


def test_every_operation_declares_its_input_and_errors() -> None:
    paths = make_openapi(ROUTES)["paths"]
    assert isinstance(paths, dict)
    for route in ROUTES:
        operation = paths[route.path][route.method.lower()]
        assert operation["summary"].endswith(".")
        assert {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"} == set(
            route.path_names
        )
        assert ("401" in operation["responses"]) == (route.rule != "open")
        assert ("requestBody" in operation) == has_body(route)
        keys: list[dict[str, list[str]]] = [{"key": []}, {}] if route.keyless else [{"key": []}]
        assert operation["security"] == ([] if route.rule == "open" else keys)


def test_every_route_is_on_a_docs_page() -> None:
    docs = Path(__file__).parents[2] / "docs"
    pages = "".join((docs / name).read_text() for name in ("service.md", "instructions-api.md"))
    missing = [route.path for route in ROUTES if route.path not in pages]
    assert missing == []
    assert len(ROUTES) > 15


def test_path_parameters_are_not_required_again_in_the_body() -> None:
    document = make_openapi(ROUTES)
    schemas, bodies = document["components"]["schemas"], 0  # type: ignore[index]
    for route in ROUTES:
        if has_body(route):
            described = schemas[route.request.__name__]
            assert not {*described["properties"], *described["required"]} & {*route.path_names}
            assert {*described["properties"]} == {*route.other_names}
            bodies += 1
    assert bodies > 10


@pytest.mark.timeout(SECONDS_MAX + 20)
@pytest.mark.parametrize("signed_in", [False, True], ids=["no key", "admin"])
async def test_a_bounded_run_of_schemathesis_finds_no_fault(tmp_path: Path, signed_in: bool) -> None:
    store, clock = MemoryStore(), ManualClock()
    async with Session.create(
        model="anthropic:claude-sonnet-5-5",
        system_prompt=LONG,
        store=store,
        transport=SimulatedProvider(clock=clock),
        clock=clock,
        new_id=CountingIds(),
    ) as session:
        await session.send("One.")
    words = [
        *(sys.executable, "-m", "schemathesis.cli", "run"),
        *("--max-examples", str(EXAMPLES_MAX), "--seed", "1", "--no-color", "--generation-database", "none"),
        *("--phases", PHASES),
        # A feed never ends, and the rules of a time window are more than a schema can express.
        *("--exclude-path", "/api/cache/stream", "--exclude-checks", "positive_data_acceptance"),
    ]
    with (
        open_store_of_kind("sqlite", tmp_path) as instruction_store,
        # Disabled routes respond 404 to any request, valid or not.
        serve_store(store, library=library_of(instruction_store, clock, tmp_path / "root", encoder=None)) as client,
    ):
        key = ["--header", f"Authorization: Bearer {client.key('admin')}"] if signed_in else []
        result = subprocess.run(  # noqa: ASYNC221 - the service has a thread of its own
            [*words, *key, f"{client.url}/openapi.json"],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            cwd=tmp_path,
        )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert f"Tested: {len(ROUTES) - 1}" in result.stdout
