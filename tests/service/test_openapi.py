"""The OpenAPI document: complete, and true of what the service answers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.instruction_service import library_of, open_store_of_kind
from tests.support.served_service import Client, serve_store
from tests.support.simulated_gemini import LONG

from holdfast.clock import CountingIds, ManualClock
from holdfast.runtime.session import Session
from holdfast.service.http.openapi import has_body, make_openapi, make_operation_id
from holdfast.service.route_table import ROUTES
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore

# Read before a test hides what is set. Every value at the edge of every schema is thousands of requests.
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
    assert described == {(one.method, one.path) for one in ROUTES}
    assert document["openapi"] == "3.1.0"
    names = [make_operation_id(one) for one in ROUTES]
    assert len(set(names)) == len(names)


def test_every_operation_declares_its_input_and_errors() -> None:
    paths = make_openapi(ROUTES)["paths"]
    assert isinstance(paths, dict)
    for one in ROUTES:
        told = paths[one.path][one.method.lower()]
        assert told["summary"].endswith(".")
        assert {parameter["name"] for parameter in told["parameters"] if parameter["in"] == "path"} == set(
            one.path_names
        )
        assert ("401" in told["responses"]) == (one.rule != "open")
        assert ("requestBody" in told) == has_body(one)
        keys: list[dict[str, list[str]]] = [{"key": []}, {}] if one.keyless else [{"key": []}]
        assert told["security"] == ([] if one.rule == "open" else keys)


def test_every_route_is_on_the_docs_page_of_the_service() -> None:
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    missing = [one.path for one in ROUTES if one.path not in page]
    assert missing == []
    assert len(ROUTES) > 15


def test_path_parameters_are_not_required_again_in_the_body() -> None:
    told = make_openapi(ROUTES)
    schemas, bodies = told["components"]["schemas"], 0  # type: ignore[index]
    for one in ROUTES:
        if has_body(one):
            described = schemas[one.request.__name__]
            assert not {*described["properties"], *described["required"]} & {*one.path_names}
            assert {*described["properties"]} == {*one.other_names}
            bodies += 1
    assert bodies > 10


@pytest.mark.timeout(SECONDS_MAX + 20)
@pytest.mark.parametrize("signed_in", [False, True], ids=["nobody", "an admin"])
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
        # A feed never ends, and what a window may be is more than a schema can say.
        *("--exclude-path", "/api/cache/stream", "--exclude-checks", "positive_data_acceptance"),
    ]
    with (
        open_store_of_kind("sqlite", tmp_path) as kept,
        # Routes that are switched off are there for nobody, whatever is wrong with what is asked.
        serve_store(store, library=library_of(kept, clock, tmp_path / "root", encoder=None)) as client,
    ):
        key = ["--header", f"Authorization: Bearer {client.key('admin')}"] if signed_in else []
        ended = subprocess.run(  # noqa: ASYNC221 - the service has a thread of its own
            [*words, *key, f"{client.url}/openapi.json"],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            cwd=tmp_path,
        )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert f"Tested: {len(ROUTES) - 1}" in ended.stdout
