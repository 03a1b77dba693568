"""`holdfast certify`: a stored session is made anew from its log, and nothing in it may have moved."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

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


class Kept:
    """A session in a file, with a tool, volatile text and a pause in it."""

    def __init__(self, folder: Path, *, model: str = "anthropic:claude-sonnet-5-5", layout: str = "default") -> None:
        self.db, self.model, self.layout = folder / "log.db", model, layout
        self.simulated = False
        self.clock, self.id = ManualClock(), ""

    async def play(self) -> None:
        said = iter(["spring", "spring", "summer", "autumn"])
        options: Options = {
            "model": self.model,
            "store": str(self.db),
            "transport": SimulatedProvider(clock=self.clock, script=SCRIPT),
            "clock": self.clock,
            "system_prompt": PROMPT,
            "system_prompt_volatile": lambda: next(said, "winter"),
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
        """Rewrite one event of the log."""
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
async def test_a_session_holds_with_every_provider(tmp_path: Path, model: str) -> None:
    kept = Kept(tmp_path, model=model)
    await kept.play()
    result = kept.certify()
    assert result.exit_code == 0, result.output
    assert "4 requests certified" in result.output


async def test_each_request_says_with_how_many_bytes_of_which_call_it_begins(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.play()
    first, second, third, fourth = json.loads(kept.certify("--json").output)
    assert (first["equal_to_call"], first["prefix_bytes"], first["expected_read_tokens"]) == (None, 0, 0)
    assert (second["equal_to_call"], second["expected_read_tokens"]) == (1, second["read_tokens"])
    assert second["prefix_bytes"] > len(PROMPT)
    # After a pause nothing has to be read; the bytes are the same all the same.
    assert (third["expected_read_tokens"], third["equal_to_call"]) == (0, 2)
    assert fourth["prefix_bytes"] > third["prefix_bytes"] > second["prefix_bytes"]


async def test_a_message_that_was_changed_on_the_log_is_found(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.play()
    place, old = next(
        (number, event.payload)
        for number, event in enumerate(kept.events())
        if isinstance(event.payload, MessageAppended)
    )
    message = msgspec.structs.replace(old.message, content=(*old.message.content, *old.message.content))
    kept.change(place, MessageAppended(message))
    result = kept.certify()
    assert result.exit_code == 1
    assert "call 1 failed: the bytes rebuilt from the log differ from those sent: block" in result.output
    assert "layer 'history'" in result.output


@pytest.mark.parametrize("shared", [-1, 10_000])
async def test_a_request_that_shares_what_was_never_sent_is_found(tmp_path: Path, shared: int) -> None:
    kept = Kept(tmp_path)
    await kept.play()
    events = kept.events()
    place, request = next(
        (number, event.payload)
        for number, event in reversed(list(enumerate(events)))
        if isinstance(event.payload, RequestPrepared)
    )
    kept.change(place, msgspec.structs.replace(request, shared_blocks=shared))
    result = kept.certify()
    assert result.exit_code == 1
    assert f"call 4 failed: it claims {shared} shared blocks, but the previous call has" in result.output


@pytest.mark.parametrize(("simulated", "read"), [(False, 0), (True, 10)])
async def test_a_read_that_is_short_is_found(tmp_path: Path, simulated: bool, read: int) -> None:
    kept = Kept(tmp_path)
    kept.simulated = simulated
    await kept.play()
    events = kept.events()
    place = [number for number, event in enumerate(events) if isinstance(event.payload, LlmCallCompleted)][1]
    call = events[place].payload
    assert isinstance(call, LlmCallCompleted)
    usage = msgspec.structs.replace(call.usage, cache_read=read, input=call.usage.cache_read - read)
    kept.change(place, msgspec.structs.replace(call, usage=usage))
    result = kept.certify()
    assert result.exit_code == 1
    assert f"call 2 failed: only {read} of" in result.output


def test_a_simulated_chat_that_was_resumed_holds_and_says_what_was_not_demanded(tmp_path: Path) -> None:
    invoke = CliRunner().invoke
    chat = ["chat", str(tmp_path), "--simulate", "--store", str(tmp_path / "log.db")]
    (tmp_path / "AGENTS.md").write_text(PROMPT)
    invoke(command, chat, input="hello\nhello again\n", catch_exceptions=False)
    invoke(command, [*chat, "--resume"], input="and again\nand once more\n", catch_exceptions=False)
    with SqliteStore(tmp_path / "log.db") as store:
        (row,) = store.sessions()
    certify = ["certify", row.id[:20], "--db", str(tmp_path / "log.db")]
    result = invoke(command, certify)
    assert result.exit_code == 0, result.output
    assert "A simulated cache ends with its process. First call of a new process: 3;" in result.output
    assert "4 requests certified" in result.output
    made = json.loads(invoke(command, [*certify, "--json"]).output)
    assert [one["is_restarted"] for one in made] == [False, False, True, False]
    assert made[2]["expected_read_tokens"] > 1_000
    assert made[3]["read_tokens"] >= made[3]["expected_read_tokens"] > 1_000


async def test_a_prefix_that_moved_is_found_with_its_layer_and_byte(tmp_path: Path) -> None:
    kept = Kept(tmp_path, layout="seed")
    await kept.play()
    result = kept.certify()
    assert result.exit_code == 1
    assert "the prefix changed: block" in result.output
    assert "layer 'volatile', from byte" in result.output


async def test_bytes_of_another_spelling_are_not_vouched_for(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.play()
    place, old = next(
        (number, event.payload)
        for number, event in enumerate(kept.events())
        if isinstance(event.payload, RequestPrepared)
    )
    kept.change(place, msgspec.structs.replace(old, encoding="ours-0"))
    result = kept.certify()
    assert result.exit_code == 1
    assert "encoded with ours-0" in result.output


async def test_a_pruned_session_is_not_vouched_for_and_its_prefix_is_not_said_to_have_held(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.play()
    with SqliteStore(kept.db) as store:
        store.prune(kept.id, RETAINED_EVENT_TYPES, before=float("1e300"))
    refusal = kept.certify().exception
    assert isinstance(refusal, UserError)
    assert f"session {kept.id!r} was pruned: its requests are no longer stored" in str(refusal)
    asked = ["sessions", "show", kept.id, "--db", str(kept.db)]
    assert " held" not in CliRunner().invoke(command, asked).output
    told = json.loads(CliRunner().invoke(command, [*asked, "--json"]).output)
    assert [(call["prefix_held"], call["verdict"]) for call in told] == [(None, None)] * 4


def test_a_session_that_has_sent_nothing_has_nothing_to_vouch_for(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.id = "quiet"
    with SqliteStore(kept.db) as store:
        store.append([Event("e1", 1.0, "quiet", "system", SessionStarted(kept.model))]).result(10)
    result = kept.certify()
    assert (result.exit_code, result.output) == (0, "no request has been made yet, so there is nothing to check\n")


def test_a_session_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "log.db").close()
    result = CliRunner().invoke(command, ["certify", "nobody", "--db", str(tmp_path / "log.db")])
    assert result.exit_code == 1
    assert "there is no session 'nobody'" in str(result.exception)
