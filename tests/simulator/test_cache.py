"""The simulated provider's reported cache usage: reads, writes, minimum sizes, TTLs, isolation, tiers."""

import msgspec
import pytest
from tests.support.simulated import (
    CACHE_CONTROL,
    CACHE_CONTROL_1H,
    LONG,
    SONNET,
    Wire,
    assistant,
    buckets,
    count_tokens,
    models_with,
    post,
    refusal,
    request,
    simulator,
    text,
    tool,
    usage,
    user,
)

from holdfast.clock import ManualClock
from holdfast.simulator.provider import SimulatedProvider


def request_with_breakpoint(**fields: object) -> Wire:
    return request(user(text("Hello.", CACHE_CONTROL)), system=LONG, **fields)


def test_the_second_call_reads_what_the_first_one_wrote() -> None:
    provider = simulator()
    tokens = count_tokens(provider, request_with_breakpoint())
    assert buckets(usage(provider, request_with_breakpoint())) == (0, 0, tokens, 0)
    assert buckets(usage(provider, request_with_breakpoint())) == (0, tokens, 0, 0)


def test_counted_tokens_equal_the_sum_of_usage_and_counting_leaves_the_cache_unchanged() -> None:
    provider = simulator()
    body = request(user(text("Hello.", CACHE_CONTROL), "And more."), system=LONG, tools=[tool("read")])
    tokens = count_tokens(provider, body)
    assert provider.cache == ()
    assert sum(buckets(usage(provider, body))) == tokens
    assert sum(buckets(usage(provider, body))) == tokens


def test_every_block_counts_the_tokens_of_its_bytes_without_the_breakpoint() -> None:
    provider = simulator()
    assert count_tokens(provider, request_with_breakpoint()) == count_tokens(
        provider, request(user("Hello."), system=LONG)
    )


@pytest.mark.parametrize(("above_tokens", "cached"), [(0, True), (1, False)])
def test_a_prompt_below_the_floor_of_its_model_is_not_cached(above_tokens: int, cached: bool) -> None:
    tokens = count_tokens(simulator(), request_with_breakpoint())
    provider = simulator(models=models_with(tokens_min=tokens + above_tokens))
    assert buckets(usage(provider, request_with_breakpoint())) == ((0, 0, tokens, 0) if cached else (tokens, 0, 0, 0))
    assert buckets(usage(provider, request_with_breakpoint())) == ((0, tokens, 0, 0) if cached else (tokens, 0, 0, 0))


