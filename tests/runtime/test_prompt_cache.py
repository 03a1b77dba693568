"""A prompt cache used outside of a session: the seed's own cases, and where our profile differs from them."""

import json
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import UserError
from holdfast.clock import ManualClock
from holdfast.ledger.cache.prompt_cache import (
    ChainedPrompt,
    HashedPrompt,
    PromptCacheConfig,
    PromptCacheStats,
    RequestMembers,
    compute_request_key,
    detect_cache_break,
    fnv1a_64,
    session_folder_name,
    track_prompt,
)
from holdfast.planning.breakpoints import CacheProfile
from holdfast.runtime.prompt_cache import COMPLETIONS_MAX, FILE_BYTES_MAX, PromptCache
from holdfast.types.blocks import Json, Text
from holdfast.types.json_encoding import encode_json
from holdfast.types.reply import Reply, StopReason
from holdfast.types.usage import Usage

CONFIG = PromptCacheConfig("session")
PROFILES: tuple[CacheProfile, ...] = ("default", "seed")


def make_request(*texts: str, system: str = "Be kind.", **more: Json) -> RequestMembers:
    """A conversation in which user and assistant alternate."""
    roles = ("user", "assistant")
    messages: list[Json] = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    tools: list[Json] = [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}]
    return {
        "model": "claude-sonnet-5-5",
        "max_tokens": 64,
        "system": system,
        "tools": tools,
        "messages": messages,
        **more,
    }


def make_usage(tokens: int, written: int = 0) -> Usage:
    return Usage(input=3, cache_read=tokens, cache_write_5m=written, output=5)


def make_reply(text: str = "Yes.", usage: Usage | None = None, stop_reason: StopReason = "end_turn") -> Reply:
    return Reply(
        (Text(text),) if text else (), stop_reason, usage or make_usage(6_000), model="claude-sonnet-5-5", id="m1"
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# The vectors and cases of the seed.


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
        (encode_json("system"), 0xAF9B06B256AAEB7A),
        (encode_json(None), 0x5B9BC4BA528108E4),
    ],
)
def test_fingerprints_match_the_agreed_vectors(data: bytes, expected: int) -> None:
    assert fnv1a_64(data) == expected


def test_absent_parts_are_hashed_as_null() -> None:
    bare = track_prompt({"model": "m", "messages": []}, Usage(), 0.0, "seed")
    assert isinstance(bare, HashedPrompt)
    assert bare.system_hash == bare.tools_hash == "5b9bc4ba528108e4"


def test_folder_names_have_only_letters_digits_and_dashes() -> None:
    assert session_folder_name("session:/with spaces", "seed") == "session--with-spaces"
    assert session_folder_name("Zürich-1", "seed") == "Z-rich-1"
    assert session_folder_name("x" * 80, "seed") == "x" * 80
    assert session_folder_name("x" * 200, "seed") == "x" * 63 + "-6ee14c8caecd5c45"


@given(st.text(max_size=200), st.text(max_size=200), st.sampled_from(PROFILES))
def test_folder_names_are_short_and_plain_and_unique_in_our_profile(one: str, two: str, profile: CacheProfile) -> None:
    name = session_folder_name(one, profile)
    assert len(name) <= 80
    assert all(character.isascii() and (character.isalnum() or character == "-") for character in name)
    if one != two:
        assert session_folder_name(one, "default") != session_folder_name(two, "default")


def test_our_profile_separates_sessions_that_the_seed_puts_into_one_folder() -> None:
    assert session_folder_name("a:b", "seed") == session_folder_name("a/b", "seed")
    assert session_folder_name("a:b") != session_folder_name("a/b")
    assert session_folder_name("plain1") == "plain1"


