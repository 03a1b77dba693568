"""The simulator as Gemini: replies, refusals, implicit cache reads, and explicit caches."""

from typing import Any

import msgspec
import pytest
from tests.support.simulated import simulator
from tests.support.simulated_gemini import (
    ARGON,
    FLASH,
    LONG,
    OLDER,
    Wire,
    ask,
    call,
    counts,
    error_of,
    make_cache,
    model,
    post,
    post_ok,
    request,
    result,
    text,
    tool,
    user,
)
from tests.support.simulated_openai import models_with

from holdfast.errors import ProviderError
from holdfast.providers.adapter import ExplicitCacheEntry
from holdfast.simulator.explicit_caches import CachedContent, SimulatedExplicitCaches

CALL = (
    '{"content": [{"type": "thinking", "thinking": "A file."}, {"type": "text", "text": "I look."},'
    ' {"type": "tool_use", "name": "read", "input": {"path": "a"}}]}'
)
NOT_FOUND = (403, "PERMISSION_DENIED", "CachedContent not found (or permission denied)")


def parts(reply: Wire) -> list[Wire]:
    reply_parts: list[Wire] = reply["candidates"][0]["content"]["parts"]
    return reply_parts


# Replies


@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_the_last_message_is_echoed(version: str) -> None:
    reply = post_ok(simulator(), request(user("Hello.")), version=version)
    assert text(reply) == "Echo: Hello."
    assert reply["responseId"] == "gemini_sim-000001"
    assert reply["modelVersion"] == FLASH


def test_a_scripted_call_is_answered_and_the_script_continues() -> None:
    provider = simulator(CALL + '\n{"content": "Done."}')
    body = request(user("Look."), tools=[tool("read")])
    first = post_ok(provider, body)
    thought, words, called = parts(first)
    assert thought == {"text": "A file.", "thought": True}
    assert words.keys() == {"text", "thoughtSignature"}
    assert called["functionCall"]["name"] == "read"
    body["contents"] += [first["candidates"][0]["content"], user(result("read", called["functionCall"]["id"]))]
    assert text(post_ok(provider, body)) == "Done."


def test_a_stream_is_events_or_an_array() -> None:
    body = msgspec.json.encode(request(user("Hello.")))
    path, headers = f"/v1/models/{FLASH}:streamGenerateContent", {"x-goog-api-key": "k"}
    events = simulator().handle("POST", path, headers=headers, body=body, query={"alt": "sse"})
    assert events.headers["content-type"].startswith("text/event-stream")
    sent = [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events.read_body().split(b"\n\n") if event]
    array = simulator().handle("POST", path, headers=headers, body=body)
    assert array.headers["content-type"] == "application/json"
    assert msgspec.json.decode(array.read_body()) == sent
    assert text(sent[-1]) == "Echo: Hello."


@pytest.mark.parametrize(("action", "alt"), [("generateContent", "sse"), ("streamGenerateContent", "proto")])
def test_an_unsupported_response_format_is_refused(action: str, alt: str) -> None:
    response = ask(simulator(), "POST", f"models/{FLASH}:{action}", request(user("Hello.")), query={"alt": alt})
    assert "'alt'" in error_of(response)[2]


def test_a_scripted_failure_is_in_geminis_format() -> None:
    provider = simulator('{"content": "At last.", "fault": "429;retry-after=2"}')
    assert error_of(post(provider, request(user("Ask.")))) == (429, "RESOURCE_EXHAUSTED", "this failure was ordered")
    assert text(post_ok(provider, request(user("Ask.")))) == "At last."


# Thoughts


def signed(provider: Any) -> tuple[Wire, str]:
    """A reply that thinks, and its signature."""
    reply = post_ok(provider, request(user("Look.")))
    content: Wire = reply["candidates"][0]["content"]
    return content, content["parts"][1]["thoughtSignature"]


def reply_to(provider: Any, content: Wire) -> tuple[int, Any]:
    id = content["parts"][-1]["functionCall"]["id"]
    return post(provider, request(user("Look."), content, user(result("read", id))))


def test_a_thought_is_accepted_whole_split_without_text_or_without_signature() -> None:
    provider = simulator(CALL)
    content, signature = signed(provider)
    thought, words, called = content["parts"]
    halves = [{"text": "A ", "thought": True}, {"text": "file.", "thought": True}]
    unsigned = {"text": words["text"]}
    for sent in (content["parts"], [*halves, words, called], [words, called], [thought, unsigned, called]):
        assert reply_to(provider, {"role": "model", "parts": sent})[0] == 200
    urlsafe = {**words, "thoughtSignature": signature.replace("+", "-").replace("/", "_")}
    assert reply_to(provider, {"role": "model", "parts": [thought, urlsafe, called]})[0] == 200


