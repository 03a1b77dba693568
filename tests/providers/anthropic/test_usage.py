"""Assignment of a call's tokens to usage buckets."""

import json

import pytest

from holdfast.providers.anthropic import anthropic
from holdfast.types.usage import Usage


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({}, Usage()),
        (None, Usage()),
        ({"input_tokens": 1, "output_tokens": 2}, Usage(input=1, output=2)),
        ({"cache_creation_input_tokens": 5}, Usage(cache_write_5m=5)),
        ({"cache_creation": {"ephemeral_1h_input_tokens": 4}}, Usage(cache_write_1h=4)),
        (
            {"cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}},
            Usage(cache_write_5m=3, cache_write_1h=4),
        ),
        (
            {"cache_creation_input_tokens": 9, "cache_creation": {"ephemeral_1h_input_tokens": 4}},
            Usage(cache_write_5m=5, cache_write_1h=4),
        ),
        (
            {"cache_creation_input_tokens": 3, "cache_creation": {"ephemeral_1h_input_tokens": 4}},
            Usage(cache_write_1h=3),
        ),
        ({"input_tokens": -5, "cache_read_input_tokens": None}, Usage()),
    ],
)
def test_usage_falls_into_separate_buckets(usage: object, expected: Usage) -> None:
    assert anthropic.decode_reply(json.dumps({"content": [], "usage": usage}).encode()).usage == expected


def test_the_usage_of_a_compaction_is_part_of_the_total_and_listed_separately() -> None:
    summed_up = {"type": "compaction", "input_tokens": 100, "cache_read_input_tokens": 150, "output_tokens": 30}
    usage = {"input_tokens": 10, "output_tokens": 5, "iterations": [summed_up, {"type": "message", "input_tokens": 10}]}
    reply = anthropic.decode_reply(json.dumps({"content": [], "usage": usage}).encode())
    assert reply.usage == Usage(input=110, cache_read=150, output=35)
    assert reply.compaction_usage == Usage(input=100, cache_read=150, output=30)
