"""Anthropic's own client, wrapped, against the simulator over a real socket."""

import asyncio
import copy
import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest
import pytest_asyncio
from anthropic.types import Message, MessageParam, Usage
from tests.support.served import TIMEOUT_SECONDS, SimulatorServer
from tests.support.served_gateway import raw_upstream

from holdfast.catalog.lookup import shipped_models
from holdfast.errors import UserError
from holdfast.events.payloads.cache import CacheControlsApplied, CacheSettings
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.integrations import recorder_of, wrap
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.calls import iter_calls
from holdfast.runtime.config import load_config
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.simulator.server import serve_simulator
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

SONNET = "claude-sonnet-5-5"
SYSTEM = "You are a careful assistant that reads files before it speaks of them. " * 240
SECRET = "the-launch-code-is-swordfish"
HELLO: list[MessageParam] = [{"role": "user", "content": "Hello."}]
CACHE_CONTROL = {"type": "ephemeral"}
CACHE_CONTROL_1H = {"type": "ephemeral", "ttl": "1h"}
TOOL: Any = {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object"}}
LOOP = (
    '{"content": [{"type": "thinking", "thinking": "A file."},'
    ' {"type": "tool_use", "name": "read", "input": {"path": "a.txt"}}]}\n{"content": "It is there."}'
)

Wire = dict[str, Any]


@pytest.fixture
def simulated(request: pytest.FixtureRequest) -> Iterator[SimulatorServer]:
    with SimulatorServer(parse_script(getattr(request, "param", ""))) as running:
        yield running


@pytest.fixture
def client(simulated: SimulatorServer) -> Iterator[anthropic.Anthropic]:
    with wrap(simulated.client()) as opened:
        yield opened


def scripted(script: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("simulated", [script], indirect=True)


def create(client: anthropic.Anthropic, **options: Any) -> Message:
    arguments: Wire = {"model": SONNET, "max_tokens": 50, "system": SYSTEM, "messages": HELLO, **options}
    message: Message = client.messages.create(**arguments)
    return message


def client_usage(usage: Usage) -> tuple[int, int, int, int]:
    return (
        usage.input_tokens,
        usage.cache_read_input_tokens or 0,
        usage.cache_creation_input_tokens or 0,
        usage.output_tokens,
    )


def recorded_usage(client: object) -> list[tuple[int, int, int, int]]:
    usages = (record.usage for record in recorder_of(client).calls)
    return [(usage.input, usage.cache_read, usage.cache_write, usage.output) for usage in usages]


def failures(client: object) -> list[LlmCallFailed]:
    recorder = recorder_of(client)
    events = recorder.read_events()
    return [event.payload for event in events if isinstance(event.payload, LlmCallFailed)]


def breakpoints_in(value: object) -> list[object]:
    """Every breakpoint of a body, in the order of the wire."""
    if isinstance(value, list):
        return [breakpoint for part in value for breakpoint in breakpoints_in(part)]
    if not isinstance(value, dict):
        return []
    here = [value["cache_control"]] if value.get("cache_control") else []
    names = ("tools", "system", "messages", "content")
    return [breakpoint for name in names for breakpoint in breakpoints_in(value.get(name))] + here


# Breakpoints


def test_the_second_call_reads_what_the_first_wrote_without_a_breakpoint_of_the_caller(
    client: anthropic.Anthropic,
) -> None:
    first, second = create(client), create(client)
    assert first.usage.cache_creation_input_tokens
    assert second.usage.cache_read_input_tokens == first.usage.cache_creation_input_tokens


def test_an_unwrapped_client_caches_nothing(simulated: SimulatorServer) -> None:
    with simulated.client() as bare:
        wrap(bare)
        create(bare)
        assert not create(bare).usage.cache_read_input_tokens


def test_the_recorded_usage_equals_what_the_client_shows(client: anthropic.Anthropic) -> None:
    messages = [create(client), create(client, system=SYSTEM + "More.")]
    assert recorded_usage(client) == [client_usage(message.usage) for message in messages]


def test_a_growing_conversation_reads_everything_the_previous_call_sent(client: anthropic.Anthropic) -> None:
    messages_so_far: list[Any] = list(HELLO)
    sizes = []
    for word in ("One.", "Two.", "Three."):
        message = create(client, messages=messages_so_far, tools=[TOOL])
        messages_so_far += [{"role": "assistant", "content": message.content}, {"role": "user", "content": word}]
        sizes.append(client_usage(message.usage)[1:3])
    assert sizes[1][0] == sizes[0][1]
    assert sizes[2][0] == sum(sizes[1])
    assert all(record.is_prefix_unchanged for record in recorder_of(client).calls)


@scripted(LOOP)
def test_a_tool_loop_with_thinking_continues_with_the_clients_own_objects(client: anthropic.Anthropic) -> None:
    first = create(client, tools=[TOOL])
    call = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "text"}
    messages_so_far = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = create(client, tools=[TOOL], messages=messages_so_far)
    assert second.usage.cache_read_input_tokens == first.usage.cache_creation_input_tokens
    assert recorder_of(client).calls[1].is_prefix_unchanged


def test_many_parallel_tools_do_not_hide_the_previous_call(client: anthropic.Anthropic) -> None:
    ids = [f"t{number}" for number in range(25)]
    uses = [{"type": "tool_use", "id": id, "name": "read", "input": {}} for id in ids]
    results = [{"type": "tool_result", "tool_use_id": id, "content": f"file {id} " * 20} for id in ids]
    question: list[Any] = [{"role": "user", "content": "Read all of them. " * 200}]
    first = create(client, tools=[TOOL], messages=question)
    loop = [*question, {"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    second = create(client, tools=[TOOL], messages=loop)
    third = create(client, tools=[TOOL], messages=[{"role": "user", "content": "Something else."}])
    assert second.usage.cache_read_input_tokens == first.usage.cache_creation_input_tokens
    assert 0 < (third.usage.cache_read_input_tokens or 0) < (second.usage.cache_read_input_tokens or 0)


def test_the_callers_arguments_are_not_modified(simulated: SimulatorServer, client: anthropic.Anthropic) -> None:
    blocks = [{"type": "text", "text": SYSTEM}]
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello."}]}]
    callers_arguments = {"system": blocks, "messages": messages, "tools": [TOOL]}
    before = copy.deepcopy(callers_arguments)
    create(client, **callers_arguments)
    assert callers_arguments == before
    assert len(breakpoints_in(simulated.bodies()[0])) == 3


def test_only_text_with_a_breakpoint_is_turned_into_blocks(
    simulated: SimulatorServer, client: anthropic.Anthropic
) -> None:
    messages_so_far: Any = [*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "More."}]
    create(client, messages=messages_so_far, tools=[TOOL])
    body = simulated.bodies()[0]
    assert body["system"] == [{"type": "text", "text": SYSTEM, "cache_control": CACHE_CONTROL}]
    assert body["messages"] == [
        *messages_so_far[:2],
        {"role": "user", "content": [{"type": "text", "text": "More.", "cache_control": CACHE_CONTROL}]},
    ]


def test_a_one_shot_iterator_of_messages_is_read_once(simulated: SimulatorServer, client: anthropic.Anthropic) -> None:
    create(client, messages=({"role": "user", "content": word} for word in ("Hello.", "And?")))
    assert [message["role"] for message in simulated.bodies()[0]["messages"]] == ["user", "user"]
    assert len(recorder_of(client).calls) == 1


def test_a_callers_iterator_that_fails_fails_the_call(client: anthropic.Anthropic) -> None:
    def broken() -> Iterator[MessageParam]:
        yield HELLO[0]
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        create(client, messages=broken())


def text_with_breakpoint(text: str, cache_control: Wire = CACHE_CONTROL) -> Wire:
    return {"type": "text", "text": text, "cache_control": cache_control}


@pytest.mark.parametrize(("own", "sent"), [(4, 4), (3, 4), (2, 3), (1, 2)])
def test_the_callers_breakpoints_have_priority(
    simulated: SimulatorServer, client: anthropic.Anthropic, own: int, sent: int
) -> None:
    system = [text_with_breakpoint(f"Part {number}.") for number in range(own)]
    create(client, system=system, tools=[TOOL])
    body = simulated.bodies()[0]
    assert body["system"] == system
    assert len(breakpoints_in(body)) == sent
    assert bool(breakpoints_in(body["messages"])) == (own < 4)


def test_a_breakpoint_inside_a_tool_result_counts(simulated: SimulatorServer, client: anthropic.Anthropic) -> None:
    inner = [text_with_breakpoint("one"), text_with_breakpoint("two"), text_with_breakpoint("three")]
    messages_so_far = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": inner}, text_with_breakpoint("four")],
        },
    ]
    create(client, messages=messages_so_far, tools=[TOOL])
    assert len(breakpoints_in(simulated.bodies()[0])) == 4


