"""The simulator as Gemini: replies, refusals, what its own cache reads, and caches that have a name."""

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
    found: list[Wire] = reply["candidates"][0]["content"]["parts"]
    return found


# Replies


@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_the_last_words_are_echoed(version: str) -> None:
    reply = post_ok(simulator(), request(user("Hello.")), version=version)
    assert text(reply) == "Echo: Hello."
    assert reply["responseId"] == "gemini_sim-000001"
    assert reply["modelVersion"] == FLASH


def test_a_scripted_call_is_answered_and_the_script_goes_on() -> None:
    provider = simulator(CALL + '\n{"content": "Done."}')
    asked = request(user("Look."), tools=[tool("read")])
    first = post_ok(provider, asked)
    thought, words, called = parts(first)
    assert thought == {"text": "A file.", "thought": True}
    assert words.keys() == {"text", "thoughtSignature"}
    assert called["functionCall"]["name"] == "read"
    asked["contents"] += [first["candidates"][0]["content"], user(result("read", called["functionCall"]["id"]))]
    assert text(post_ok(provider, asked)) == "Done."


def test_a_stream_is_one_of_events_or_an_array() -> None:
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
def test_another_form_of_answer_is_refused(action: str, alt: str) -> None:
    found = ask(simulator(), "POST", f"models/{FLASH}:{action}", request(user("Hello.")), query={"alt": alt})
    assert "'alt'" in error_of(found)[2]


def test_a_failure_that_the_script_orders_comes_in_geminis_words() -> None:
    provider = simulator('{"content": "At last.", "fault": "429;retry-after=2"}')
    assert error_of(post(provider, request(user("Ask.")))) == (429, "RESOURCE_EXHAUSTED", "this failure was ordered")
    assert text(post_ok(provider, request(user("Ask.")))) == "At last."


# Thoughts


def signed(provider: Any) -> tuple[Wire, str]:
    """A reply that thinks, and the signature in it."""
    reply = post_ok(provider, request(user("Look.")))
    content: Wire = reply["candidates"][0]["content"]
    return content, content["parts"][1]["thoughtSignature"]


def answer_to(provider: Any, content: Wire) -> tuple[int, Any]:
    id = content["parts"][-1]["functionCall"]["id"]
    return post(provider, request(user("Look."), content, user(result("read", id))))


def test_a_thought_is_taken_back_whole_in_parts_without_text_or_without_signature() -> None:
    provider = simulator(CALL)
    content, signature = signed(provider)
    thought, words, called = content["parts"]
    halves = [{"text": "A ", "thought": True}, {"text": "file.", "thought": True}]
    unsigned = {"text": words["text"]}
    for sent in (content["parts"], [*halves, words, called], [words, called], [thought, unsigned, called]):
        assert answer_to(provider, {"role": "model", "parts": sent})[0] == 200
    urlsafe = {**words, "thoughtSignature": signature.replace("+", "-").replace("/", "_")}
    assert answer_to(provider, {"role": "model", "parts": [thought, urlsafe, called]})[0] == 200


@pytest.mark.parametrize("stand_in", ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"])
def test_what_the_provider_names_as_a_stand_in_is_taken_for_a_signature(stand_in: str) -> None:
    contents = [user("Look."), model({**call(), "thoughtSignature": stand_in}), user(result())]
    assert post(simulator(), request(*contents))[0] == 200


def test_a_signature_that_was_tampered_with_is_refused() -> None:
    provider = simulator(CALL)
    content, signature = signed(provider)
    thought, words, called = content["parts"]
    for sent in (
        [thought, {**words, "thoughtSignature": signature[:-8]}, called],
        [thought, {**words, "thoughtSignature": "bm9uZQ=="}, called],
        [{**thought, "text": "Two files."}, words, called],
    ):
        found = error_of(answer_to(provider, {"role": "model", "parts": sent}))
        assert found == (400, "INVALID_ARGUMENT", "Thought signature is not valid.")


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


def test_an_unknown_model_is_not_found_whatever_is_asked_of_it() -> None:
    for method, path in (("POST", ":generateContent"), ("POST", ":countTokens"), ("GET", "")):
        status, name, message = error_of(ask(simulator(), method, f"models/gemini-none{path}", request(user("Ask."))))
        assert (status, name) == (404, "NOT_FOUND")
        assert message.startswith("models/gemini-none is not found")


LOOK = (user("Look."), model(call("read", "c1"), call("read", "c2")))


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ((user("Look.", result()),), "function response turn comes immediately after a function call turn"),
        ((user("Look."), model("Yes.", result())), "function response turn comes immediately after"),
        ((user("Look.", call()), model("Yes.")), "of the role model"),
        (LOOK, "number of function response parts"),
        ((*LOOK, user("Wait.")), "number of function response parts"),
        ((*LOOK, user(result("read", "c1"))), "number of function response parts"),
        ((*LOOK, user(result("read", "c1"), result("read", "c3"))), "the id and name of a function call"),
        ((*LOOK, user(result("read", "c1"), result("read", "c1"))), "the id and name of a function call"),
    ],
)
def test_calls_and_results_that_do_not_match_are_refused(contents: tuple[Wire, ...], words: str) -> None:
    status, _, message = error_of(post(simulator(), request(*contents)))
    assert (status, words in message) == (400, True)