def test_a_request_key_is_stable_and_has_a_version() -> None:
    key = compute_request_key(make_request("So?"), "seed")
    assert key == compute_request_key(make_request("So?"), "seed")
    assert key.startswith("v1-")
    assert len(key) == 3 + 16
    assert key != compute_request_key(make_request("And?"), "seed")
    assert (
        compute_request_key(make_request("So?"))
        == compute_request_key(make_request("So?"))
        != compute_request_key(make_request("And?"))
    )


def test_the_same_request_that_reads_less_is_an_unexpected_break() -> None:
    before, now = (track_prompt(make_request("So?"), make_usage(read), 0.0, "seed") for read in (6_000, 1_000))
    expected = detect_cache_break(CONFIG, before, now)
    assert expected is not None
    assert expected.unexpected
    assert "stable" in expected.reason
    assert (expected.previous_cache_read_input_tokens, expected.current_cache_read_input_tokens) == (6_000, 1_000)
    assert expected.token_drop == 5_000


def test_a_changed_message_that_reads_less_is_expected_by_the_seed() -> None:
    before = track_prompt(make_request("So?"), make_usage(6_000), 0.0, "seed")
    expected = detect_cache_break(CONFIG, before, track_prompt(make_request("And?"), make_usage(1_000), 0.0, "seed"))
    assert expected is not None
    assert (expected.unexpected, expected.reason) == (False, "message payload changed")


def test_all_changes_are_named_in_a_fixed_order() -> None:
    before = track_prompt(make_request("So?"), make_usage(6_000), 0.0, "seed")
    other = make_request("And?", system="Be brief.", tools=[], model="claude-haiku-4-5")
    expected = detect_cache_break(CONFIG, before, track_prompt(other, make_usage(0), 0.0, "seed"))
    assert expected is not None
    changed = "model changed, system prompt changed, tool definitions changed, message payload changed"
    assert (expected.unexpected, expected.reason) == (False, changed)


@pytest.mark.parametrize(("drop", "is_break"), [(1_999, False), (2_000, True), (-500, False)])
@pytest.mark.parametrize("profile", PROFILES)
def test_small_drops_are_no_breaks(drop: int, is_break: bool, profile: CacheProfile) -> None:
    before, now = (track_prompt(make_request("So?"), make_usage(read), 0.0, profile) for read in (6_000, 6_000 - drop))
    assert (detect_cache_break(CONFIG, before, now) is not None) == is_break


@pytest.mark.parametrize(
    ("profile", "seconds", "unexpected"),
    [("seed", 300, True), ("seed", 301, False), ("default", 299, True), ("default", 300, False)],
)
def test_a_drop_after_the_ttl_is_expected(profile: CacheProfile, seconds: int, unexpected: bool) -> None:
    before = track_prompt(make_request("So?"), make_usage(6_000), 1_000.0, profile)
    expected = detect_cache_break(
        CONFIG, before, track_prompt(make_request("So?"), make_usage(0), 1_000.0 + seconds, profile)
    )
    assert expected is not None
    assert expected.unexpected == unexpected
    assert ("TTL" in expected.reason or "ttl" in expected.reason) == (not unexpected)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_drop_after_a_format_change_is_expected_whatever_was_read(profile: CacheProfile) -> None:
    now = track_prompt(make_request("So?"), make_usage(6_000), 0.0, profile)
    if isinstance(now, HashedPrompt):
        older: HashedPrompt | ChainedPrompt = msgspec.structs.replace(now, fingerprint_version=0)
    else:
        older = msgspec.structs.replace(now, encoding="older/0")
    other = track_prompt(make_request("So?"), make_usage(6_000), 0.0, "seed" if profile == "default" else "default")
    for before in (older, other):
        expected = detect_cache_break(CONFIG, before, now)
        assert expected is not None
        assert (expected.unexpected, expected.token_drop) == (False, 0)


def test_the_first_request_is_no_break() -> None:
    assert detect_cache_break(CONFIG, None, track_prompt(make_request("So?"), make_usage(0), 0.0, "seed")) is None