def test_a_single_question_keeps_the_callers_breakpoint(
    simulated: SimulatorServer, client: anthropic.Anthropic
) -> None:
    create(client, messages=[{"role": "user", "content": [text_with_breakpoint("Hello.", CACHE_CONTROL_1H)]}])
    assert breakpoints_in(simulated.bodies()[0]) == [CACHE_CONTROL_1H]


def test_our_breakpoint_follows_the_callers_one_hour_ttl(
    simulated: SimulatorServer, client: anthropic.Anthropic
) -> None:
    create(client, system=[{"type": "text", "text": "A."}, text_with_breakpoint("B.", CACHE_CONTROL_1H)], tools=[TOOL])
    assert breakpoints_in(simulated.bodies()[0]) == [CACHE_CONTROL_1H, CACHE_CONTROL]


@pytest.mark.parametrize("cache_control", [CACHE_CONTROL, CACHE_CONTROL_1H])
def test_the_planned_breakpoint_replaces_the_automatic_one_at_the_end(
    simulated: SimulatorServer, client: anthropic.Anthropic, cache_control: Wire
) -> None:
    create(client, cache_control=cache_control, tools=[TOOL])
    body = simulated.bodies()[0]
    assert "cache_control" not in body
    assert len(breakpoints_in(body["messages"])) == 1


