"""Properties of blocks, usage, digests and canonical JSON."""

import hashlib
import os
import subprocess
import sys
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.operations import OperationCounter

from holdfast.types.blocks import (
    Base64Source,
    Block,
    FileSource,
    Image,
    Json,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
    join_text_blocks,
    make_assistant_message,
    make_user_message,
    replace_surrogates,
)
from holdfast.types.json_encoding import JSON_ENCODING_VERSION, canonical_json, encode_json, extend_digest, sha256_hex
from holdfast.types.prompt import HistoryEntry, Prompt, Segment, Stability
from holdfast.types.request_buffer import (
    EncodedBlock,
    PrefixDigest,
    count_shared_blocks,
    count_stable_blocks,
    extend_digest_chain,
)
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage

texts = st.text(max_size=5)
images = st.builds(
    Image,
    st.one_of(st.builds(Base64Source, texts, texts), st.builds(UrlSource, texts), st.builds(FileSource, texts)),
)
opaques = st.builds(Opaque, texts, st.binary(max_size=8))
blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, texts),
    images,
    opaques,
    st.builds(ToolUse, texts, texts, texts),
    st.builds(Thinking, texts, st.none() | texts),
    st.builds(RedactedThinking, texts),
    st.builds(
        ToolResult, texts, st.lists(st.builds(Text, texts) | images | opaques, max_size=2).map(tuple), st.booleans()
    ),
)


@settings(max_examples=50, deadline=None)
@given(blocks)
def test_every_block_survives_a_round_trip_through_json(block: Block) -> None:
    decoded: Block = msgspec.json.decode(msgspec.json.encode(block), type=Block)
    assert decoded == block
    assert type(decoded) is type(block)


@settings(max_examples=60, deadline=None)
@given(st.lists(blocks, max_size=3))
def test_messages_survive_a_round_trip_and_can_be_hashed(content: list[Block]) -> None:
    message = Message("user", tuple(content))
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message
    assert hash(message) == hash(Message("user", tuple(content)))


def test_an_opaque_block_keeps_every_byte() -> None:
    block = Opaque("new_kind", bytes(range(256)))
    decoded = msgspec.json.decode(msgspec.json.encode(Message("user", (block,))), type=Message)
    assert decoded.content == (block,)


def test_plain_strings_become_text_blocks_of_the_role() -> None:
    assert make_user_message("a", Thinking("b")) == Message("user", (Text("a"), Thinking("b")))
    assert make_assistant_message("a", Thinking("b")) == Message("assistant", (Text("a"), Thinking("b")))


def test_the_text_of_blocks_omits_everything_else() -> None:
    assert join_text_blocks((Text("a"), Thinking("no"), Text("b"))) == "a\n\nb"
    assert join_text_blocks(()) == ""


@settings(max_examples=50, deadline=None)
@given(texts)
def test_valid_text_is_unchanged_by_surrogate_replacement(text: str) -> None:
    assert replace_surrogates(text) == text


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec=None) | st.characters(categories=["Cs"]), max_size=6))
def test_repaired_text_can_be_encoded_and_loses_no_other_character(text: str) -> None:
    repaired = replace_surrogates(text)
    repaired.encode()
    assert replace_surrogates(repaired) == repaired
    others = [c for c in text if not 0xD800 <= ord(c) <= 0xDFFF]
    remaining = iter(repaired)
    assert all(character in remaining for character in others)


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("x\ud800", "x\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("é\udfff😀", "é\ufffd😀"),
    ],
)
def test_lone_surrogates_are_replaced_and_pairs_joined(broken: str, repaired: str) -> None:
    assert replace_surrogates(broken) == repaired


counts = st.integers(0, 10**9)
usages = st.builds(Usage, counts, counts, counts, counts, counts, counts)


@settings(max_examples=50, deadline=None)
@given(usages, usages, usages)
def test_usage_adds_up_in_any_order(first: Usage, two: Usage, three: Usage) -> None:
    assert first + two == two + first
    assert (first + two) + three == first + (two + three)
    assert first + Usage() == first
    assert (first + two).tokens_sent == first.tokens_sent + two.tokens_sent


@settings(max_examples=50, deadline=None)
@given(usages)
def test_the_cache_read_share_is_between_zero_and_one(usage: Usage) -> None:
    assert 0.0 <= usage.read_share <= 1.0
    assert usage.read_share * usage.tokens_sent == pytest.approx(usage.cache_read)


def test_the_buckets_of_usage_do_not_overlap() -> None:
    usage = Usage(input=1, cache_read=20, cache_write_5m=300, cache_write_1h=4_000, cache_write_other=50_000, output=6)
    assert usage.cache_write == 54_300
    assert usage.tokens_sent == 54_321
    assert usage + usage == Usage(2, 40, 600, 8_000, 100_000, 12)


def test_without_input_the_read_share_is_zero() -> None:
    assert Usage().read_share == 0.0
    assert Usage(input=3, cache_read=1).read_share == 0.25


json_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=6,
)


