"""Calls that wait at the same time: run together in one thread, each with its own result, and routed by an index."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router
from starlette.types import Message, Scope
from tests.support.instruction_service import AGENT, InstructionService

from holdfast.service.app import _IndexedRouter
from holdfast.service.http.batches import BatchedCalls
from holdfast.service.route_table import ROUTES


def test_calls_that_arrive_while_a_batch_runs_form_the_next_one() -> None:
    batches: list[list[int]] = []
    first_may_end = threading.Event()

    def double(numbers: Sequence[int]) -> list[int | Exception]:
        batches.append(list(numbers))
        if len(batches) == 1:
            first_may_end.wait(5)
        return [ValueError(f"{number} is odd") if number % 2 else 2 * number for number in numbers]

    async def call() -> list[int | BaseException]:
        calls = BatchedCalls(double, size_max=3)
        first = asyncio.ensure_future(calls.run(0))
        await asyncio.sleep(0.01)
        rest = [asyncio.ensure_future(calls.run(number)) for number in range(1, 6)]
        await asyncio.sleep(0)
        first_may_end.set()
        return await asyncio.gather(first, *rest, return_exceptions=True)

    results = asyncio.run(call())
    assert batches == [[0], [1, 2, 3], [4, 5]]
    assert [result if isinstance(result, int) else str(result) for result in results] == [
        0, "1 is odd", 4, "3 is odd", 8, "5 is odd",
    ]  # fmt: skip


def test_every_call_of_a_failed_batch_gets_the_error_and_the_next_one_runs() -> None:
    def fail_once(numbers: Sequence[int]) -> list[int | Exception]:
        if 0 in numbers:
            raise OSError("the disk is full")
        return list(numbers)

    async def call() -> list[int | BaseException]:
        calls = BatchedCalls(fail_once, size_max=2)
        return await asyncio.gather(*(calls.run(number) for number in range(3)), return_exceptions=True)

    assert [str(result) for result in asyncio.run(call())] == ["the disk is full", "the disk is full", "2"]


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH"])
def test_the_index_of_routes_finds_what_trying_all_of_them_finds(method: str) -> None:
    async def name(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{request.scope['route'].path} {request.path_params}")

    paths = list(dict.fromkeys((*(route.path for route in ROUTES), "/", "/static/{name:path}")))
    routes = [Route(path, name, methods=["GET", "PUT"]) for path in paths]
    all_routes, indexed = Router(routes, redirect_slashes=False), _IndexedRouter(routes)
    for path in (*paths, "/none", "/v1", "/v1/agents/summary", "/v1/sessions/", "/static/views/{x}", "//", "/v1/{"):
        for asked in (path, path.replace("{", "").replace("}", ""), path.replace("{agent_id}", "recall-instruction")):
            scope = {"type": "http", "method": method, "path": asked, "headers": [], "query_string": b""}
            assert asyncio.run(_respond(indexed, dict(scope))) == asyncio.run(_respond(all_routes, dict(scope))), asked


async def _respond(router: Router, scope: Scope) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    await router(scope, receive, send)
    return sent


def test_recalls_at_the_same_time_are_each_answered_and_recorded(published_service: InstructionService) -> None:
    """One has no access, one no intent, one a heartbeat of its own: none of them affects the others."""
    asked = [(f"claim ticket {number}", published_service.agent_key, 200) for number in range(20)]
    asked[3] = ("claim a ticket", published_service.client.key("agent:other"), 403)
    asked[7] = (" ", published_service.agent_key, 400)
    answers: dict[int, tuple[int, str]] = {}

    def ask(number: int) -> None:
        intent, key, _ = asked[number]
        response = published_service.request(
            "POST", f"/v1/agents/{AGENT}/recall-instruction", {"intent": intent}, key=key
        )
        answers[number] = response.status, str(response.json.get("audit_token"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[number][0] for number in range(len(asked))] == [status for _, _, status in asked]
    intents = {record["audit_token"]: record["intent"] for record in published_service.records("recall")}
    assert {answers[number][1]: asked[number][0] for number in range(len(asked)) if asked[number][2] == 200} == intents


async def test_a_call_that_is_made_as_the_last_batch_ends_runs() -> None:
    calls = BatchedCalls[int, int](lambda numbers: [number + 1 for number in numbers], size_max=10)
    number = 0
    async with asyncio.timeout(5):
        for _ in range(10):
            number = await calls.run(number)
    assert number == 10
