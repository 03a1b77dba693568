"""The chart of a stored session's calls: their layers, their verdicts, their losses."""

import json
from pathlib import Path

from click.testing import CliRunner
from msgspec.structs import replace

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.main import command
from holdfast.cli.sessions.sessions import BAR_CELLS_MAX, CALLS_DRAWN_MAX, draw_calls
from holdfast.clock import CountingIds, ManualClock
from holdfast.events.payloads.calls import LlmCallCompleted
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.layers import LayerSize, compute_layer_runs
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.reply import CacheDiagnosis
from holdfast.types.request_buffer import PrefixDigest

RULES = "Follow the rules of the house. " * 2_000


async def clock_session(store: MemoryStore | SqliteStore, turns: int = 3) -> str:
    """A session whose system prompt contains the time, so that every call but the second changes the prefix."""
    times = iter(["09:00", "09:00", *(f"1{minute % 10}:{minute:02}" for minute in range(60))])
    clock = ManualClock()
    options: Options = {
        "store": store,
        "transport": SimulatedProvider(clock=clock, script='{"content": "Yes."}\n' * 60),
        "clock": clock,
        "new_id": CountingIds(),
        "model": "anthropic:claude-sonnet-5-5",
        "system_prompt": RULES,
        "layout": "seed",
        "system_prompt_volatile": lambda: f"It is {next(times)}.",
    }
    async with Session.create(**options) as session:
        await session.send("So? " * 3_000)
        for _ in range(turns - 1):
            await session.send("So?")
    return session.id


async def test_every_call_is_a_bar_of_its_layers_with_its_verdict() -> None:
    store = MemoryStore()
    events = list(store.read(await clock_session(store)))
    entries = tuple(iter_entries(events, shipped_models()))
    first, second, third, legend = draw_calls(entries, compute_layer_runs(events), 100)
    assert first.endswith(" first_use")
    assert second.endswith(" held")
    assert " prefix_changed -$0.0" in third
    assert legend.split("  ")[-1].endswith(" history")
    bars = [line[5 : 5 + BAR_CELLS_MAX].rstrip() for line in (first, second, third)]
    assert len(bars[0]) <= len(bars[1]) <= len(bars[2]) == BAR_CELLS_MAX
    fills = {part[0] for part in legend.split("  ")}
    assert len(fills) == 3
    assert set(bars[2]) < fills  # A line with the time is too short for a cell.


async def test_a_provider_diagnosis_that_contradicts_bytes_and_usage_is_shown_also_on_a_hit(
    tmp_path: Path,
) -> None:
    memory, path = MemoryStore(), str(tmp_path / "sessions.db")
    id = await clock_session(memory)
    diagnoses = iter(
        [None, CacheDiagnosis("miss", "system_changed", 9_000), CacheDiagnosis("miss", "tools_changed", 9_000)]
    )
    with SqliteStore(path) as store:
        for event in memory.read(id):
            if isinstance(event.payload, LlmCallCompleted):
                event = replace(event, payload=replace(event.payload, diagnosis=next(diagnoses)))
            store.append([event]).result(10)
    output = CliRunner().invoke(command, ["sessions", "show", id, "--db", path], catch_exceptions=False).output
    lines = output.splitlines()
    hit_line = lines.index("call 2: held")
    assert (
        lines[hit_line + 1] == "    but the provider reports a miss (system_changed), but the cached tokens were read"
    )
    assert "    but the provider reports tools_changed, but our bytes changed in the system" in lines
    assert "call 1" not in output


async def test_the_newest_calls_are_drawn_and_the_rest_are_counted() -> None:
    store = MemoryStore()
    events = list(store.read(await clock_session(store, CALLS_DRAWN_MAX + 2)))
    lines = draw_calls(tuple(iter_entries(events, shipped_models())), compute_layer_runs(events), 30)
    assert len(lines) == CALLS_DRAWN_MAX + 2
    assert lines[0].startswith("   3 ")
    assert lines[-1] == "2 earlier calls not drawn"
    assert draw_calls((), {}, 80) == []


async def test_the_layers_of_a_prompt_are_those_of_its_digest_chain() -> None:
    store = MemoryStore()
    events = list(store.read(await clock_session(store, 1)))
    (parts,) = compute_layer_runs(events).values()
    layers = [part.layer for part in parts]
    assert layers[-2:] == ["volatile", "history"]
    digests = next(event.payload.digests for event in events if hasattr(event.payload, "digests"))
    assert all(isinstance(digest, PrefixDigest) for digest in digests)
    assert sum(part.bytes for part in parts) == digests[-1].end
    assert parts[-1] == LayerSize("history", digests[-1].end - digests[-1].start)


async def test_show_prints_what_changed_the_prefix_and_json_has_the_layers(tmp_path: Path) -> None:
    path = str(tmp_path / "sessions.db")
    with SqliteStore(path) as store:
        id = await clock_session(store)
    output = CliRunner().invoke(command, ["sessions", "show", id, "--db", path], catch_exceptions=False).output
    assert "call 3: prefix_changed at byte " in output
    assert "it looks like a time of day; likely cause: clock" in output
    assert "    -" in output
    assert "Xx xx 00:00." in output
    json_output = (
        CliRunner().invoke(command, ["sessions", "show", id, "--db", path, "--json"], catch_exceptions=False).output
    )
    assert [part["layer"] for part in json.loads(json_output)["calls"][2]["layers"]][-1] == "history"
