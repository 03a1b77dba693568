"""`holdfast certify`: a stored session is rebuilt from its log, and no byte of it may differ."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from benchmarks._call_histories import RecordedClient
from click.testing import CliRunner, Result

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.chat.app import SIMULATED_CACHE_FILE
from holdfast.cli.main import command
from holdfast.clock import ManualClock
from holdfast.engine.tools.definition import tool
from holdfast.errors import UserError
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared
from holdfast.events.payloads.session import MessageAppended, SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.service.api.prompt_view import find_divergence
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.maintenance import RETAINED_EVENT_TYPES
from holdfast.stores.sqlite.store import SqliteStore

PROMPT = "Follow the rules of the house. " * 2000
SCRIPT = """
{"content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]}
{"content": "Seen."}
{"content": "Yes."}
{"content": "Yes."}
"""


def look() -> str:
    """Look."""
    return "milk"


class StoredSession:
    """A session in a database file, with a tool call, volatile text and a pause."""

    def __init__(self, folder: Path, *, model: str = "anthropic:claude-sonnet-5-5", layout: str = "default") -> None:
        self.db, self.model, self.layout = folder / "log.db", model, layout
        self.simulated = False
        self.clock, self.id = ManualClock(), ""

    async def play(self) -> None:
        texts = iter(["spring", "spring", "summer", "autumn"])
        options: Options = {
            "model": self.model,
            "store": str(self.db),
            "transport": SimulatedProvider(clock=self.clock, script=SCRIPT),
            "clock": self.clock,
            "system_prompt": PROMPT,
            "system_prompt_volatile": lambda: next(texts, "winter"),
            "tools": [tool(look)],
            "allow_uncached": True,
            "simulated": self.simulated,
        }
        if self.layout == "seed":
            options["layout"] = "seed"
        async with Session.create(**options) as session:
            self.id = session.id
            await session.send("Look. " * 3_000)
            self.clock.advance(400)
            await session.send("So?")
            await session.send("And?")

    def change(self, number: int, payload: AnyPayload) -> None:
        """Replace the payload of one event of the log."""
        with SqliteStore(self.db) as store:
            events: list[Event] = list(store.read(self.id))
            events[number] = msgspec.structs.replace(events[number], payload=payload)
            store.delete(self.id)
            store.append(events).result(10)

    def events(self) -> list[Event]:
        with SqliteStore(self.db) as store:
            return list(store.read(self.id))

    def certify(self, *more: str) -> Result:
        return CliRunner().invoke(command, ["certify", self.id, "--db", str(self.db), *more])


@pytest.mark.parametrize(
    "model", ["anthropic:claude-sonnet-5-5", "openai:gpt-5.6", "openai-chat:gpt-5.6", "gemini:gemini-2.5-pro"]
)
async def test_a_session_is_certified_with_every_provider(tmp_path: Path, model: str) -> None:
    stored = StoredSession(tmp_path, model=model)
    await stored.play()
    result = stored.certify()
    assert result.exit_code == 0, result.output
    assert "4 requests certified" in result.output


async def test_a_session_whose_model_left_the_configuration_is_certified_and_its_prompts_are_compared(
    tmp_path: Path,
) -> None:
    stored = StoredSession(tmp_path)
    await stored.play()
    for number, event in enumerate(stored.events()):
        if isinstance(event.payload, SessionStarted | LlmCallCompleted):
            stored.change(number, msgspec.structs.replace(event.payload, model="anthropic:in-no-list"))
    result = stored.certify()
    assert result.exit_code == 0, result.output
    assert "4 requests certified" in result.output
    divergence = find_divergence(stored.events(), stored.id, shipped_models(), ordinal=2)
    assert divergence is not None
    assert divergence.byte is None


async def test_each_request_reports_how_many_bytes_it_shares_with_which_call(tmp_path: Path) -> None:
    stored = StoredSession(tmp_path)
    await stored.play()
    first, second, third, fourth = json.loads(stored.certify("--json").output)
    assert (first["equal_to_call"], first["prefix_bytes"], first["expected_read_tokens"]) == (None, 0, 0)
    assert (second["equal_to_call"], second["expected_read_tokens"]) == (1, second["read_tokens"])
    assert second["prefix_bytes"] > len(PROMPT)
    # After a pause no read is expected; the bytes are still the same.
    assert (third["expected_read_tokens"], third["equal_to_call"]) == (0, 2)
    assert fourth["prefix_bytes"] > third["prefix_bytes"] > second["prefix_bytes"]


async def test_a_message_changed_on_the_log_is_detected(tmp_path: Path) -> None:
    stored = StoredSession(tmp_path)
    await stored.play()
    position, old = next(
        (number, event.payload)
        for number, event in enumerate(stored.events())
        if isinstance(event.payload, MessageAppended)
    )
    message = msgspec.structs.replace(old.message, content=(*old.message.content, *old.message.content))
    stored.change(position, MessageAppended(message))
    result = stored.certify()
    assert result.exit_code == 1
    assert "call 1 is broken: the bytes rebuilt from the log differ from those sent: block" in result.output
    assert "layer 'history'" in result.output


@pytest.mark.parametrize("shared", [-1, 10_000])
async def test_a_wrong_number_of_shared_blocks_is_detected(tmp_path: Path, shared: int) -> None:
    stored = StoredSession(tmp_path)
    await stored.play()
    events = stored.events()
    position, request = next(
        (number, event.payload)
        for number, event in reversed(list(enumerate(events)))
        if isinstance(event.payload, RequestPrepared)
    )
    stored.change(position, msgspec.structs.replace(request, shared_blocks=shared))
    result = stored.certify()
    assert result.exit_code == 1
    assert f"call 4 is broken: it claims {shared} shared blocks, but the previous call has" in result.output


@pytest.mark.parametrize(("simulated", "read"), [(False, 0), (True, 10)])
async def test_a_short_cache_read_is_detected(tmp_path: Path, simulated: bool, read: int) -> None:
    stored = StoredSession(tmp_path)
    stored.simulated = simulated
    await stored.play()
    events = stored.events()
    position = [number for number, event in enumerate(events) if isinstance(event.payload, LlmCallCompleted)][1]
    call = events[position].payload
    assert isinstance(call, LlmCallCompleted)
    usage = msgspec.structs.replace(call.usage, cache_read=read, input=call.usage.cache_read - read)
    stored.change(position, msgspec.structs.replace(call, usage=usage))
    result = stored.certify()
    assert result.exit_code == 1
    assert f"call 2 is broken: only {read} of" in result.output


@pytest.mark.parametrize("is_cache_kept", [True, False], ids=["cache kept", "cache lost"])
def test_a_resumed_simulated_chat_is_certified_and_names_the_reads_it_did_not_require(
    tmp_path: Path, is_cache_kept: bool
) -> None:
    invoke = CliRunner().invoke
    chat = ["chat", str(tmp_path), "--simulate", "--db", str(tmp_path / "log.db")]
    (tmp_path / "AGENTS.md").write_text(PROMPT)
    invoke(command, chat, input="hello\nhello again\n", catch_exceptions=False)
    if not is_cache_kept:
        (Path(os.environ["HOLDFAST_HOME"]) / SIMULATED_CACHE_FILE).unlink()
    invoke(command, [*chat, "--resume"], input="and again\nand once more\n", catch_exceptions=False)
    with SqliteStore(tmp_path / "log.db") as store:
        (row,) = store.sessions()
    certify = ["certify", row.id[:20], "--db", str(tmp_path / "log.db")]
    result = invoke(command, certify)
    assert result.exit_code == 0, result.output
    lost = "The simulated cache was lost with its process. First call of a new one: 3;"
    assert (lost in result.output) is not is_cache_kept
    assert "4 requests certified" in result.output
    certificates = json.loads(invoke(command, [*certify, "--json"]).output)
    assert [certificate["is_restarted"] for certificate in certificates] == [False, False, not is_cache_kept, False]
    assert certificates[2]["expected_read_tokens"] > 1_000
    assert certificates[3]["read_tokens"] >= certificates[3]["expected_read_tokens"] > 1_000


async def test_a_changed_prefix_is_detected_with_its_layer_and_byte(tmp_path: Path) -> None:
    stored = StoredSession(tmp_path, layout="seed")
    await stored.play()
    result = stored.certify()
    assert result.exit_code == 1
    assert "the prefix changed: layer 'volatile', from byte" in result.output
    broken = [certificate for certificate in json.loads(stored.certify("--json").output) if certificate["byte"]]
    assert [certificate["result"] for certificate in broken] == ["broken"]
    assert broken[0]["byte"] > len(PROMPT)


def test_a_wrapped_session_is_not_certifiable_because_it_has_digests_only(tmp_path: Path) -> None:
    client = RecordedClient(SqliteStore(tmp_path / "log.db"))
    for question in ("So?", "And?"):
        client.send({"model": "claude-sonnet-5-5", "messages": [{"role": "user", "content": question}]})
    client.store.close()
    certify = ["certify", client.recorder.session_id, "--db", str(tmp_path / "log.db")]
    result = CliRunner().invoke(command, certify)
    assert result.exit_code == 1
    assert "2 requests not certifiable: only digests were kept" in result.output
    assert "broken" not in result.output
    certificates = json.loads(CliRunner().invoke(command, [*certify, "--json"]).output)
    assert [certificate["result"] for certificate in certificates] == ["not certifiable"] * 2


async def test_requests_of_another_encoding_are_not_certified(tmp_path: Path) -> None:
    stored = StoredSession(tmp_path)
    await stored.play()
    position, old = next(
        (number, event.payload)
        for number, event in enumerate(stored.events())
        if isinstance(event.payload, RequestPrepared)
    )
    stored.change(position, msgspec.structs.replace(old, encoding="ours-0"))
    result = stored.certify()
    assert result.exit_code == 1
    assert "encoded with ours-0" in result.output


async def test_a_pruned_session_is_not_certified_and_its_calls_have_no_verdict(tmp_path: Path) -> None:
    stored = StoredSession(tmp_path)
    await stored.play()
    with SqliteStore(stored.db) as store:
        store.prune(stored.id, RETAINED_EVENT_TYPES, before=float("1e300"))
    refusal = stored.certify().exception
    assert isinstance(refusal, UserError)
    assert f"session {stored.id!r} was pruned: its requests are no longer stored" in str(refusal)
    arguments = ["sessions", "show", stored.id, "--db", str(stored.db)]
    assert " held" not in CliRunner().invoke(command, arguments).output
    calls = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)["calls"]
    assert [(call["prefix_held"], call["verdict"]) for call in calls] == [(None, None)] * 4


def test_a_session_without_requests_has_nothing_to_certify(tmp_path: Path) -> None:
    stored = StoredSession(tmp_path)
    stored.id = "quiet"
    with SqliteStore(stored.db) as store:
        store.append([Event("e1", 1.0, "quiet", "system", SessionStarted(stored.model))]).result(10)
    result = stored.certify()
    assert (result.exit_code, result.output) == (0, "no request has been made yet, so there is nothing to check\n")


def test_an_unknown_session_is_a_one_line_error(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "log.db").close()
    result = CliRunner().invoke(command, ["certify", "nobody", "--db", str(tmp_path / "log.db")])
    assert result.exit_code == 1
    assert "there is no session 'nobody'" in str(result.exception)