@pytest.mark.parametrize("placeholder", ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"])
def test_the_providers_placeholder_signatures_are_accepted(placeholder: str) -> None:
    contents = [user("Look."), model({**call(), "thoughtSignature": placeholder}), user(result())]
    assert post(simulator(), request(*contents))[0] == 200


def test_an_altered_signature_is_refused() -> None:
    provider = simulator(CALL)
    content, signature = signed(provider)
    thought, words, called = content["parts"]
    for sent in (
        [thought, {**words, "thoughtSignature": signature[:-8]}, called],
        [thought, {**words, "thoughtSignature": "bm9uZQ=="}, called],
        [{**thought, "text": "Two files."}, words, called],
    ):
        refusal = error_of(reply_to(provider, {"role": "model", "parts": sent}))
        assert refusal == (400, "INVALID_ARGUMENT", "Thought signature is not valid.")


# Refusals


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"system_instruction": {"parts": []}}, 'Unknown name "system_instruction": Cannot find field.'),
        ({"contents": []}, "contents is not specified"),
        ({"contents": None}, "contents is not specified"),
        ({"contents": [user()]}, "contents[0].parts: contents.parts must not be empty"),
        ({"contents": [user("Ask.", {})]}, "contents[0].parts[1].data: required oneof field 'data'"),
        ({"contents": [{"role": "assistant", "parts": [{"text": "Hi."}]}]}, "one of user, model"),
        ({"contents": "Ask."}, "$.contents"),
        ({"tools": [tool("read"), tool("read")]}, "Duplicate function declaration found: read"),
        (
            {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
            "Function calling config is set without function_declarations",
        ),
        (
            {
                "tools": [tool("read")],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["write"]}},
            },
            "should be a subset",
        ),
        ({"generationConfig": {"maxOutputTokens": 65_537}}, "from 1 (inclusive) to 65537 (exclusive)"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "from 1 (inclusive)"),
        ({"generationConfig": {"candidateCount": 2}}, "Only one candidate"),
        ({"model": "models/gemini-2.5-pro"}, "another than the model in the path"),
        ({"cachedContent": 5}, "Invalid value at 'cachedContent'"),
    ],
)
def test_an_invalid_request_is_refused_with_its_reason(fields: Wire, words: str) -> None:
    status, name, message = error_of(post(simulator(), {**request(user("Ask.")), **fields}))
    assert (status, name) == (400, "INVALID_ARGUMENT")
    assert words in message


def test_an_unknown_model_is_not_found_for_any_action() -> None:
    for method, path in (("POST", ":generateContent"), ("POST", ":countTokens"), ("GET", "")):
        status, name, message = error_of(ask(simulator(), method, f"models/gemini-none{path}", request(user("Ask."))))
        assert (status, name) == (404, "NOT_FOUND")
        assert message.startswith("models/gemini-none is not found")


UNANSWERED_CALLS = (user("Look."), model(call("read", "c1"), call("read", "c2")))


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ((user("Look.", result()),), "function response turn comes immediately after a function call turn"),
        ((user("Look."), model("Yes.", result())), "function response turn comes immediately after"),
        ((user("Look.", call()), model("Yes.")), "of the role model"),
        (UNANSWERED_CALLS, "number of function response parts"),
        ((*UNANSWERED_CALLS, user("Wait.")), "number of function response parts"),
        ((*UNANSWERED_CALLS, user(result("read", "c1"))), "number of function response parts"),
        ((*UNANSWERED_CALLS, user(result("read", "c1"), result("read", "c3"))), "the id and name of a function call"),
        ((*UNANSWERED_CALLS, user(result("read", "c1"), result("read", "c1"))), "the id and name of a function call"),
    ],
)
def test_calls_and_results_that_do_not_match_are_refused(contents: tuple[Wire, ...], words: str) -> None:
    status, _, message = error_of(post(simulator(), request(*contents)))
    assert (status, words in message) == (400, True)


