"""Classification of provider errors by their messages."""

import pytest

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.errors import classify_status
from holdfast.recovery.scenarios import (
    FailureScenario,
    ReportedWindow,
    classify_breakpoint_problem,
    classify_refusal,
    parse_reported_window,
)

BREAKPOINTS, THINKING = FailureScenario.ProviderRejectsMarker, FailureScenario.ThinkingPrefixMismatch
PAIR, OVERFLOW = FailureScenario.OrphanToolPair, FailureScenario.ContextOverflow


@pytest.mark.parametrize(
    ("message", "scenario"),
    [
        ("A maximum of 4 blocks with cache_control may be provided. Found 5.", BREAKPOINTS),
        ("messages.0.content.0.text.cache_control: Extra inputs are not permitted", BREAKPOINTS),
        ("messages.3.content.1: cache_control cannot be set for thinking blocks", BREAKPOINTS),
        ("Unsupported parameter: 'prompt_cache_breakpoint' is not supported with this model.", BREAKPOINTS),
        ("messages.1.content.0: Invalid `signature` in `thinking` block", THINKING),
        ("`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.", THINKING),
        ("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.", THINKING),
        ("messages.1: this thinking block is bound to a different conversation", THINKING),
        ("Thought signature is not valid.", THINKING),
        ("Function call is missing a thought_signature in functionCall parts.", THINKING),
        ("The encrypted content for item rs_1 could not be verified.", THINKING),
        ("messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1.", PAIR),
        ("messages.0.content.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1.", PAIR),
        ("An assistant message with 'tool_calls' must be followed by tool messages", PAIR),
        ("No tool output found for function call call_1.", PAIR),
        ("No tool call found for function call output with call_id call_1.", PAIR),
        ("Please ensure that function response turn comes immediately after a function call turn.", PAIR),
        ("prompt is too long: 204123 tokens > 200000 maximum", OVERFLOW),
        ("This model's maximum context length is 128000 tokens.", OVERFLOW),
        ("messages.0: image cannot be read", None),
        ("max_tokens: 100000 > 64000, which is the maximum", None),
        ("tools.0.input_schema: must be an object", None),
        ("thinking.enabled.budget_tokens: must be an integer, at least 1024", None),
        ("tools: Tool names must be unique.", None),
    ],
)
def test_a_refusal_is_classified_by_its_message(message: str, scenario: FailureScenario | None) -> None:
    assert classify_refusal(ProviderError(classify_status(400, message), message, status=400)) is scenario


@pytest.mark.parametrize(
    ("kind", "status"), [("auth", 401), ("rate_limit", 429), ("server_error", 500), ("invalid_request", None)]
)
def test_other_failures_are_not_classified_as_repairable(kind: FailureKind, status: int | None) -> None:
    assert classify_refusal(ProviderError(kind, "cache_control: no", status=status)) is None


def test_a_request_with_too_many_bytes_is_an_overflow_too() -> None:
    assert classify_refusal(ProviderError("context_overflow", "Request too large", status=413)) is OVERFLOW


@pytest.mark.parametrize(
    ("message", "window"),
    [
        ("prompt is too long: 204123 tokens > 200000 maximum", ReportedWindow(200_000, 204_123)),
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130001 tokens.",
            ReportedWindow(128_000, 130_001),
        ),
        ("This model's maximum context length is 128000 tokens.", ReportedWindow(128_000)),
        (
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            ReportedWindow(1_048_576, 1_200_000),
        ),
        ("Request exceeds the maximum size", None),
        ("prompt is too long: 5 tokens > 0 maximum", None),
        ("9" * 5_000 + " tokens > " + "9" * 5_000, ReportedWindow(999_999_999_999, 999_999_999_999)),
    ],
)
def test_the_window_is_parsed_from_an_overflow(message: str, window: ReportedWindow | None) -> None:
    assert parse_reported_window(message) == window


def test_ttl_problems_are_distinguished_from_breakpoint_problems() -> None:
    assert classify_breakpoint_problem("cache_control.ephemeral.ttl: Extra inputs are not permitted") == "ttl"
    assert classify_breakpoint_problem("A maximum of 4 blocks with cache_control may be provided.") == "breakpoints"
