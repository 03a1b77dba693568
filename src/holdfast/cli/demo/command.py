"""`holdfast demo`: runs a coding session of several turns over HTTP and shows what its cache saved."""

import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import format_count, format_usd, print_json
from holdfast.cli.options import json_option
from holdfast.errors import UserError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from decimal import Decimal

    from holdfast.catalog.schema import Model
    from holdfast.ledger.accounting import CallRecord
    from holdfast.ledger.calls import Bill
    from holdfast.simulator.provider import SimulatedProvider

SPEND_MAX_USD = "2.00"  # A safety limit for --live, which is expected to cost a few cents.
_COLUMNS = "{:>4}  {:>7}  {:>7}  {:>7}  {:>8}  {:>6}  {:>10}  {:>10}"


@click.command("demo")
@json_option
@click.option("--model", help="Model to use, such as openai:gpt-6-luna or gemini:gemini-3.8-flash.")
@click.option("--live", is_flag=True, help="Run against the real API; needs the provider's key and costs a few cents.")
@click.option("--keep", is_flag=True, help="Store the session in the configured store.")
def command(as_json: bool, model: str | None, live: bool, keep: bool) -> None:
    """Run a cached multi-turn coding session and show what each call cost.

    Works offline: a simulated provider on a free local port answers, with the cache rules of the model's provider. The
    tools are real and work in a temporary folder.
    """
    import asyncio
    import tempfile

    from holdfast.catalog.lookup import apply_model_overrides, find_model, shipped_models
    from holdfast.cli.demo import scenario
    from holdfast.providers.registry import get_provider
    from holdfast.runtime.config import load_config
    from holdfast.simulator.provider import SimulatedProvider

    config = load_config(os.environ, flags={"model": model})
    models = apply_model_overrides(shipped_models(), config.models)
    row = find_model(config.model, models)
    provider_row = get_provider(row.provider)
    if provider_row.is_command:
        raise UserError(f"{row.provider} runs its own tools and cannot use the demo's; try another --model")
    if live and not os.environ.get(provider_row.key_variable):
        raise UserError(f"--live needs a key: set {provider_row.key_variable}, or leave out --live to run offline")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        store = config.db_path if keep else str(Path(folder) / "demo.db")
        provider = None if live else SimulatedProvider(models=models, script=scenario.read_script())
        asyncio.run(_play(Path(folder), row, provider, store=store, as_json=as_json, keep=keep))


async def _play(
    folder: Path, model: "Model", provider: "SimulatedProvider | None", *, store: str, as_json: bool, keep: bool
) -> None:
    from holdfast.cli.demo import scenario
    from holdfast.cli.tables import wrap_text
    from holdfast.events.log import Event
    from holdfast.events.payloads.calls import LlmCallCompleted
    from holdfast.ledger.calls import compute_bill, explicit_cache_cost_usd, iter_calls
    from holdfast.providers.registry import get_provider
    from holdfast.runtime.options import Options
    from holdfast.runtime.session import Session
    from holdfast.stores.open import open_store
    from holdfast.types.blocks import join_text_blocks

    project = folder / "project"
    project.mkdir()
    scenario.write_project(project)
    show = (lambda text: None) if as_json else click.echo
    log = open_store(store)
    try:
        async with _address(provider, get_provider(model.provider).path_prefix) as base_url:
            options: Options = {
                "model": model.id,
                "name": "demo",
                "system_prompt": scenario.build_system_prompt(model),
                "system_prompt_volatile": scenario.make_work_state(project),
                "tools": scenario.make_demo_tools(project),
                "store": log,
                # Fixed, whatever is configured, so that the demo prints the same numbers for everyone.
                "layout": "default",
                "profile": "default",
                "steps_max": 50,
                "spend_max_usd": SPEND_MAX_USD,
                "allow_uncached": True,
                "simulated": provider is not None,
            }
            if base_url is not None:
                options |= {"base_url": base_url, "api_key": "demo"}
            async with Session.create(**options) as session:
                show(_heading(model, live=provider is None))
                events: list[Event] = []
                for ask in scenario.USER_MESSAGES:
                    show(click.style(wrap_text(f"> {ask}"), bold=True))
                    async for item in session.stream(ask):
                        if isinstance(item, Event):
                            events.append(item)
                            if isinstance(item.payload, LlmCallCompleted):
                                show(_line(tuple(iter_calls(events))[-1], model))
                    reply = " ".join(join_text_blocks(session.history[-1].content).split())
                    show(click.style(wrap_text(f"      {reply}", piped_width=98), dim=True))
        # Read after the session is closed: only then is an explicit cache deleted and its storage cost recorded.
        events = list(log.read(session.id))
    finally:
        log.close()
    total = compute_bill(iter_calls(events), model, explicit_cache_usd=explicit_cache_cost_usd(events))
    _conclude(tuple(iter_calls(events)), total, show, as_json=as_json, stored_id=session.id if keep else None)
    if not model.supports_prompt_caching:
        show(f'Caching is off for this route. To turn it on: [models."{model.id}"] supports_prompt_caching = true')
    if keep:
        show(f"\nStored: holdfast sessions show {session.id}")