def backwards(value: Json) -> Json:
    """The same value with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(value)}
    return [backwards(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=50, deadline=None)
@given(json_values)
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: Json) -> None:
    encoded = canonical_json(value)
    assert canonical_json(backwards(value)) == encoded
    assert msgspec.json.decode(encoded) == value
    assert canonical_json(msgspec.json.decode(encoded)) == encoded


def test_canonical_json_is_compact_with_sorted_keys() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'.encode()
    assert JSON_ENCODING_VERSION == "msgspec-sorted/1"


def test_plain_json_keeps_the_order_of_keys() -> None:
    assert encode_json({"b": 1, "a": {"d": 1, "c": 2}}) == b'{"b":1,"a":{"d":1,"c":2}}'


def test_canonical_json_is_the_same_in_every_process() -> None:
    script = (
        "from holdfast.types.json_encoding import canonical_json, sha256_hex;"
        "names = {f'name-{n}' for n in range(40)};"
        "print(sha256_hex(canonical_json({name: {'z': 1, 'a': name} for name in names})))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    names = {f"name-{n}" for n in range(40)}
    assert digests == {sha256_hex(canonical_json({name: {"z": 1, "a": name} for name in names})) + "\n"}


def test_a_digest_is_sha256_and_a_chain_includes_the_previous_digest() -> None:
    assert sha256_hex(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert extend_digest("", b"abc") == sha256_hex(b"abc")
    assert extend_digest(sha256_hex(b"abc"), b"d") == hashlib.sha256(sha256_hex(b"abc").encode() + b"d").hexdigest()


def digest_chain(parts: list[bytes]) -> list[PrefixDigest]:
    digests: list[PrefixDigest] = []
    for part in parts:
        digests.append(extend_digest_chain(digests[-1] if digests else None, "layer", part))
    return digests


byte_parts = st.lists(st.sampled_from([b"a", b"bc", b"", b"def"]), max_size=7)


@settings(max_examples=80, deadline=None)
@given(byte_parts, byte_parts, byte_parts)
def test_shared_digests_are_the_common_prefix(common: list[bytes], first: list[bytes], two: list[bytes]) -> None:
    before, after = common + first, common + two
    naive = 0
    while naive < min(len(before), len(after)) and before[naive] == after[naive]:
        naive += 1
    assert count_shared_blocks(digest_chain(before), digest_chain(after)) == naive


def test_a_hundred_times_as_many_blocks_take_a_few_more_comparisons() -> None:
    counts = []
    for blocks in (100, 10_000):
        before = [PrefixDigest("history", number, number + 1, f"{number}") for number in range(blocks)]
        after = [
            *before[: blocks // 3],
            *(msgspec.structs.replace(digest, digest="other") for digest in before[blocks // 3 :]),
        ]
        with OperationCounter().counting() as operations:
            assert count_shared_blocks(before, after) == blocks // 3
        counts.append(operations.total())
    # Binary search: 7 comparisons, and 14.
    assert 0 < counts[1] < 3 * counts[0]


@settings(max_examples=50, deadline=None)
@given(byte_parts)
def test_the_byte_ranges_of_digests_are_contiguous_and_cover_everything(parts: list[bytes]) -> None:
    digests = digest_chain(parts)
    assert [digest.end - digest.start for digest in digests] == [len(part) for part in parts]
    assert all(before.end == after.start for before, after in pairwise(digests))
    assert not digests or digests[0].start == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=6), st.data())
def test_digests_differ_from_the_first_changed_byte_on(parts: list[bytes], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(parts) - 1))
    changed = [*parts[:at], bytes([parts[at][0] ^ 1]) + parts[at][1:], *parts[at + 1 :]]
    for index, (before, other) in enumerate(zip(digest_chain(parts), digest_chain(changed), strict=True)):
        assert (before.digest == other.digest) is (index < at)


def test_a_digest_is_stored_as_a_row_with_its_layer_and_range() -> None:
    digest = extend_digest_chain(PrefixDigest("tools", 0, 4, "d"), "system", b"xyz")
    assert msgspec.json.encode(digest) == msgspec.json.encode(["system", 4, 7, extend_digest("d", b"xyz")])


@pytest.mark.parametrize(
    ("stabilities", "count"), [("", 0), ("FE", 2), ("FEG", 2), ("FEVF", 2), ("GFE", 0), ("VE", 0), ("EEGG", 2)]
)
def test_stable_blocks_are_those_before_the_first_that_grows_or_changes(stabilities: str, count: int) -> None:
    kinds = {kind.name[0]: kind for kind in Stability}
    encoded = [EncodedBlock("l", "system", kinds[letter], b"{}", True) for letter in stabilities]
    assert count_stable_blocks(iter(encoded)) == count


def test_stabilities_are_ordered_by_how_often_they_change() -> None:
    assert [kind.name for kind in sorted(Stability)] == ["FROZEN", "EPOCH", "GROWING", "VOLATILE"]


def test_a_prompt_lists_tools_and_entries_of_all_segments_in_order() -> None:
    first, two = ToolSpec("a", "", "{}"), ToolSpec("b", "", "{}")
    ask, injected = HistoryEntry("user", (Text("ask"),)), HistoryEntry("user", (Text("env"),), layer="environment")
    prompt = Prompt(
        (
            Segment("tools", Stability.FROZEN, "tools", tools=(first,)),
            Segment("more tools", Stability.FROZEN, "tools", tools=(two,)),
            Segment("history", Stability.GROWING, "messages", entries=(ask,)),
            Segment("environment", Stability.VOLATILE, "messages", entries=(injected,)),
        )
    )
    assert prompt.tools == (first, two)
    assert prompt.entries == (ask, injected)
    assert (ask.is_injected, injected.is_injected) == (False, True)