def test_the_automatic_breakpoint_counts(simulated: SimulatorServer, client: anthropic.Anthropic) -> None:
    create(
        client,
        cache_control=CACHE_CONTROL,
        system=[text_with_breakpoint("A."), text_with_breakpoint("B."), text_with_breakpoint("C.")],
        tools=[TOOL],
    )
    assert len(breakpoints_in(simulated.bodies()[0])) == 4


# Pass-through


def test_a_wrapped_client_is_a_client(simulated: SimulatorServer, client: anthropic.Anthropic) -> None:
    assert isinstance(client, anthropic.Anthropic)
    assert client.max_retries == 0
    assert "messages" in dir(client)
    assert repr(client).startswith("<anthropic.Anthropic")
    assert client.messages.count_tokens(model=SONNET, messages=HELLO).input_tokens > 0
    assert client.models.retrieve(SONNET).id == SONNET
    assert client.messages.with_raw_response.create(model=SONNET, max_tokens=5, messages=HELLO).status_code == 200
    client.api_key = "other"
    create(client)
    assert len(recorder_of(client).calls) == 2


def test_the_wrapped_client_has_the_options_of_the_given_one_which_stays_as_it_was(simulated: SimulatorServer) -> None:
    with simulated.client(default_headers={"x-team": "core"}) as bare:
        client = wrap(bare)
        client.max_retries = 1
        assert (bare.max_retries, client.timeout, client.base_url) == (0, bare.timeout, bare.base_url)
        assert client.default_headers["x-team"] == "core"


def test_the_callers_own_http_client_stays_in_use(simulated: SimulatorServer) -> None:
    seen: list[str] = []
    hooks: Any = {"request": [lambda request: seen.append(request.headers["x-own"])]}
    own = httpx2.Client(headers={"x-own": "yes"}, event_hooks=hooks)
    with wrap(simulated.client(http_client=own)) as client:
        create(client)
    assert seen == ["yes"]
    own.close()


