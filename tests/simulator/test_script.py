"""The simulated model's scripted replies and failures."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.simulated import Wire, assistant, post, refusal, request, simulator, text, user

from holdfast.errors import UserError
from holdfast.simulator import provider as provider_module
from holdfast.simulator.faults import StatusFault, parse_fault
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import ScriptedReply, load_script, parse_script
from holdfast.types.blocks import Text, ToolUse

TWO = '{"content": "One."}\n{"content": [{"type": "text", "text": "Two."}]}\n'
READ = {"type": "tool_use", "name": "read", "input": {"path": "a"}}


def line(content: list[Wire] | str, **fields: Any) -> str:
    return msgspec.json.encode({"content": content, **fields}).decode()


def reply_text(provider: SimulatedProvider, *messages: Wire, **options: Any) -> str:
    status, reply = post(provider, request(*messages), **options)
    assert status == 200, reply
    return "".join(block["text"] for block in reply["content"])


# Replies


def test_the_reply_is_the_script_line_of_the_turn() -> None:
    provider = simulator(TWO)
    assert reply_text(provider, user("Ask.")) == "One."
    assert reply_text(provider, user("Ask."), assistant("One."), user("More.")) == "Two."
    assert reply_text(provider, user("Another.")) == "One."


def test_a_function_can_replace_a_script() -> None:
    provider = SimulatedProvider(script=lambda messages: ScriptedReply((Text(f"{len(messages)} so far"),)))
    assert reply_text(provider, user("Ask.")) == "1 so far"
    assert reply_text(provider, user("Ask."), assistant("One."), user("More.")) == "3 so far"


def test_a_repeated_request_gets_the_same_reply() -> None:
    provider = simulator(TWO)
    assert reply_text(provider, user("Ask.")) == reply_text(provider, user("Ask.")) == "One."


def test_assistant_messages_in_a_row_are_one_turn() -> None:
    provider = simulator(TWO)
    assert reply_text(provider, user("Ask."), assistant("On"), assistant("e."), user("More.")) == "Two."


def test_a_prefilled_assistant_message_is_not_a_turn() -> None:
    _, reply = post(simulator(TWO), request(user("Ask."), assistant("On"), model="claude-opus-4-5"))
    assert reply["content"][0]["text"] == "One."


def test_after_the_script_the_last_message_is_echoed() -> None:
    provider = simulator('{"content": "One."}')
    assert reply_text(provider, user("Ask."), assistant("One."), user("Aside.", "More.")) == "Echo: More."


def test_an_echo_uses_the_last_message_with_text() -> None:
    call = {**READ, "id": "t"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "ok"}
    assert reply_text(simulator(), user("Ask."), assistant(call), user(result)) == "Echo: Ask."


def test_an_echo_is_bounded() -> None:
    assert reply_text(simulator(), user("a" * 400)) == "Echo: " + "a" * 400
    assert reply_text(simulator(), user("a" * 401)) == "Echo: " + "a" * 400 + "…"


def test_an_echo_without_text_says_so() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    assert reply_text(simulator(), user(image)) == "Echo: nothing was said."


@pytest.mark.parametrize(
    ("content", "stop_reason", "expected"),
    [
        ([text("Done.")], None, "end_turn"),
        ([text("Look."), READ], None, "tool_use"),
        ([text("Done.")], "refusal", "refusal"),
        ([text("Done.")], "max_tokens", "max_tokens"),
        ([READ], "end_turn", "end_turn"),
    ],
)
def test_the_stop_reason_follows_from_the_content_unless_the_line_has_one(
    content: list[Wire], stop_reason: str | None, expected: str
) -> None:
    fields = {} if stop_reason is None else {"stop_reason": stop_reason}
    _, reply = post(simulator(line(content, **fields)), request(user("Ask.")))
    assert (reply["stop_reason"], reply["stop_sequence"]) == (expected, None)


def test_a_reply_that_stops_at_a_sequence_names_the_first_requested_one() -> None:
    provider = simulator(line("Done.", stop_reason="stop_sequence"))
    _, reply = post(provider, request(user("Ask."), stop_sequences=["END", "FIN"]))
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "END")


def test_call_ids_depend_only_on_the_conversation() -> None:
    script = line([READ, READ])

    def ids(ask: str) -> list[str]:
        return [block["id"] for block in post(simulator(script), request(user(ask)))[1]["content"]]

    first, second = ids("Ask.")
    assert first.startswith("toolu_")
    assert len(first) == len("toolu_") + 24
    assert first != second
    assert ids("Ask.") == [first, second]
    assert not set(ids("Another.")) & {first, second}


def test_an_id_in_the_script_is_used() -> None:
    _, reply = post(simulator(line([{**READ, "id": "mine"}])), request(user("Ask.")))
    assert reply["content"] == [{**READ, "id": "mine"}]


def test_a_reply_has_an_id_and_usage() -> None:
    provider = simulator(TWO)
    _, first = post(provider, request(user("Ask.")))
    _, second = post(provider, request(user("Ask.")))
    assert (first["id"], second["id"]) == ("msg_sim-000001", "msg_sim-000002")
    assert (first["type"], first["role"], first["model"]) == ("message", "assistant", "claude-sonnet-5-5")
    assert first["usage"]["output_tokens"] > 0
    longer = post(simulator(line("One. " * 50)), request(user("Ask.")))[1]
    assert longer["usage"]["output_tokens"] > first["usage"]["output_tokens"] + 50


def test_output_is_counted_like_the_same_text_as_input() -> None:
    provider = simulator(line([text("Hello there.")]))
    _, reply = post(provider, request(user("Ask.")))
    _, second = post(provider, request(user("Ask."), assistant(*reply["content"]), user("More.")))
    _, alone = post(provider, request(user("Ask."), user("More.")))
    growth = second["usage"]["input_tokens"] - alone["usage"]["input_tokens"]
    assert reply["usage"]["output_tokens"] == growth


def test_every_reply_has_its_own_id() -> None:
    provider = simulator()
    body = msgspec.json.encode(request(user("Ask.")))
    answers = [provider.handle("POST", "/v1/messages", headers={"x-api-key": "k"}, body=body) for _ in range(2)]
    answers.append(provider.handle("POST", "/v1/messages", body=body))
    assert [answer.headers["request-id"] for answer in answers] == [
        "req_sim-000001",
        "req_sim-000002",
        "req_sim-000003",
    ]
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}


def test_two_simulators_reply_alike_byte_for_byte() -> None:
    def bodies() -> list[bytes]:
        provider = simulator(TWO)
        asks = (request(user("Ask."), stream=stream) for stream in (False, True))
        return [
            provider.handle(
                "POST", "/v1/messages", headers={"x-api-key": "k"}, body=msgspec.json.encode(ask)
            ).read_body()
            for ask in asks
        ]

    complete, streamed = bodies()
    assert [complete, streamed] == bodies()
    assert {line.split(b": ")[0] for line in streamed.splitlines()} == {b"event", b"data", b""}


# Scripts


def test_a_script_is_parsed_line_by_line() -> None:
    script = parse_script(
        '{"fault": "500"}\n{"content": [{"type": "tool_use", "name": "a"}], "fault": "429"}\r\n' + TWO
    )
    assert script.replies == (
        ScriptedReply((ToolUse("", "a", "{}"),), None, (StatusFault(500), StatusFault(429))),
        ScriptedReply((Text("One."),)),
        ScriptedReply((Text("Two."),)),
    )


def test_failures_at_the_end_of_a_script_come_before_the_echo() -> None:
    script = parse_script('{"content": "One."}\n{"fault": "500"}\n')
    assert script.replies[1:] == (ScriptedReply(None, None, (StatusFault(500),)),)
    assert script.find_reply(2) == ScriptedReply(None)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ('{"text": "hi"}', "known fields: content, stop_reason, fault"),
        ("{", "line 2 of 'script'"),
        ("[]", "Expected `object`"),
        ("{}", "neither content nor fault"),
        ('{"content": [], "fault": "500"}', "content is empty"),
        ('{"content": ""}', "content is empty"),
        ('{"content": " "}', "content is empty"),
        ('{"content": [{"text": "no type"}]}', "missing required field `type`"),
        ('{"content": [{"type": "text"}]}', "missing required field `text`"),
        ('{"content": "a", "stop": 1}', "unknown field `stop`"),
        ('{"content": "a", "stop_reason": "tired"}', "unknown stop_reason 'tired'; known: end_turn, max_tokens"),
        ('{"content": "a", "fault": "flood"}', "unknown fault 'flood'"),
        ('{"content": ' + "[" * 5_000 + "]" * 5_000 + "}", "line 2"),
    ],
)
def test_an_invalid_line_is_named_by_its_number(bad: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        parse_script(f'{{"content": "One."}}\n{bad}\n{{"content": "Two."}}')
    assert str(error.value).startswith("line 2 of 'script': ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_blank_lines_are_skipped_and_counted() -> None:
    assert parse_script('\n{"content": "a"}\n  \n{"content": "b"}\n\n') == parse_script(
        '{"content": "a"}\n{"content": "b"}'
    )
    with pytest.raises(UserError, match="line 3 of"):
        parse_script("\n\n{\n")


def test_a_script_may_be_given_as_text() -> None:
    assert (
        SimulatedProvider(script='{"content": "a"}')
        .handle(
            "POST",
            "/v1/messages",
            headers={"x-api-key": "k"},
            body=b'{"model":"claude-sonnet-5-5","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}',
        )
        .read_body()
        .count(b'"text":"a"')
        == 1
    )


def test_an_empty_script_has_no_replies() -> None:
    assert parse_script("").replies == ()


def test_a_script_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_bytes(b'{"content": "\xff"}')
    with pytest.raises(UserError, match=r"line 1 of '.*script\.jsonl'"):
        load_script(path)


def test_a_script_is_loaded_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(TWO)
    assert load_script(path) == parse_script(TWO)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.jsonl' cannot be read: No such file"):
        load_script(tmp_path / "missing.jsonl")
    with pytest.raises(UserError, match="Is a directory"):
        load_script(tmp_path)


def test_an_endless_script_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(TWO)
    monkeypatch.setattr("holdfast.simulator.script.SCRIPT_BYTES_MAX", len(TWO))
    assert load_script(path) == parse_script(TWO)
    monkeypatch.setattr("holdfast.simulator.script.SCRIPT_BYTES_MAX", len(TWO) - 1)
    with pytest.raises(UserError, match=f"more than {len(TWO) - 1} bytes"):
        load_script(path)


# Faults


@pytest.mark.parametrize(
    ("specification", "fault"),
    [
        ("400", StatusFault(400)),
        ("599", StatusFault(599)),
        (" 529 ", StatusFault(529)),
        ("429;retry-after=1", StatusFault(429, 1.0)),
        ("503; retry-after = 0.5", StatusFault(503, 0.5)),
        ("429;retry-after=0", StatusFault(429, 0.0)),
    ],
)
def test_a_failure_is_a_status_with_an_optional_pause(specification: str, fault: StatusFault) -> None:
    assert parse_fault(specification) == fault


@pytest.mark.parametrize(
    "specification",
    [
        *("", "399", "600", "42900", "-429", "²", "flood", "429;", "429;after=1", "429;retry-after"),
        *(f"429;retry-after={pause}" for pause in ("soon", "-1", "inf", "nan")),
    ],
)
def test_an_unknown_failure_is_refused_with_a_list_of_the_known_ones(specification: str) -> None:
    with pytest.raises(UserError, match=r"known: an HTTP status from 400 to 599.*429;retry-after=1"):
        parse_fault(specification)


def test_scripted_failures_come_once_before_their_reply() -> None:
    provider = simulator('{"fault": "529"}\n{"content": "One.", "fault": "500"}\n{"content": "Two."}')
    ask = request(user("Ask."))
    assert refusal(provider, ask) == (529, "overloaded_error", "this failure was ordered")
    assert refusal(provider, ask)[:2] == (500, "api_error")
    assert reply_text(provider, user("Ask.")) == "One."
    assert reply_text(provider, user("Ask.")) == "One."
    assert reply_text(provider, user("Ask."), assistant("One."), user("More.")) == "Two."


def test_each_conversation_and_each_key_fails_separately() -> None:
    provider = simulator('{"content": "One.", "fault": "500"}')
    assert refusal(provider, request(user("Ask.")))[0] == 500
    assert refusal(provider, request(user("Another.")))[0] == 500
    assert refusal(provider, request(user("Ask."), system="Be brief."))[0] == 500
    assert refusal(provider, request(user("Ask.")), key="other")[0] == 500
    assert post(provider, request(user("Ask."), model="claude-opus-5-5"))[0] == 200


def test_a_conversation_is_identified_by_its_start() -> None:
    provider = simulator('{"content": "One."}\n{"content": "Two.", "fault": "500"}')
    assert refusal(provider, request(user("Ask."), assistant("One."), user("More.")))[0] == 500
    other_tools = [{"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}]
    again = request(user("Ask."), assistant("Another."), user("Yet more."), tools=other_tools)
    assert post(provider, again)[0] == 200


def test_a_failure_reads_and_writes_nothing() -> None:
    provider = simulator('{"content": "One.", "fault": "500"}')
    body = request(user(text("word " * 2_000, {"type": "ephemeral"})))
    refusal(provider, body)
    assert provider.cache == ()


def test_a_pause_is_sent_in_seconds() -> None:
    provider = simulator('{"content": "One.", "fault": "429;retry-after=1.5"}')
    body = msgspec.json.encode(request(user("Ask.")))
    answer = provider.handle("POST", "/v1/messages", headers={"x-api-key": "k"}, body=body)
    assert (answer.status, answer.headers["retry-after"]) == (429, "1.5")
    assert msgspec.json.decode(answer.read_body())["error"]["type"] == "rate_limit_error"


def test_a_failure_without_a_pause_sends_none() -> None:
    answer = simulator().handle("GET", "/v1/models", headers={"x-api-key": "k", "X-Holdfast-Fault": "529"})
    assert answer.status == 529
    assert "retry-after" not in answer.headers


def test_a_failure_requested_by_header_comes_every_time() -> None:
    provider = simulator()
    for _ in range(2):
        assert refusal(provider, request(user("Ask.")), headers={"x-holdfast-fault": "529"})[0] == 529
    assert provider.requests[-1].status == 529


def test_an_unknown_failure_requested_by_header_is_refused() -> None:
    status, kind, message = refusal(simulator(), request(user("Ask.")), headers={"x-holdfast-fault": "flood"})
    assert (status, kind) == (400, "invalid_request_error")
    assert "x-holdfast-fault: unknown fault 'flood'; known: an HTTP status" in message


def test_the_conversations_that_failed_first_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "FAILING_TURNS_MAX", 2)
    provider = simulator('{"content": "One.", "fault": "500"}')
    for ask in ("a", "b", "c"):
        assert refusal(provider, request(user(ask)))[0] == 500
    assert post(provider, request(user("b")))[0] == 200
    assert refusal(provider, request(user("a")))[0] == 500


def test_time_can_be_advanced_by_ten_years_at_once() -> None:
    years = 10 * 365 * 24 * 3_600.0
    assert simulator(start=0.0).advance(years) == years


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 10 * 365 * 24 * 3_600 + 1.0])
def test_an_invalid_advance_of_time_is_refused(seconds: float) -> None:
    with pytest.raises(UserError, match="cannot advance by"):
        simulator().advance(seconds)