def test_calls_are_answered_by_id_or_by_name_with_text_beside_them_and_with_fields_unknown_to_us() -> None:
    strange_call = {"functionCall": {"id": "c1", "name": "read", "args": {}, "willContinue": False}}
    strange_result = {"functionResponse": {"id": "c1", "name": "read", "response": {}, "scheduling": "SILENT"}}
    for contents in (
        (*LOOK, user(result("read", "c2"), result("read", "c1"), "Go on.")),
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


def test_without_a_key_nothing_is_answered() -> None:
    answer = simulator().handle("POST", f"/v1/models/{FLASH}:generateContent", body=b"{}")
    assert answer.status == 401
    assert b"x-goog-api-key header is required" in answer.read_body()


# Counting and listing


def test_tokens_are_counted_as_a_call_would_report_them() -> None:
    provider, body = simulator(), request(user("Ask."), system=LONG)
    counted = ask(provider, "POST", f"models/{FLASH}:countTokens", {"generateContentRequest": body})[1]
    assert counted == {"totalTokens": counts(post_ok(provider, body))[0]}
    bare = ask(provider, "POST", f"models/{FLASH}:countTokens", {"contents": [user("Ask.")]})[1]
    assert 0 < bare["totalTokens"] < counted["totalTokens"]


def test_contents_are_counted_once_and_a_cache_is_counted_with_them() -> None:
    provider = simulator()
    both = {"contents": [user("Ask.")], "generateContentRequest": request(user("Ask."))}
    assert "both be set" in error_of(ask(provider, "POST", f"models/{FLASH}:countTokens", both))[2]
    made = make_cache(provider)
    body = request(user("Ask."), cachedContent=made["name"], model=f"models/{FLASH}")
    counted = ask(provider, "POST", f"models/{FLASH}:countTokens", {"generateContentRequest": body})[1]
    assert (counted["totalTokens"], counted["cachedContentTokenCount"]) == counts(post_ok(provider, body))


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
    one = ask(provider, "GET", f"models/{FLASH}", version="v1")[1]
    assert (one["name"], "createCachedContent" in one["supportedGenerationMethods"]) == (f"models/{FLASH}", True)
    argon = ask(provider, "GET", f"models/{ARGON}")[1]
    assert argon["supportedGenerationMethods"] == ["generateContent", "countTokens"]
    assert error_of(ask(provider, "GET", "models", query={"pageToken": "x"}))[0] == 400


# Its own cache


def test_a_conversation_that_grows_reads_what_was_sent_before_within_three_minutes() -> None:
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


def test_a_prompt_below_the_floor_is_not_kept() -> None:
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
def test_a_change_of_tools_their_choice_or_the_system_instruction_loses_everything(changed: Wire) -> None:
    provider = simulator()
    body = request(user(LONG), system="Be kind.", tools=[tool("read")])
    post_ok(provider, body)
    assert counts(post_ok(provider, {**body, "generationConfig": {"temperature": 1}}))[1] > 4_096
    assert counts(post_ok(provider, {**body, **changed}))[1] == 0


# Caches with a name


def test_a_cache_is_made_described_kept_for_longer_and_deleted() -> None:
    provider = simulator(start=0.0)
    made = make_cache(provider, displayName="mine")
    assert made["name"] == "cachedContents/sim-000001"
    assert (made["model"], made["displayName"]) == (f"models/{FLASH}", "mine")
    assert made["expireTime"] == "1970-01-01T01:00:00Z"
    assert made["usageMetadata"]["totalTokenCount"] > 4_096
    assert ask(provider, "GET", made["name"]) == (200, made)
    provider.advance(60)
    status, longer = ask(provider, "PATCH", made["name"], {"ttl": "7200s"})
    assert (status, longer) == (200, {**made, "expireTime": "1970-01-01T02:01:00Z"})
    exact = ask(provider, "PATCH", made["name"], {"expireTime": "1970-01-01T05:00:00+01:00"})[1]
    assert exact["expireTime"] == "1970-01-01T04:00:00Z"
    assert ask(provider, "DELETE", made["name"]) == (200, {})
    for method, body in (("GET", b""), ("PATCH", {"ttl": "1s"}), ("DELETE", b"")):
        assert error_of(ask(provider, method, made["name"], body)) == NOT_FOUND


def test_a_call_with_a_cache_reports_its_tokens_and_says_what_the_whole_would() -> None:
    provider = simulator('{"content": "First."}\n{"content": "Second."}')
    made = make_cache(provider, tools=[tool("read")])
    whole = post_ok(provider, request(user("Ask."), system=LONG, tools=[tool("read")]))
    for _ in range(2):
        brief = post_ok(provider, request(user("Ask."), cachedContent=made["name"]))
        assert counts(brief) == (counts(whole)[0], made["usageMetadata"]["totalTokenCount"])
        assert text(brief) == text(whole) == "First."


def test_a_call_with_a_cache_keeps_nothing_beside_it() -> None:
    provider = simulator()
    made = make_cache(provider)
    post_ok(provider, request(user("Ask."), cachedContent=made["name"]))
    assert provider.cache == ()
    assert counts(post_ok(provider, request(user("Ask."), system=LONG)))[1] == 0


def test_contents_in_a_cache_are_a_part_of_the_conversation() -> None:
    provider = simulator('{"content": "First."}\n{"content": "Second."}')
    made = make_cache(provider, contents=[user("Look."), model(call())])
    replies = post_ok(provider, request(user(result()), cachedContent=made["name"]))
    assert text(replies) == "Second."
    assert "function response" in error_of(post(provider, request(user("Hi."), cachedContent=made["name"])))[2]


@pytest.mark.parametrize(
    "beside",
    [
        {"systemInstruction": {"parts": [{"text": "Be brief."}]}},
        {"tools": [tool("read")]},
        {"toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}},
    ],
)
def test_a_cache_takes_nothing_beside_it_that_it_could_hold(beside: Wire) -> None:
    provider = simulator()
    body = request(user("Ask."), cachedContent=make_cache(provider)["name"], **beside)
    status, name, message = error_of(post(provider, body))
    assert (status, name) == (400, "INVALID_ARGUMENT")
    assert message.startswith("CachedContent can not be used with GenerateContent request setting system_instruction")


def test_a_cache_is_its_models_and_its_keys_and_its_times_alone() -> None:
    provider = simulator()
    body = request(user("Ask."), cachedContent=make_cache(provider, ttl="300.5s")["name"])
    assert "has to be the same" in error_of(post(provider, body, name=OLDER))[2]
    assert error_of(post(provider, body, key="other")) == NOT_FOUND
    provider.advance(300)
    assert post(provider, body)[0] == 200
    provider.advance(0.5)
    assert error_of(post(provider, body)) == NOT_FOUND
    assert error_of(post(provider, {**body, "cachedContent": "cachedContents/none"})) == NOT_FOUND


def test_only_ones_own_caches_are_listed_page_by_page() -> None:
    provider = simulator()
    mine = [make_cache(provider, displayName=str(number)) for number in range(3)]
    theirs = make_cache(provider, key="other")
    make_cache(provider, ttl="1s")
    provider.advance(1)
    first = ask(provider, "GET", "cachedContents", query={"pageSize": "2"})[1]
    assert first["cachedContents"] == mine[:2]
    rest = ask(provider, "GET", "cachedContents", query={"pageSize": "2", "pageToken": first["nextPageToken"]})[1]
    assert rest == {"cachedContents": mine[2:]}
    assert ask(provider, "GET", "cachedContents", key="other")[1] == {"cachedContents": [theirs]}
    assert ask(provider, "GET", "cachedContents", key="nobody")[1] == {}
    assert [cache.name for cache in provider.explicit_caches] == [made["name"] for made in (*mine, theirs)]


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
def test_a_cache_that_cannot_be_is_refused(fields: Wire, status: int, words: str) -> None:
    body = {"model": f"models/{FLASH}", "systemInstruction": {"parts": [{"text": LONG}]}, **fields}
    provider = simulator()
    found, _, message = error_of(ask(provider, "POST", "cachedContents", body))
    assert (found, words in message) == (status, True)
    assert provider.explicit_caches == ()


def test_the_floor_of_a_cache_is_that_of_its_model() -> None:
    tokens = make_cache(simulator())["usageMetadata"]["totalTokenCount"]
    body = {"model": f"models/{FLASH}", "systemInstruction": {"parts": [{"text": LONG}]}}
    for floor, status in ((tokens, 200), (tokens + 1, 400)):
        provider = simulator(models=models_with(f"gemini:{FLASH}", explicit_tokens_min=floor))
        assert ask(provider, "POST", "cachedContents", body)[0] == status


@pytest.mark.parametrize("body", [{}, {"displayName": "x"}, {"ttl": "9s", "displayName": "x"}, {"model": "models/x"}])
def test_nothing_but_the_end_of_a_cache_can_be_changed(body: Wire) -> None:
    provider = simulator()
    made = make_cache(provider)
    assert "Only the expiration" in error_of(ask(provider, "PATCH", made["name"], body))[2]
    assert ask(provider, "GET", made["name"]) == (200, made)


def test_there_is_room_for_so_many_caches_and_what_lapses_makes_room() -> None:
    caches = SimulatedExplicitCaches(caches_max=1, bytes_max=10)

    def kept(name: str, held: bytes = b"x") -> CachedContent:
        return CachedContent("w", ExplicitCacheEntry(name, FLASH, 1, expires_at=10.0), {"contents": held})

    caches.store(kept("a"), at=0)
    caches.store(kept("a"), at=1)
    with pytest.raises(ProviderError, match="no room"):
        caches.store(kept("b"), at=9)
    assert caches.find("w", "a", at=9) == kept("a")
    with pytest.raises(ProviderError, match="no room"):
        caches.store(kept("b", b"x" * 11), at=10)
    caches.store(kept("c"), at=10)
    assert caches.list_live(at=0) == (kept("c"),)