@asynccontextmanager
async def _address(provider: "SimulatedProvider | None", prefix: str) -> "AsyncIterator[str | None]":
    """Serve the simulator and yield its base URL; None for the real API."""
    from holdfast.simulator.server import serve_simulator

    if provider is None:
        yield None
        return
    server = await serve_simulator(provider)
    try:
        yield server.url + prefix
    finally:
        await server.aclose()


def _heading(model: "Model", *, live: bool) -> str:
    where = "the real API" if live else "a simulated provider on this machine"
    columns = _COLUMNS.format("call", "prompt", "read", "written", "uncached", "out", "cost", "saved")
    return f"{model.id}, {where}\n\n{columns}"


def _line(record: "CallRecord", model: "Model") -> str:
    from holdfast.ledger.calls import compute_bill

    usage = record.usage
    tokens = (usage.tokens_sent, usage.cache_read, usage.cache_write, usage.input, usage.output)
    saved = format_usd(compute_bill([record], model).saved_usd, 6)
    return _COLUMNS.format(record.number, *tokens, f"${record.cost_usd:.6f}", saved)


def _plain(amount: "Decimal") -> str:
    """The exact amount without trailing zeros."""
    return f"{amount.normalize():f}"


def _conclude(
    records: "tuple[CallRecord, ...]",
    total: "Bill",
    show: "Callable[[str], None]",
    *,
    as_json: bool,
    stored_id: str | None,
) -> None:
    if as_json:
        turns = [
            {
                "call": record.number,
                "input": record.usage.input,
                "cache_read": record.usage.cache_read,
                "cache_write": record.usage.cache_write,
                "output": record.usage.output,
                "cost_usd": _plain(record.cost_usd),
            }
            for record in records
        ]
        result: dict[str, object] = {
            "model": records[0].model if records else "",
            "turns": turns,
            "total_cost_usd": _plain(total.cost_usd),
            "uncached_cost_usd": _plain(total.uncached_cost_usd),
            "saved_usd": _plain(total.saved_usd),
            "read_share": round(total.usage.read_share, 4),
        }
        if total.explicit_cache_cost_usd:
            result["explicit_cache_cost_usd"] = _plain(total.explicit_cache_cost_usd)
        if stored_id is not None:
            result["session_id"] = stored_id
        print_json(result)
        return
    unchanged = sum(record.is_prefix_unchanged for record in records)
    share = 100 * total.saved_usd / total.uncached_cost_usd
    show("")
    show(
        f"{format_count(total.calls, 'call')}, {unchanged} of them with an unchanged prefix; "
        f"{total.usage.read_share:.0%} of the prompt read from cache"
    )
    show(
        f"cost ${total.cost_usd:.6f}; without caching ${total.uncached_cost_usd:.6f}: "
        f"saved {format_usd(total.saved_usd, 6)} ({share:.0f} %)"
    )
    if total.explicit_cache_cost_usd:
        show(f"of that cost, ${total.explicit_cache_cost_usd:.6f} was for creating and storing an explicit cache")