@pytest.mark.parametrize("profile", PROFILES)
def test_a_reply_is_missed_then_stored_then_found(profile: CacheProfile, tmp_path: Path, clock: ManualClock) -> None:
    cache = PromptCache(PromptCacheConfig("s:1"), profile=profile, folder=tmp_path, clock=clock)
    assert cache.lookup_completion(make_request("So?")) is None
    recorded = cache.record_response(make_request("So?"), make_reply())
    assert recorded.cache_break is None
    assert recorded.stats == cache.stats
    expected = cache.lookup_completion(make_request("So?"))
    assert expected is not None
    assert expected.content == (Text("Yes."),)
    stats = cache.stats
    assert (stats.completion_cache_hits, stats.completion_cache_misses, stats.completion_cache_writes) == (1, 1, 1)
    assert stats.last_completion_cache_key == compute_request_key(make_request("So?"), profile)
    assert cache.folder == tmp_path / session_folder_name("s:1", profile)
    assert json.loads((cache.folder / "stats.json").read_bytes())["completion_cache_hits"] == 1
    assert (cache.folder / "session-state.json").is_file()
    assert (cache.folder / "completions" / f"{stats.last_completion_cache_key}.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("profile", PROFILES)
def test_another_request_does_not_get_the_reply(profile: CacheProfile) -> None:
    cache = PromptCache(CONFIG, profile=profile)
    cache.record_response(make_request("So?"), make_reply())
    assert cache.lookup_completion(make_request("And?")) is None


@pytest.mark.parametrize(("ttl", "age", "is_found"), [(30, 29, True), (30, 30, False), (0, 0, False)])
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_reply_is_returned_until_its_ttl(
    ttl: int, age: int, is_found: bool, *, on_disk: bool, tmp_path: Path, clock: ManualClock
) -> None:
    config = PromptCacheConfig("s1", completion_ttl=timedelta(seconds=ttl))
    cache = PromptCache(config, profile="seed", folder=tmp_path if on_disk else None, clock=clock)
    cache.record_response(make_request("So?"), make_reply())
    clock.advance(age)
    assert (cache.lookup_completion(make_request("So?")) is not None) == is_found
    assert (cache.stats.completion_cache_hits, cache.stats.completion_cache_misses) == (is_found, not is_found)
    if on_disk:
        assert len(list((tmp_path / "s1" / "completions").iterdir())) == is_found


def test_a_stored_reply_of_another_version_is_dropped(tmp_path: Path) -> None:
    cache = PromptCache(PromptCacheConfig("s1"), profile="seed", folder=tmp_path)
    cache.record_response(make_request("So?"), make_reply())
    (file,) = (tmp_path / "s1" / "completions").iterdir()
    file.write_bytes(file.read_bytes().replace(b'"fingerprint_version":1', b'"fingerprint_version":2'))
    assert cache.lookup_completion(make_request("So?")) is None
    assert not file.exists()


def test_the_seed_counts_cached_replies_as_reads_and_our_profile_does_not(clock: ManualClock) -> None:
    for profile, reads, usage in (("seed", 12_000, make_usage(6_000)), ("default", 6_000, Usage())):
        cache = PromptCache(CONFIG, profile="seed" if profile == "seed" else "default", clock=clock)
        cache.record_response(make_request("So?"), make_reply())
        expected = cache.lookup_completion(make_request("So?"))
        assert expected is not None
        assert expected.usage == usage
        stats = cache.stats
        assert stats.total_cache_read_input_tokens == reads
        assert (stats.tracked_requests, stats.last_cache_source) == (1, "completion-cache")


def test_the_seed_compares_the_next_request_with_a_cached_reply(clock: ManualClock) -> None:
    """Our profile compares with what was last sent to the provider: a cached reply refreshed nothing there."""
    unexpected = {}
    for profile in PROFILES:
        config = PromptCacheConfig("s1", completion_ttl=timedelta(seconds=600))
        cache = PromptCache(config, profile=profile, clock=clock)
        cache.record_response(make_request("So?"), make_reply())
        clock.advance(200)
        cache.lookup_completion(make_request("So?"))
        clock.advance(200)
        expected = cache.record_usage(make_request("So?"), make_usage(0)).cache_break
        unexpected[profile] = expected is not None and expected.unexpected
    assert unexpected == {"seed": True, "default": False}


def test_a_streamed_reply_is_counted_and_not_stored() -> None:
    cache = PromptCache(CONFIG, profile="seed")
    stats = cache.record_usage(make_request("So?"), make_usage(10, written=20)).stats
    assert stats == PromptCacheStats(
        tracked_requests=1,
        total_cache_creation_input_tokens=20,
        total_cache_read_input_tokens=10,
        last_cache_creation_input_tokens=20,
        last_cache_read_input_tokens=10,
        last_request_hash=compute_request_key(make_request("So?"), "seed"),
        last_cache_source="api-response",
    )
    assert cache.lookup_completion(make_request("So?")) is None


def test_breaks_are_counted_as_expected_or_unexpected_and_the_last_reason_is_stored(clock: ManualClock) -> None:
    cache = PromptCache(CONFIG, profile="seed", clock=clock)
    cache.record_usage(make_request("So?"), make_usage(6_000))
    assert cache.record_usage(make_request("And?"), make_usage(0)).stats.expected_invalidations == 1
    cache.record_usage(make_request("And?"), make_usage(6_000))
    expected = cache.record_usage(make_request("And?"), make_usage(0))
    assert expected.cache_break is not None
    assert (expected.stats.expected_invalidations, expected.stats.unexpected_cache_breaks) == (1, 1)
    assert expected.stats.last_break_reason == expected.cache_break.reason
    assert (expected.stats.tracked_requests, expected.stats.total_cache_read_input_tokens) == (4, 12_000)


# Where our profile differs.


def test_a_conversation_that_has_grown_and_reads_less_is_an_unexpected_break() -> None:
    before = track_prompt(make_request("So?"), make_usage(0, written=6_000), 0.0)
    expected = detect_cache_break(
        CONFIG, before, track_prompt(make_request("So?", "Yes.", "And?"), make_usage(1_000), 0.0)
    )
    assert expected is not None
    assert (expected.unexpected, expected.token_drop) == (True, 5_000)
    assert expected.reason.startswith("provider_side")


@pytest.mark.parametrize(
    ("other", "component", "unexpected"),
    [
        (make_request("So!", "Yes.", "And?"), "history", True),
        (make_request("So?", "Yes.", "And?", system="Be brief."), "system", True),
        (make_request("So?", "Yes.", "And?", tools=[]), "tools", True),
        (make_request("So?", "Yes.", "And?", tool_choice={"type": "any"}), "tool_choice", False),
        (make_request("So?", "Yes.", "And?", model="claude-haiku-4-5"), "model", False),
    ],
)
def test_the_changed_component_is_named_and_deliberate_changes_are_expected(
    other: RequestMembers, component: str, unexpected: bool
) -> None:
    before = track_prompt(make_request("So?"), make_usage(6_000), 0.0)
    expected = detect_cache_break(CONFIG, before, track_prompt(other, make_usage(0), 400.0))
    assert expected is not None
    assert (expected.component, expected.unexpected) == (component, unexpected)


def test_moved_breakpoints_are_no_change() -> None:
    with_breakpoint: Json = [{"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}}]
    first: RequestMembers = {**make_request("So?"), "messages": [{"role": "user", "content": with_breakpoint}]}
    before, now = (
        track_prompt(first, make_usage(6_000), 0.0),
        track_prompt(make_request("So?", "Yes.", "And?"), make_usage(0), 0.0),
    )
    expected = detect_cache_break(CONFIG, before, now)
    assert expected is not None
    assert expected.reason.startswith("provider_side")


@pytest.mark.parametrize(
    ("reply", "is_stored"), [(make_reply(), True), (make_reply(stop_reason="refusal"), False), (make_reply(""), False)]
)
def test_only_complete_replies_are_stored_in_our_profile(reply: Reply, is_stored: bool) -> None:
    cache = PromptCache(CONFIG)
    assert cache.record_response(make_request("So?"), reply).stats.completion_cache_writes == is_stored
    assert (cache.lookup_completion(make_request("So?")) is not None) == is_stored


# State on disk.


def test_another_process_continues_from_the_stored_state(tmp_path: Path, clock: ManualClock) -> None:
    for profile in PROFILES:
        one = PromptCache(CONFIG, profile=profile, folder=tmp_path / profile, clock=clock)
        one.record_response(make_request("So?"), make_reply())
        two = PromptCache(CONFIG, profile=profile, folder=tmp_path / profile, clock=clock)
        assert two.stats == one.stats
        assert two.lookup_completion(make_request("So?")) is not None
        expected = two.record_usage(make_request("So?"), make_usage(0)).cache_break
        assert expected is not None
        assert expected.unexpected


@pytest.mark.parametrize("broken", [b"", b"{", b"\xff", b"[" * 100_000, b'{"tracked_requests":"many"}', b"null"])
def test_corrupt_files_are_ignored(broken: bytes, tmp_path: Path) -> None:
    cache = PromptCache(PromptCacheConfig("s1"), folder=tmp_path)
    cache.record_response(make_request("So?"), make_reply())
    for file in (tmp_path / "s1").rglob("*.json"):
        file.write_bytes(broken)
    again = PromptCache(PromptCacheConfig("s1"), folder=tmp_path)
    assert again.stats == PromptCacheStats()
    assert again.lookup_completion(make_request("So?")) is None
    assert again.record_usage(make_request("So?"), make_usage(0)).cache_break is None


def test_a_failing_disk_does_not_fail_the_caller(tmp_path: Path) -> None:
    (tmp_path / "s1").write_text("no folder")
    cache = PromptCache(PromptCacheConfig("s1"), folder=tmp_path)
    cache.record_response(make_request("So?"), make_reply())
    assert cache.lookup_completion(make_request("So?")) is None
    assert cache.stats.tracked_requests == 1


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    cache = PromptCache(PromptCacheConfig("s1"), folder=tmp_path)
    cache.record_usage(make_request("So?"), make_usage(0))
    file = tmp_path / "s1" / "stats.json"
    file.write_bytes(file.read_bytes() + b" " * FILE_BYTES_MAX)
    assert PromptCache(PromptCacheConfig("s1"), folder=tmp_path).stats == PromptCacheStats()


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_number_of_stored_replies_is_bounded_and_the_oldest_go(on_disk: bool, tmp_path: Path) -> None:
    cache = PromptCache(PromptCacheConfig("s1"), folder=tmp_path if on_disk else None)
    for number in range(COMPLETIONS_MAX + 2):
        cache.record_response(make_request(f"So {number}?"), make_reply())
    expected = [
        cache.lookup_completion(make_request(f"So {number}?")) is not None for number in (0, 1, 2, COMPLETIONS_MAX + 1)
    ]
    assert expected == [False, False, True, True]


def test_a_session_id_is_required() -> None:
    with pytest.raises(UserError, match="needs a session_id"):
        PromptCache(PromptCacheConfig(""))


def test_an_invalid_request_is_refused_in_one_line() -> None:
    deep: Json = []
    for _ in range(100_000):
        deep = [deep]
    strange: list[RequestMembers] = [make_request("\ud800"), {"model": object()}, {"messages": deep}]  # type: ignore[dict-item]
    for request in strange:
        with pytest.raises(UserError) as refused:
            PromptCache(CONFIG, profile="seed").lookup_completion(request)
        assert "\n" not in str(refused.value)
    with pytest.raises(UserError):
        PromptCache(CONFIG).record_usage({"so": "what"}, Usage())