def test_the_given_client_stays_usable_after_the_wrapped_one_is_collected(simulated: SimulatorServer) -> None:
    with simulated.client() as bare:
        create(wrap(bare))
        gc.collect()
        assert create(bare).stop_reason == "end_turn"


def test_copies_of_a_wrapped_client_are_wrapped_and_share_its_recorder(client: anthropic.Anthropic) -> None:
    create(client.with_options(timeout=4))
    assert create(client.copy(timeout=3)).usage.cache_read_input_tokens
    with client as entered:
        create(entered)
    assert len(recorder_of(client).calls) == 3
    assert recorder_of(client.with_options(timeout=4)) is recorder_of(client)


def test_an_unknown_client_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"a builtins\.list cannot be wrapped; these clients can: anthropic\.Anthropic"):
        wrap([])


def test_a_client_cannot_be_wrapped_twice(client: anthropic.Anthropic) -> None:
    with pytest.raises(UserError, match="wrapped already"):
        wrap(client)


def test_an_unwrapped_client_has_no_recorder(simulated: SimulatorServer) -> None:
    with simulated.client() as bare, pytest.raises(UserError, match="is not wrapped"):
        recorder_of(bare)


def test_a_subclass_of_a_client_can_be_wrapped(simulated: SimulatorServer) -> None:
    class Mine(anthropic.Anthropic):
        pass

    options: Wire = {"base_url": simulated.url, "api_key": "any", "timeout": TIMEOUT_SECONDS, "max_retries": 0}
    with wrap(Mine(**options)) as client:
        create(client)
        assert len(recorder_of(client).calls) == 1


# Streams


def test_a_raw_stream_is_passed_through_and_recorded(client: anthropic.Anthropic) -> None:
    stream: Any = create(client, stream=True)
    assert isinstance(stream, anthropic.Stream)
    kinds = [event.type for event in stream]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    message = create(client)
    assert recorded_usage(client)[1] == client_usage(message.usage)
    assert recorded_usage(client)[0][2] == message.usage.cache_read_input_tokens


def test_a_stream_with_snapshots_is_the_clients_own_type(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model=SONNET, max_tokens=50, system=SYSTEM, messages=HELLO) as stream:
        assert type(stream) is anthropic.MessageStream
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "Echo: Hello."
    assert recorded_usage(client) == [client_usage(final.usage)]
    assert create(client).usage.cache_read_input_tokens == final.usage.cache_creation_input_tokens


def test_a_stream_that_is_never_entered_is_no_call(client: anthropic.Anthropic) -> None:
    client.messages.stream(model=SONNET, max_tokens=50, messages=HELLO)
    recorder = recorder_of(client)
    assert list(recorder.read_events()) == []


def test_a_stream_that_is_closed_early_is_recorded_with_its_usage_so_far(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model=SONNET, max_tokens=50, system=SYSTEM, messages=HELLO) as stream:
        next(iter(stream))
    raw: Any = create(client, stream=True)
    next(raw)
    raw.close()
    with create(client, stream=True) as entered:  # type: ignore[attr-defined]
        next(entered)
    assert [failure.error_class for failure in failures(client)] == ["cancelled"] * 3
    assert [record.completed for record in recorder_of(client).calls] == [False] * 3
    assert all(usage[1] + usage[2] > 0 for usage in recorded_usage(client))


def test_a_dropped_stream_is_recorded_once_it_is_collected(client: anthropic.Anthropic) -> None:
    for _ in create(client, stream=True):
        break
    gc.collect()
    assert [record.completed for record in recorder_of(client).calls] == [False]
    assert failures(client)[0].error_message_redacted == "the client disconnected before the response ended"


@scripted('{"content": "At last.", "fault": "cut;after=3"}')
def test_a_stream_that_breaks_raises_the_clients_own_error(client: anthropic.Anthropic) -> None:
    with (
        pytest.raises(Exception) as caught,
        client.messages.stream(model=SONNET, max_tokens=50, messages=HELLO) as stream,
    ):
        stream.until_done()
    assert type(caught.value).__module__.partition(".")[0] in ("httpx2", "anthropic")
    assert len(failures(client)) == 1