def test_calls_are_answered_by_id_or_by_name_with_text_and_unknown_fields_beside_them() -> None:
    strange_call = {"functionCall": {"id": "c1", "name": "read", "args": {}, "willContinue": False}}
    strange_result = {"functionResponse": {"id": "c1", "name": "read", "response": {}, "scheduling": "SILENT"}}
    for contents in (
        (*UNANSWERED_CALLS, user(result("read", "c2"), result("read", "c1"), "Go on.")),
        (user("Look."), model("I look.", call(), call()), user(result(), result())),
        (user("Look."), model(strange_call), user(strange_result)),
    ):
        assert post(simulator(), request(*contents))[0] == 200


def test_a_prompt_beyond_the_window_is_refused_with_its_size() -> None:
    provider = simulator(models=models_with(f"gemini:{FLASH}", context_tokens_max=1_000))
    status, _, message = error_of(post(provider, request(user(LONG))))
    assert status == 400
    assert message.startswith("The input token count (")
    assert message.endswith("exceeds the maximum number of tokens allowed (1000).")


def test_a_request_without_a_key_is_refused() -> None:
    answer = simulator().handle("POST", f"/v1/models/{FLASH}:generateContent", body=b"{}")
    assert answer.status == 401
    assert b"x-goog-api-key header is required" in answer.read_body()


# Counting and listing


def test_token_counts_equal_reported_usage() -> None:
    provider, body = simulator(), request(user("Ask."), system=LONG)
    token_count = ask(provider, "POST", f"models/{FLASH}:countTokens", {"generateContentRequest": body})[1]
    assert token_count == {"totalTokens": counts(post_ok(provider, body))[0]}
    bare = ask(provider, "POST", f"models/{FLASH}:countTokens", {"contents": [user("Ask.")]})[1]
    assert 0 < bare["totalTokens"] < token_count["totalTokens"]


def test_contents_are_counted_once_and_a_cache_is_counted_with_them() -> None:
    provider = simulator()
    both = {"contents": [user("Ask.")], "generateContentRequest": request(user("Ask."))}
    assert "both be set" in error_of(ask(provider, "POST", f"models/{FLASH}:countTokens", both))[2]
    cache = make_cache(provider)
    body = request(user("Ask."), cachedContent=cache["name"], model=f"models/{FLASH}")
    token_count = ask(provider, "POST", f"models/{FLASH}:countTokens", {"generateContentRequest": body})[1]
    assert (token_count["totalTokens"], token_count["cachedContentTokenCount"]) == counts(post_ok(provider, body))


def test_models_are_listed_in_pages_and_one_by_one() -> None:
    provider = simulator()
    names: list[str] = []
    token = ""
    while True:
        status, page = ask(provider, "GET", "models", query={"pageSize": "4", "pageToken": token}, version="v1")
        assert (status, len(page["models"]) <= 4) == (200, True)
        names += [row["name"] for row in page["models"]]
        if not (token := page.get("nextPageToken", "")):
            break
    assert len(names) == len(set(names)) > 4
    assert f"models/{FLASH}" in names
    description = ask(provider, "GET", f"models/{FLASH}", version="v1")[1]
    assert (description["name"], "createCachedContent" in description["supportedGenerationMethods"]) == (
        f"models/{FLASH}",
        True,
    )
    argon = ask(provider, "GET", f"models/{ARGON}")[1]
    assert argon["supportedGenerationMethods"] == ["generateContent", "countTokens"]
    assert error_of(ask(provider, "GET", "models", query={"pageToken": "x"}))[0] == 400


# The implicit cache


def test_a_growing_conversation_reads_the_earlier_requests_within_three_minutes() -> None:
    provider = simulator()
    contents = [user("One.")]
    sent, read = counts(post_ok(provider, request(*contents, system=LONG)))
    assert (sent > 4_096, read) == (True, 0)
    contents += [model("Yes."), user("Two.")]
    more, again = counts(post_ok(provider, request(*contents, system=LONG)))
    assert (again, more > sent) == (sent, True)
    assert counts(post_ok(provider, request(*contents, system=LONG), key="other"))[1] == 0
    assert counts(post_ok(provider, request(*contents, system=LONG), name="gemini-3.6-flash"))[1] == 0
    provider.advance(179)
    assert counts(post_ok(provider, request(*contents, system=LONG)))[1] == more
    provider.advance(181)
    assert counts(post_ok(provider, request(*contents, system=LONG)))[1] == 0


def test_a_prompt_below_the_floor_is_not_cached() -> None:
    provider = simulator()
    for _ in range(2):
        assert "cachedContentTokenCount" not in post_ok(provider, request(user("Ask.")))["usageMetadata"]


