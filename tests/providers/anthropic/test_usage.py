"""Which tokens of a call count as what."""

import json

import pytest

from holdfast.providers.anthropic import anthropic
from holdfast.types.usage import Usage


@pytest.mark.parametrize(
    ("usage", "counted"),
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
def test_usage_falls_into_separate_buckets(usage: object, counted: Usage) -> None:
    assert anthropic.decode_reply(json.dumps({"content": [], "usage": usage}).encode()).usage == counted


def test_what_a_compaction_took_is_a_part_of_the_whole_and_told_apart() -> None:
    summed_up = {"type": "compaction", "input_tokens": 100, "cache_read_input_tokens": 150, "output_tokens": 30}
    usage = {"input_tokens": 10, "output_tokens": 5, "iterations": [summed_up, {"type": "message", "input_tokens": 10}]}
    reply = anthropic.decode_reply(json.dumps({"content": [], "usage": usage}).encode())
    assert reply.usage == Usage(input=110, cache_read=150, output=35)
    assert reply.compaction_usage == Usage(input=100, cache_read=150, output=30)