# Failures


def test_the_clients_errors_are_raised_unchanged_and_recorded(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.OverloadedError):
        create(client, extra_headers={"x-holdfast-fault": "529"})
    with (
        pytest.raises(anthropic.OverloadedError),
        client.messages.stream(model=SONNET, max_tokens=50, messages=HELLO, extra_headers={"x-holdfast-fault": "529"}),
    ):
        pass
    recorded_failures = failures(client)
    assert [failure.error_class for failure in recorded_failures] == ["rate_limit"] * 2
    assert recorded_failures[0].error_message_redacted == "rate_limit (HTTP status 529)"
    assert recorder_of(client).calls == ()


def test_an_unreachable_provider_is_a_network_failure() -> None:
    with wrap(anthropic.Anthropic(base_url="http://127.0.0.1:9", api_key="any", timeout=1, max_retries=0)) as client:
        with pytest.raises(anthropic.APIConnectionError):
            create(client)
        assert [failure.error_class for failure in failures(client)] == ["network"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("is_slow", [False, True], ids=["hung up", "timed out"])
def test_a_response_that_is_awaited_in_vain_is_estimated_because_the_provider_may_charge(
    is_slow: bool, is_async: bool
) -> None:
    answered = threading.Event()
    options: dict[str, Any] = {"api_key": "any", "timeout": 0.5, "max_retries": 0}
    with raw_upstream() as upstream:
        upstream.parts = (answered,) if is_slow else ()
        make = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
        client: Any = wrap(make(base_url=upstream.url, **options))

        async def ask() -> None:
            await client.messages.create(model=SONNET, max_tokens=50, messages=HELLO)

        with pytest.raises(anthropic.APIConnectionError):
            asyncio.run(ask()) if is_async else create(client)
        answered.set()
        (failure,) = failures(client)
        assert (failure.error_class, failure.is_output_estimated) == ("network", True)
        assert failure.cost_usd > 0


def test_a_call_with_an_unknown_model_is_sent_unchanged_with_one_warning(
    simulated: SimulatorServer, client: anthropic.Anthropic, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with pytest.raises(anthropic.NotFoundError):
            create(client, model="claude-sonnet-55")
    assert breakpoints_in(simulated.bodies()[0]) == []
    assert recorder_of(client).calls == ()
    assert [(record.name, record.levelno) for record in caplog.records if record.name.startswith("holdfast")] == [
        ("holdfast.integrations", logging.WARNING)
    ]


def test_unreadable_arguments_are_sent_unchanged_with_one_warning_that_quotes_nothing(
    simulated: SimulatorServer, client: anthropic.Anthropic, caplog: pytest.LogCaptureFixture
) -> None:
    strange = [{"type": "text", "text": SECRET, "citations": [{"unheard": SECRET}]}]
    for _ in range(2):
        with pytest.raises(anthropic.BadRequestError):
            create(client, system=strange)
    assert simulated.bodies()[0]["system"] == strange
    assert len([record for record in caplog.records if record.name == "holdfast.integrations"]) == 1
    assert SECRET not in caplog.text


def test_wrong_arguments_fail_as_without_wrapping(client: anthropic.Anthropic) -> None:
    wrong: Any = client.messages
    with pytest.raises(TypeError):
        wrong.create("positional")
    with pytest.raises(TypeError):
        wrong.create(model=SONNET)


def test_a_store_that_fails_does_not_fail_the_call(
    simulated: SimulatorServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store("memory:")
    with wrap(simulated.client(), store=store) as client:
        store.close()
        assert create(client).stop_reason == "end_turn"
        assert len(recorder_of(client).session_ids) == 1
    assert "a call is not recorded: the store in memory is closed" in caplog.text


# The record


def test_the_record_contains_no_prompt(client: anthropic.Anthropic) -> None:
    create(client, system=SYSTEM + SECRET, messages=[{"role": "user", "content": SECRET}], metadata={"user_id": SECRET})
    recorder = recorder_of(client)
    events = list(recorder.read_events())
    assert [type(event.payload).__name__ for event in events] == [
        "SessionStarted",
        "GatewayForwarded",
        "RequestPrepared",
        "LlmCallStarted",
        "LlmCallCompleted",
    ]
    assert SECRET.encode() not in msgspec.json.encode(events)


def test_the_record_can_be_stored_in_a_file(simulated: SimulatorServer, tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    with wrap(simulated.client(), store=path) as client:
        create(client)
        recorder = recorder_of(client)
        calls_recorded = recorder.calls
        (session_id,) = recorder.session_ids
        recorder.log.close()
    log = open_store(path)
    assert tuple(iter_calls(log.read(session_id))) == calls_recorded
    assert log.sessions()[0].model == f"anthropic:{SONNET}"
    log.close()


@pytest.mark.parametrize(
    ("rest", "completed"), [("", True), (".__iter__().__next__()", False)], ids=["whole", "unread stream"]
)
def test_a_file_is_written_completely_even_if_nothing_is_ever_closed(
    simulated: SimulatorServer, tmp_path: Path, rest: str, completed: bool
) -> None:
    path = tmp_path / "calls.db"
    arguments = f"model={SONNET!r}, max_tokens=5, messages=[dict(role='user', content='Hello.')], stream={bool(rest)}"
    program = (
        "import anthropic; from holdfast.integrations import wrap; "
        f"bare = anthropic.Anthropic(base_url={simulated.url!r}, api_key='any', timeout=5); "
        f"client = wrap(bare, store={str(path)!r}); "
        f"reply = client.messages.create({arguments}); reply{rest}"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=True, timeout=30, capture_output=True)
    assert ended.stderr == b""
    log = open_store(path)
    assert [record.completed for record in iter_calls(log.read(log.sessions()[0].id))] == [completed]
    log.close()


def test_the_bill_adds_up_over_models(client: anthropic.Anthropic) -> None:
    create(client)
    create(client, model="claude-opus-5-5")
    create(client)
    recorder = recorder_of(client)
    bill = recorder.bill()
    assert bill.calls == 3
    assert bill.cost_usd == sum(record.cost_usd for record in recorder.calls)
    assert bill.uncached_cost_usd > 0
    assert bill.usage.output == sum(record.usage.output for record in recorder.calls)


def test_each_conversation_is_a_session_of_its_own(client: anthropic.Anthropic) -> None:
    create(client)
    create(client, system="Something else.")
    recorder = recorder_of(client)
    assert len(recorder.session_ids) == len(recorder.calls) == 2
    assert all(call.is_prefix_unchanged for call in recorder.calls)


def test_without_a_store_the_record_is_in_the_default_one(simulated: SimulatorServer) -> None:
    with wrap(simulated.client()) as client:
        create(client)
        session_ids = recorder_of(client).session_ids
    with open_store(load_config(os.environ).db_path, read_only=True) as log:
        assert tuple(row.id for row in log.sessions()) == session_ids != ()


def test_a_default_store_that_cannot_be_opened_is_replaced_by_memory_with_one_warning(
    simulated: SimulatorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "file"))
    with wrap(simulated.client()) as client:
        create(client)
        assert len(recorder_of(client).calls) == 1
    assert "calls are recorded in memory only" in caplog.text


# The asynchronous client


@pytest_asyncio.fixture
async def async_client() -> AsyncIterator[anthropic.AsyncAnthropic]:
    server = await serve_simulator(SimulatedProvider())
    bare = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", timeout=TIMEOUT_SECONDS, max_retries=0)
    async with wrap(bare) as client:
        yield client
    await server.aclose()


async def create_async(client: anthropic.AsyncAnthropic, **options: Any) -> Any:
    arguments: Wire = {"model": SONNET, "max_tokens": 50, "system": SYSTEM, "messages": HELLO, **options}
    return await client.messages.create(**arguments)


async def test_the_asynchronous_client_is_wrapped_too(async_client: anthropic.AsyncAnthropic) -> None:
    first, second = await create_async(async_client), await create_async(async_client)
    assert isinstance(async_client, anthropic.AsyncAnthropic)
    assert second.usage.cache_read_input_tokens == first.usage.cache_creation_input_tokens > 0
    assert recorded_usage(async_client) == [client_usage(first.usage), client_usage(second.usage)]


async def test_asynchronous_streams_are_passed_through_and_recorded(async_client: anthropic.AsyncAnthropic) -> None:
    raw = await create_async(async_client, stream=True)
    assert isinstance(raw, anthropic.AsyncStream)
    assert [event.type async for event in raw][-1] == "message_stop"
    async with async_client.messages.stream(model=SONNET, max_tokens=50, system=SYSTEM, messages=HELLO) as stream:
        final = await stream.get_final_message()
    assert final.usage.cache_read_input_tokens
    assert recorded_usage(async_client)[1] == client_usage(final.usage)
    cut = await create_async(async_client, stream=True)
    await anext(cut)
    await cut.close()
    async with await create_async(async_client, stream=True) as entered:
        await anext(entered)
    assert [record.completed for record in recorder_of(async_client).calls] == [True, True, False, False]


async def test_the_asynchronous_clients_errors_are_raised_unchanged_and_recorded(
    async_client: anthropic.AsyncAnthropic,
) -> None:
    fault = {"x-holdfast-fault": "429"}
    with pytest.raises(anthropic.RateLimitError):
        await create_async(async_client, extra_headers=fault)
    with pytest.raises(anthropic.RateLimitError):
        async with async_client.messages.stream(model=SONNET, max_tokens=5, messages=HELLO, extra_headers=fault):
            pass
    waiting = asyncio.ensure_future(create_async(async_client, extra_headers={"x-holdfast-fault": "slow;seconds=3"}))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [failure.error_class for failure in failures(async_client)] == ["rate_limit", "rate_limit", "cancelled"]


async def test_parallel_calls_are_recorded_separately(async_client: anthropic.AsyncAnthropic) -> None:
    conversations = [[{"role": "user", "content": "word " * number}] for number in range(1, 6)]
    messages = await asyncio.gather(
        *(create_async(async_client, messages=messages_so_far) for messages_so_far in conversations)
    )
    assert sorted(recorded_usage(async_client)) == sorted(client_usage(message.usage) for message in messages)
    records = recorder_of(async_client).calls
    assert sorted(record.blocks_shared for record in records) == [0] * 5


# Cache controls of the store


def test_disabling_caching_adds_nothing_to_a_call_until_it_is_enabled_again(simulated: SimulatorServer) -> None:
    store = MemoryStore()
    messages: list[Any] = []
    with wrap(simulated.client(), store=store) as client:

        def go_on() -> str:
            messages.append({"role": "user", "content": "Go on."})
            reply = create(client, messages=messages, tools=[TOOL])
            messages.append({"role": "assistant", "content": reply.content})
            (session,) = recorder_of(client).session_ids
            return session

        session = go_on()
        store.records.set_caching_enabled(session, enabled=False)
        go_on()
        store.records.set_caching_enabled(session, enabled=True)
        go_on()
        store.records.set_settings(CacheSettings({"anthropic": False}))
        go_on()
        store.records.set_settings(CacheSettings({"openai": False}))
        go_on()
    applied = [event.payload for event in store.read(session) if isinstance(event.payload, CacheControlsApplied)]
    assert [bool(breakpoints_in(body)) for body in simulated.bodies()] == [True, False, True, False, True]
    assert [controls.caching_enabled for controls in applied] == [False, True, False, True]


def test_a_miss_because_caching_was_disabled_is_planned(simulated: SimulatorServer) -> None:
    store = MemoryStore()
    with wrap(simulated.client(), store=store) as client:
        first = create(client, tools=[TOOL])
        (session,) = recorder_of(client).session_ids
        store.records.set_caching_enabled(session, enabled=False)
        more: Any = [*HELLO, {"role": "assistant", "content": first.content}, *HELLO]
        create(client, tools=[TOOL], messages=more)
        assert recorder_of(client).session_ids == (session,)
    verdicts = [entry.verdict for entry in iter_entries(store.read(session), shipped_models()) if entry.verdict]
    assert [verdict.kind for verdict in verdicts] == ["first_use", "planned"]