@pytest.mark.parametrize(
    "changed",
    [
        {"tools": [tool("write")]},
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
        {"toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}}},
        {"systemInstruction": {"parts": [{"text": "Be brief."}]}},
    ],
)
def test_changed_tools_tool_choice_or_system_instruction_invalidate_everything(changed: Wire) -> None:
    provider = simulator()
    body = request(user(LONG), system="Be kind.", tools=[tool("read")])
    post_ok(provider, body)
    assert counts(post_ok(provider, {**body, "generationConfig": {"temperature": 1}}))[1] > 4_096
    assert counts(post_ok(provider, {**body, **changed}))[1] == 0


# Explicit caches


def test_a_cache_is_created_described_extended_and_deleted() -> None:
    provider = simulator(start=0.0)
    cache = make_cache(provider, displayName="mine")
    assert cache["name"] == "cachedContents/sim-000001"
    assert (cache["model"], cache["displayName"]) == (f"models/{FLASH}", "mine")
    assert cache["expireTime"] == "1970-01-01T01:00:00Z"
    assert cache["usageMetadata"]["totalTokenCount"] > 4_096
    assert ask(provider, "GET", cache["name"]) == (200, cache)
    provider.advance(60)
    status, longer = ask(provider, "PATCH", cache["name"], {"ttl": "7200s"})
    assert (status, longer) == (200, {**cache, "expireTime": "1970-01-01T02:01:00Z"})
    exact = ask(provider, "PATCH", cache["name"], {"expireTime": "1970-01-01T05:00:00+01:00"})[1]
    assert exact["expireTime"] == "1970-01-01T04:00:00Z"
    assert ask(provider, "DELETE", cache["name"]) == (200, {})
    for method, body in (("GET", b""), ("PATCH", {"ttl": "1s"}), ("DELETE", b"")):
        assert error_of(ask(provider, method, cache["name"], body)) == NOT_FOUND


def test_a_call_with_a_cache_reports_its_tokens_and_replies_like_the_full_request() -> None:
    provider = simulator('{"content": "First."}\n{"content": "Second."}')
    cache = make_cache(provider, tools=[tool("read")])
    uncached = post_ok(provider, request(user("Ask."), system=LONG, tools=[tool("read")]))
    for _ in range(2):
        brief = post_ok(provider, request(user("Ask."), cachedContent=cache["name"]))
        assert counts(brief) == (counts(uncached)[0], cache["usageMetadata"]["totalTokenCount"])
        assert text(brief) == text(uncached) == "First."


def test_a_call_with_a_cache_stores_no_implicit_entry() -> None:
    provider = simulator()
    cache = make_cache(provider)
    post_ok(provider, request(user("Ask."), cachedContent=cache["name"]))
    assert provider.cache == ()
    assert counts(post_ok(provider, request(user("Ask."), system=LONG)))[1] == 0


def test_contents_in_a_cache_are_part_of_the_conversation() -> None:
    provider = simulator('{"content": "First."}\n{"content": "Second."}')
    cache = make_cache(provider, contents=[user("Look."), model(call())])
    replies = post_ok(provider, request(user(result()), cachedContent=cache["name"]))
    assert text(replies) == "Second."
    assert "function response" in error_of(post(provider, request(user("Hi."), cachedContent=cache["name"])))[2]


@pytest.mark.parametrize(
    "fields",
    [
        {"systemInstruction": {"parts": [{"text": "Be brief."}]}},
        {"tools": [tool("read")]},
        {"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}},
    ],
)
def test_fields_that_a_cache_can_hold_are_refused_next_to_it(fields: Wire) -> None:
    provider = simulator()
    body = request(user("Ask."), cachedContent=make_cache(provider)["name"], **fields)
    status, name, message = error_of(post(provider, body))
    assert (status, name) == (400, "INVALID_ARGUMENT")
    assert message.startswith("CachedContent can not be used with GenerateContent request setting system_instruction")


def test_a_cache_belongs_to_its_model_and_key_and_expires() -> None:
    provider = simulator()
    body = request(user("Ask."), cachedContent=make_cache(provider, ttl="300.5s")["name"])
    assert "has to be the same" in error_of(post(provider, body, name=OLDER))[2]
    assert error_of(post(provider, body, key="other")) == NOT_FOUND
    provider.advance(300)
    assert post(provider, body)[0] == 200
    provider.advance(0.5)
    assert error_of(post(provider, body)) == NOT_FOUND
    assert error_of(post(provider, {**body, "cachedContent": "cachedContents/none"})) == NOT_FOUND


def test_only_the_keys_own_caches_are_listed_page_by_page() -> None:
    provider = simulator()
    mine = [make_cache(provider, displayName=str(number)) for number in range(3)]
    other_cache = make_cache(provider, key="other")
    make_cache(provider, ttl="1s")
    provider.advance(1)
    first = ask(provider, "GET", "cachedContents", query={"pageSize": "2"})[1]
    assert first["cachedContents"] == mine[:2]
    rest = ask(provider, "GET", "cachedContents", query={"pageSize": "2", "pageToken": first["nextPageToken"]})[1]
    assert rest == {"cachedContents": mine[2:]}
    assert ask(provider, "GET", "cachedContents", key="other")[1] == {"cachedContents": [other_cache]}
    assert ask(provider, "GET", "cachedContents", key="nobody")[1] == {}
    assert [cache.name for cache in provider.explicit_caches] == [made["name"] for made in (*mine, other_cache)]


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"systemInstruction": {"parts": [{"text": "Hi."}]}}, 400, "Cached content is too small. total_token_count="),
        ({"model": f"models/{ARGON}"}, 404, "is not supported for createCachedContent"),
        ({"model": "models/gemini-none"}, 404, "is not found"),
        ({"model": None}, 400, "model is not specified"),
        ({"ttl": "300"}, 400, "must end with 's'"),
        ({"ttl": "0s"}, 400, "in the future"),
        ({"ttl": "999999999999s"}, 400, "before the year 9999"),
        ({"expireTime": "1970-01-01T00:00:01Z"}, 400, "in the future"),
        ({"expireTime": "tomorrow"}, 400, "'expireTime'"),
        ({"expireTime": "2030-01-01T00:00:00Z", "ttl": "1s"}, 400, "cannot both be set"),
        ({"displayName": "x" * 129}, 400, "at most 128"),
        ({"generationConfig": {}}, 400, 'Unknown name "generationConfig"'),
        ({"tools": [tool("read"), tool("read")]}, 400, "Duplicate function"),
        ({"contents": 5}, 400, "contents"),
    ],
)
def test_an_invalid_cache_is_refused(fields: Wire, status: int, words: str) -> None:
    body = {"model": f"models/{FLASH}", "systemInstruction": {"parts": [{"text": LONG}]}, **fields}
    provider = simulator()
    error_status, _, message = error_of(ask(provider, "POST", "cachedContents", body))
    assert (error_status, words in message) == (status, True)
    assert provider.explicit_caches == ()