@pytest.mark.parametrize(
    ("model", "floor"),
    [(SONNET, 512), ("claude-sonnet-5", 1_024), ("claude-opus-4-7", 2_048), ("claude-haiku-4-5", 4_096)],
)
def test_each_model_has_the_floor_of_its_row(model: str, floor: int) -> None:
    for words in ("word " * (floor // 2), "word " * floor * 2):
        reported = usage(simulator(), request(user(text(words, CACHE_CONTROL)), model=model))
        assert (reported["cache_creation_input_tokens"] > 0) == (sum(buckets(reported)) >= floor)


@pytest.mark.parametrize(("cache_control", "lives"), [(CACHE_CONTROL, 300.0), (CACHE_CONTROL_1H, 3_600.0)])
def test_an_entry_expires_after_its_ttl(cache_control: dict[str, str], lives: float) -> None:
    body = request(user(text("Hello.", cache_control)), system=LONG)
    for wait, warm in ((lives - 0.5, True), (lives, False)):
        provider = simulator()
        usage(provider, body)
        provider.advance(wait)
        assert (usage(provider, body)["cache_read_input_tokens"] > 0) == warm


def test_every_read_restarts_the_ttl() -> None:
    provider = simulator()
    for _ in range(4):
        reported = usage(provider, request_with_breakpoint())
        provider.advance(299)
    assert reported["cache_read_input_tokens"] > 0


def test_mixed_ttls_are_billed_for_their_own_sections() -> None:
    provider = simulator()
    body = request(user(text("Hello.", CACHE_CONTROL), "Tail."), system=[text(LONG, CACHE_CONTROL_1H)])
    reported = buckets(usage(provider, body))
    hello = count_tokens(provider, request(user("Hello.")))
    tail = count_tokens(provider, request(user("Tail.")))
    assert reported == (tail, 0, hello, count_tokens(provider, body) - hello - tail)


def test_a_cache_write_is_invisible_until_its_response_begins() -> None:
    provider = simulator()
    raw = msgspec.json.encode(request_with_breakpoint())
    first, second = (provider.handle("POST", "/v1/messages", headers={"x-api-key": "key"}, body=raw) for _ in range(2))
    assert provider.cache == ()
    for answer in (first, second):
        assert msgspec.json.decode(answer.read_body())["usage"]["cache_read_input_tokens"] == 0
    assert usage(provider, request_with_breakpoint())["cache_read_input_tokens"] > 0


def test_the_first_event_of_a_stream_makes_its_writes_readable() -> None:
    provider = simulator()
    raw = msgspec.json.encode(request_with_breakpoint(stream=True))
    answer = provider.handle("POST", "/v1/messages", headers={"x-api-key": "key"}, body=raw)
    assert usage(provider, request_with_breakpoint())["cache_read_input_tokens"] == 0
    provider = simulator()
    answer = provider.handle("POST", "/v1/messages", headers={"x-api-key": "key"}, body=raw)
    first = next(iter(answer.chunks))
    assert isinstance(first, bytes)
    assert first.startswith(b"event: message_start\n")
    assert usage(provider, request_with_breakpoint())["cache_read_input_tokens"] > 0


def test_keys_do_not_share_a_cache() -> None:
    provider = simulator()
    usage(provider, request_with_breakpoint(), key="mine")
    assert usage(provider, request_with_breakpoint(), key="yours")["cache_read_input_tokens"] == 0
    assert usage(provider, request_with_breakpoint(), key="mine")["cache_read_input_tokens"] > 0


def test_a_key_is_the_same_in_either_header() -> None:
    provider = simulator()
    usage(provider, request_with_breakpoint(), key="mine")
    raw = msgspec.json.encode(request_with_breakpoint())
    answer = provider.handle("POST", "/v1/messages", headers={"Authorization": "Bearer mine"}, body=raw)
    assert msgspec.json.decode(answer.read_body())["usage"]["cache_read_input_tokens"] > 0


def test_models_do_not_share_a_cache() -> None:
    provider = simulator()
    usage(provider, request_with_breakpoint())
    assert usage(provider, request_with_breakpoint(model="claude-opus-5-5"))["cache_read_input_tokens"] == 0


def test_no_key_is_in_the_state_of_the_simulator() -> None:
    provider = simulator()
    usage(provider, request_with_breakpoint(), key="sk-secret")
    assert "secret" not in repr(provider.cache) + repr(provider.requests)
    assert len(provider.cache[0].scope.workspace) == 16


def test_a_breakpoint_that_moves_forward_finds_the_entry_before_it() -> None:
    provider = simulator()
    first = usage(provider, request_with_breakpoint())
    longer = request(user("Hello."), assistant("Hi."), user(text("Go on.", CACHE_CONTROL)), system=LONG)
    assert usage(provider, longer)["cache_read_input_tokens"] == first["cache_creation_input_tokens"]


@pytest.mark.parametrize(("between", "is_found"), [(19, True), (20, False)])
def test_the_lookback_is_twenty_blocks(between: int, is_found: bool) -> None:
    provider = simulator()
    usage(provider, request_with_breakpoint())
    more = [text(f"Part {number}.") for number in range(between - 1)]
    longer = request(user("Hello."), assistant(*more), user(text("Go on.", CACHE_CONTROL)), system=LONG)
    assert (usage(provider, longer)["cache_read_input_tokens"] > 0) == is_found


@pytest.mark.parametrize(("counting", "is_found"), [("blocks", False), ("positions", True)])
def test_runs_of_tool_blocks_count_as_the_catalog_says(counting: str, is_found: bool) -> None:
    provider = simulator(models=models_with(lookback_counting=counting))
    usage(provider, request_with_breakpoint())
    calls = [{"type": "tool_use", "id": f"t{n}", "name": "read", "input": {}} for n in range(25)]
    *results, last = ({"type": "tool_result", "tool_use_id": f"t{n}", "content": "ok"} for n in range(25))
    last_with_breakpoint = {**last, "cache_control": CACHE_CONTROL}
    longer = request(user("Hello."), assistant(*calls), user(*results, last_with_breakpoint), system=LONG)
    assert (usage(provider, longer)["cache_read_input_tokens"] > 0) == is_found


# Tiers

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}


def tiered(*more: Wire, tools: tuple[Wire, ...] = (), **fields: object) -> Wire:
    return request(
        user(text("Hello.", CACHE_CONTROL), *more),
        tools=[tool("read", CACHE_CONTROL), *tools],
        system=[text(LONG, CACHE_CONTROL)],
        **fields,
    )


TIERS = [
    ({}, "messages"),
    ({"metadata": {"user_id": "someone"}}, "messages"),
    ({"output_config": {"effort": "high"}}, "messages"),
    ({"tool_choice": {"type": "none"}}, "system"),
    ({"thinking": {"type": "adaptive"}}, "system"),
    ({"speed": "fast"}, "tools"),
]


def tier_read(changed: Wire) -> str:
    """The last tier that a changed request still reads from the cache of the plain one."""
    provider = simulator()
    usage(provider, tiered())
    tokens = [entry.tokens for entry in provider.cache]
    tiers = dict(zip(tokens, ("tools", "system", "messages"), strict=True))
    return tiers[usage(provider, changed)["cache_read_input_tokens"]]


@pytest.mark.parametrize(("fields", "read"), TIERS)
def test_a_changed_parameter_keeps_the_tiers_before_its_own(fields: Wire, read: str) -> None:
    assert tier_read(tiered(**fields)) == read


@pytest.mark.parametrize(
    ("more", "read"),
    [
        (IMAGE, "system"),
        ({"type": "image", "source": {"type": "url", "url": "u"}, "new": 1}, "system"),
        ({**DOCUMENT, "citations": {"enabled": True}}, "tools"),
        ({**DOCUMENT, "citations": {"enabled": False}}, "messages"),
        (DOCUMENT, "messages"),
    ],
)
def test_an_image_or_a_cited_document_anywhere_invalidates_its_tier(more: Wire, read: str) -> None:
    assert tier_read(tiered(more)) == read


def test_an_image_in_a_tool_result_is_an_image() -> None:
    def loop(content: list[Wire]) -> Wire:
        call = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t", "content": content, "cache_control": CACHE_CONTROL}
        return request(
            user(text("Hello.", CACHE_CONTROL)), assistant(call), user(result), system=[text(LONG, CACHE_CONTROL)]
        )

    provider = simulator()
    usage(provider, loop([text("seen")]))
    system, messages, _ = (entry.tokens for entry in provider.cache)
    assert usage(provider, loop([text("unseen")]))["cache_read_input_tokens"] == messages
    assert usage(provider, loop([IMAGE]))["cache_read_input_tokens"] == system


def test_enabling_web_search_keeps_the_other_tools() -> None:
    assert tier_read(tiered(tools=(SEARCH,))) == "tools"


def test_breakpoints_that_web_search_puts_out_of_order_are_refused() -> None:
    tools = [{**SEARCH, "cache_control": CACHE_CONTROL_1H}, tool("read", CACHE_CONTROL)]
    status, _, message = refusal(simulator(), request(user("Hello."), tools=tools))
    assert status == 400
    assert "must not come after" in message


def test_a_changed_tool_invalidates_everything() -> None:
    provider = simulator()
    usage(provider, tiered())
    more = [tool("another"), tool("read", CACHE_CONTROL)]
    assert usage(provider, {**tiered(), "tools": more})["cache_read_input_tokens"] == 0


@pytest.mark.parametrize(
    ("name", "value", "other"),
    [
        ("thinking", {"type": "adaptive"}, {"type": "disabled"}),
        ("tool_choice", {"type": "auto"}, {"type": "none"}),
    ],
)
def test_a_changed_parameter_value_invalidates_the_messages(name: str, value: Wire, other: Wire) -> None:
    provider = simulator()
    usage(provider, {**tiered(), name: value})
    system = provider.cache[1].tokens
    assert usage(provider, {**tiered(), name: other})["cache_read_input_tokens"] == system


@pytest.mark.parametrize(("breaks", "read_tokens"), [(False, 2), (True, 1)])
def test_effort_invalidates_the_messages_where_the_catalog_says_so(breaks: bool, read_tokens: int) -> None:
    provider = simulator(models=models_with(effort_breaks_messages=breaks))
    usage(provider, tiered(output_config={"effort": "low"}))
    tokens = provider.cache[read_tokens].tokens
    assert usage(provider, tiered(output_config={"effort": "high"}))["cache_read_input_tokens"] == tokens


def test_the_encoding_of_a_parameter_does_not_matter() -> None:
    provider = simulator()
    first = {"type": "adaptive", "display": "omitted"}
    usage(provider, tiered(thinking=first))
    second = usage(provider, tiered(thinking=dict(reversed(first.items()))))
    assert second["cache_creation_input_tokens"] == 0


def test_text_as_a_string_and_as_a_block_is_the_same_prompt() -> None:
    provider = simulator()
    usage(provider, request_with_breakpoint())
    longer = request(
        {"role": "user", "content": "Hello."}, assistant("Hi."), user(text("More.", CACHE_CONTROL)), system=[text(LONG)]
    )
    assert usage(provider, longer)["cache_read_input_tokens"] > 0


def test_two_user_messages_in_a_row_are_one() -> None:
    provider = simulator()
    usage(provider, request(user("One.", text("Two.", CACHE_CONTROL)), system=LONG))
    again = usage(provider, request(user("One."), user(text("Two.", CACHE_CONTROL)), system=LONG))
    assert again["cache_creation_input_tokens"] == 0


def test_the_same_text_in_another_role_is_another_prompt() -> None:
    provider = simulator()
    usage(provider, request(user("One."), assistant("Two."), user(text("Three.", CACHE_CONTROL)), system=LONG))
    again = usage(provider, request(user("One.", "Two.", text("Three.", CACHE_CONTROL)), system=LONG))
    assert again["cache_read_input_tokens"] == 0


# The automatic breakpoint


def test_the_automatic_breakpoint_moves_forward_with_the_conversation() -> None:
    provider = simulator()
    first = usage(provider, request(user("Hello."), system=LONG, cache_control=CACHE_CONTROL))
    longer = request(user("Hello."), assistant("Hi."), user("Go on."), system=LONG, cache_control=CACHE_CONTROL)
    second = usage(provider, longer)
    assert second["input_tokens"] == 0
    assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"] > 0


def test_an_automatic_breakpoint_can_have_a_one_hour_ttl() -> None:
    assert buckets(usage(simulator(), request(user("Hello."), system=LONG, cache_control=CACHE_CONTROL_1H)))[3] > 0


def test_a_null_automatic_breakpoint_has_no_effect() -> None:
    assert buckets(usage(simulator(), request(user("Hello."), system=LONG, cache_control=None)))[2:] == (0, 0)


def test_an_automatic_breakpoint_next_to_an_equal_one_changes_nothing() -> None:
    parts = [text(f"Part {n}.", CACHE_CONTROL) for n in range(4)]
    body = request(user(*parts), system=LONG, cache_control=CACHE_CONTROL)
    assert buckets(usage(simulator(), body)) == buckets(usage(simulator(), request(user(*parts), system=LONG)))


def test_an_automatic_breakpoint_goes_before_blocks_that_do_not_accept_it() -> None:
    provider = simulator('{"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi."}]}')
    model = "claude-opus-4-5"
    ask = request(user(LONG * 8), model=model)
    _, reply = post(provider, ask)
    body = request(user(LONG * 8), assistant(reply["content"][0]), model=model, cache_control=CACHE_CONTROL)
    reported = usage(provider, body)
    assert reported["input_tokens"] > 0
    assert reported["cache_creation_input_tokens"] == count_tokens(provider, ask)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (
            [text("Hello.", CACHE_CONTROL_1H)],
            "the automatic breakpoint has ttl '5m', but the breakpoint on messages.0.content.0 has",
        ),
        ([*(text(str(n), CACHE_CONTROL) for n in range(4)), text("Last.")], "all are taken"),
    ],
)
def test_an_automatic_breakpoint_that_conflicts_or_exceeds_the_maximum_is_refused(
    blocks: list[Wire], words: str
) -> None:
    status, kind, message = refusal(simulator(), request(user(*blocks), cache_control=CACHE_CONTROL))
    assert (status, kind) == (400, "invalid_request_error")
    assert words in message


