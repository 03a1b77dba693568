"""Properties of any two compared requests, for every provider."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values
from tests.support.wires import wire_of

from holdfast.errors import UserError
from holdfast.ledger.cache.prefix_diff import DIFF_LINES_MAX, LINE_CHARS_MAX, compare_requests, diff_texts
from holdfast.ledger.requests.explain import explain_request
from holdfast.ledger.requests.parse import ParsedRequest, parse_request
from holdfast.providers.adapter import Adapter
from holdfast.providers.registry import get_adapter
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.request_buffer import common_prefix_length

MODELS = (
    "anthropic:claude-sonnet-5-5",
    "openai:gpt-6-sol",
    "openai-chat:gpt-5.4",
    "gemini:gemini-3.8-flash",
    "openrouter:anthropic/claude-sonnet-5.5",
)
every_model = pytest.mark.parametrize("model", MODELS)


def adapter_of(model: str) -> Adapter:
    return get_adapter(model.partition(":")[0])


def encode_and_parse(model: str, prompt: Prompt, plan: Plan = Plan()) -> ParsedRequest:  # noqa: B008 - frozen
    parameters = Parameters(model.partition(":")[2], output_tokens_max=100)
    return parse_request(adapter_of(model).encode_request(prompt, plan, parameters), model=model)


@every_model
@given(st.data())
def test_moved_breakpoints_change_no_prefix(model: str, data: st.DataObject) -> None:
    adapter, prompt = adapter_of(model), data.draw(values.prompts)
    accepting = [index for index, block in enumerate(values.encode_blocks(adapter, prompt)) if block.accepts_breakpoint]
    plans = values.plans(accepting, wire_of(adapter).ttls)
    one, two = encode_and_parse(model, prompt, data.draw(plans)), encode_and_parse(model, prompt, data.draw(plans))
    assert compare_requests(one, two, None).is_prefix_unchanged
    assert compare_requests(one, two, None).tokens_lost == 0


@every_model
@given(
    values.prompts,
    st.lists(values.history_entries.filter(lambda entry: "image" not in str(entry).lower()), max_size=3),
)
def test_a_prompt_that_grew_by_text_is_unchanged(model: str, prompt: Prompt, more: list[HistoryEntry]) -> None:
    grown = Prompt((*prompt.segments, Segment("history", Stability.GROWING, "messages", entries=tuple(more))))
    comparison = compare_requests(encode_and_parse(model, prompt), encode_and_parse(model, grown), None)
    assert comparison.difference is None


@every_model
@given(values.prompts, st.text(min_size=1, max_size=5))
def test_a_changed_system_text_is_named_with_the_first_differing_byte(model: str, prompt: Prompt, text: str) -> None:
    before_messages = [segment for segment in prompt.segments if segment.section != "messages"]
    original = Segment("late", Stability.EPOCH, "system", system=(Text(f"same {text}"),))
    changed = Segment("late", Stability.EPOCH, "system", system=(Text(f"Same {text}"),))
    messages = [segment for segment in prompt.segments if segment.section == "messages"]
    one, two = (encode_and_parse(model, Prompt((*before_messages, part, *messages))) for part in (original, changed))
    comparison = compare_requests(one, two, None)
    assert comparison.difference is not None
    old, new = one.buffer.cacheable_bytes(), two.buffer.cacheable_bytes()
    assert old[: comparison.difference.byte] == new[: comparison.difference.byte]
    assert old[comparison.difference.byte] != new[comparison.difference.byte]
    assert comparison.difference.section == "system"
    assert not comparison.is_prefix_unchanged
    assert [tier.is_unchanged for tier in comparison.sections if tier.section == "messages"] in ([], [False])


@every_model
@given(values.prompts)
def test_every_block_has_a_valid_path(model: str, prompt: Prompt) -> None:
    parameters = Parameters(model.partition(":")[2], output_tokens_max=100)
    body = adapter_of(model).encode_request(prompt, Plan(), parameters)
    request = parse_request(body, model=model)
    assert len(request.paths) == len(request.buffer.blocks)
    for path in request.paths:
        value = json.loads(body)
        for step in path.split("."):
            value = value[int(step)] if isinstance(value, list) else value[step]
        assert value is not None


@every_model
@given(values.prompts)
def test_an_explanation_covers_every_token_and_a_later_change_costs_no_more(model: str, prompt: Prompt) -> None:
    explained = explain_request(encode_and_parse(model, prompt), None)
    assert sum(part.tokens for part in explained.blocks) == explained.tokens
    lost = [part.rewritten_tokens for part in explained.blocks]
    assert lost == sorted(lost, reverse=True)
    assert sum(layer.tokens for layer in explained.layers) == explained.tokens
    assert sum(layer.blocks for layer in explained.layers) == len(explained.blocks)


@given(st.binary(max_size=200) | values.json_objects.map(lambda value: json.dumps(value).encode()))
def test_any_file_is_parsed_or_refused_in_one_line(raw: bytes) -> None:
    with pytest.raises(UserError) as refused:
        parse_request(raw)
    assert "\n" not in str(refused.value)


@given(
    st.sampled_from(["messages", "contents", "input", "tools", "system", "systemInstruction", "model", "instructions"]),
    st.sampled_from(["messages", "contents", "input"]),
    values.json_values,
)
def test_a_value_of_the_wrong_type_is_parsed_or_refused_in_one_line(name: str, prompt: str, value: object) -> None:
    body = {"model": "claude-sonnet-5-5", "max_tokens": 1, prompt: [], name: value}
    refused = ""
    try:
        explain_request(parse_request(json.dumps(body).encode()), None)
    except UserError as error:
        refused = str(error)
    assert "\n" not in refused


@given(st.text(max_size=2000), st.text(max_size=2000))
def test_a_diff_is_short_and_present_if_texts_differ(old: str, new: str) -> None:
    lines = diff_texts(old, new)
    assert len(lines) <= DIFF_LINES_MAX
    assert all(len(line) <= LINE_CHARS_MAX for line in lines)
    if old.splitlines() != new.splitlines():
        assert any(line[:1] in ("-", "+") for line in lines)


@given(st.binary(max_size=50), st.binary(max_size=50), st.binary(max_size=50))
def test_the_common_prefix_ends_where_two_texts_differ(same: bytes, old: bytes, new: bytes) -> None:
    comparison = common_prefix_length(same + old, same + new, len(same))
    assert (same + old)[:comparison] == (same + new)[:comparison]
    assert comparison == min(len(same + old), len(same + new)) or (same + old)[comparison] != (same + new)[comparison]