def test_the_floor_of_a_cache_is_that_of_its_model() -> None:
    tokens = make_cache(simulator())["usageMetadata"]["totalTokenCount"]
    body = {"model": f"models/{FLASH}", "systemInstruction": {"parts": [{"text": LONG}]}}
    for floor, status in ((tokens, 200), (tokens + 1, 400)):
        provider = simulator(models=models_with(f"gemini:{FLASH}", explicit_tokens_min=floor))
        assert ask(provider, "POST", "cachedContents", body)[0] == status


@pytest.mark.parametrize("body", [{}, {"displayName": "x"}, {"ttl": "9s", "displayName": "x"}, {"model": "models/x"}])
def test_only_the_expiry_of_a_cache_can_be_changed(body: Wire) -> None:
    provider = simulator()
    cache = make_cache(provider)
    assert "Only the expiration" in error_of(ask(provider, "PATCH", cache["name"], body))[2]
    assert ask(provider, "GET", cache["name"]) == (200, cache)


def test_the_number_of_caches_is_limited_and_expired_ones_are_removed() -> None:
    caches = SimulatedExplicitCaches(caches_max=1, bytes_max=10)

    def cached_content(name: str, content: bytes = b"x") -> CachedContent:
        return CachedContent("w", ExplicitCacheEntry(name, FLASH, 1, expires_at=10.0), {"contents": content})

    caches.store(cached_content("a"), at=0)
    caches.store(cached_content("a"), at=1)
    with pytest.raises(ProviderError, match="no room"):
        caches.store(cached_content("b"), at=9)
    assert caches.find("w", "a", at=9) == cached_content("a")
    with pytest.raises(ProviderError, match="no room"):
        caches.store(cached_content("b", b"x" * 11), at=10)
    caches.store(cached_content("c"), at=10)
    assert caches.list_live(at=0) == (cached_content("c"),)