@pytest.mark.parametrize("value", [{"type": "forever"}, {"type": "ephemeral", "ttl": "2h"}, "yes", 1])
def test_a_malformed_automatic_breakpoint_is_refused(value: object) -> None:
    status, _, message = refusal(simulator(), request(user("Hello."), cache_control=value))
    assert status == 400
    assert 'cache_control: must be {"type": "ephemeral"}' in message


def test_an_automatic_breakpoint_is_refused_by_models_that_do_not_support_it() -> None:
    provider = simulator(models=models_with(accepts_automatic_breakpoint=False))
    assert (
        "accepts breakpoints on blocks only"
        in refusal(provider, request(user("Hello."), cache_control=CACHE_CONTROL))[2]
    )


def test_an_automatic_breakpoint_is_validated_when_tokens_are_counted() -> None:
    body = request(user(*(text(str(n), CACHE_CONTROL) for n in range(4)), "Last."), cache_control=CACHE_CONTROL)
    assert refusal(simulator(), body, path="/v1/messages/count_tokens")[0] == 400


# Prewarming


def test_a_request_without_output_warms_the_cache() -> None:
    provider = simulator('{"content": "Never said.", "fault": "500"}')
    status, reply = post(provider, request_with_breakpoint(max_tokens=0))
    assert status == 200
    assert (reply["content"], reply["stop_reason"], reply["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    assert reply["usage"]["cache_creation_input_tokens"] > 0
    provider = simulator()
    usage(provider, request_with_breakpoint(max_tokens=0))
    assert usage(provider, request_with_breakpoint())["cache_read_input_tokens"] > 0


# Time


def test_the_providers_time_is_the_clock_plus_the_advances() -> None:
    clock = ManualClock(1_000)
    provider = SimulatedProvider(clock=clock)
    assert provider.advance(50) == 1_050
    clock.advance(5)
    assert provider.advance(0) == provider.now() == 1_055


def test_requests_are_logged_with_their_time_and_their_bytes() -> None:
    provider = simulator(start=500.0)
    raw = b'{ "model": "' + SONNET.encode() + b'", "max_tokens": 5, "messages": [] }'
    post(provider, raw)
    provider.advance(10)
    usage(provider, request_with_breakpoint())
    first, second = provider.requests
    assert (first.at, first.method, first.path, first.status, first.body) == (500, "POST", "/v1/messages", 400, raw)
    assert (second.at, second.status) == (510, 200)
