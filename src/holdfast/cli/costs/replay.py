"""`holdfast replay`: what recorded conversations would have cost under different cache policies."""

import contextlib
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.catalog.lookup import find_model
from holdfast.cli.format import format_count, print_json, track_progress
from holdfast.cli.open_store import load_configured_models
from holdfast.cli.options import json_option
from holdfast.cli.tables import print_table
from holdfast.errors import UserError
from holdfast.replay.comparison import ALL_POLICIES, PolicyFactory, PolicyRow, ReplayTotals, compare_policies
from holdfast.replay.model_accuracy import format_model_fit, measure_model_fit
from holdfast.replay.playback import OnRequest, ReplaySetting, make_replay_setting
from holdfast.replay.recording import Recording
from holdfast.types.json_encoding import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.catalog.schema import Model
    from holdfast.cli.costs.entry_points import EntryPoint
    from holdfast.compaction.models import CompactionMode


@click.command("replay")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--model", "model_name", required=True, help="Model whose cache rules and prices apply, as provider:name."
)
@click.option("--policy", default=ALL_POLICIES, show_default=True, help="Name of one policy, or all.")
@click.option(
    "--via",
    multiple=True,
    type=click.Choice(["session", "gateway", "wrap"]),
    help="Also play through the code of this entry point; can be repeated.",
)
@click.option("--lookback", type=click.Choice(["blocks", "positions"]), help="Unit of the provider's cache lookback.")
@click.option(
    "--compaction",
    type=click.Choice(["off", "threshold", "economical"]),
    help="Compact each conversation whenever a session in this mode would have. Default: as recorded.",
)
@click.option("--keep-alive", is_flag=True, help="Let policies ping an idle cache.")
@click.option(
    "--truth",
    type=click.Choice(["upgrade", "no-upgrade"]),
    default="upgrade",
    show_default=True,
    help="Whether a 1h breakpoint also extends a 5m prefix before it; policies do not know the answer.",
)
@click.option(
    "--requests-out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every request of the selected policy to this file, one JSON object per line.",
)
@json_option
def command(
    *,
    traces: tuple[Path, ...],
    model_name: str,
    policy: str,
    via: tuple[str, ...],
    lookback: str | None,
    compaction: "CompactionMode | None",
    keep_alive: bool,
    truth: str,
    requests_out: Path | None,
    as_json: bool,
) -> None:
    """Replay recorded conversations call by call with their own timestamps, and compare the cost of cache policies.

    TRACES are .jsonl or .jsonl.gz files, or folders of them. Costs cover prompts only: no policy changes what replies
    cost. --via shows what a gateway with --improve, a session or a wrapped client would have sent and paid; for a model
    without breakpoints of its own, such as Gemini's, it shows only these.
    """
    from holdfast.replay.trace_files import find_trace_files

    if requests_out is not None and (policy == ALL_POLICIES or via):
        raise UserError("requests are written for one policy; name it with --policy, without --via")
    policies = PolicyFactory(policy, keep_alive=keep_alive)
    model = find_model(model_name, load_configured_models())
    if via and model.cache.kind in ("hybrid", "implicit"):
        _replay_simulated(find_trace_files(traces), model, via, as_json=as_json)
        return
    setting = make_replay_setting(model, ttl_upgrade=truth == "upgrade", lookback=lookback)
    setting = msgspec.structs.replace(setting, keep_alive=keep_alive)
    players = _create_players(via, setting)
    files = find_trace_files(traces)
    totals = _replay_all(files, policies, players, setting, compaction=compaction, requests_out=requests_out)
    if not totals.recordings:
        raise UserError(f"none of the {totals.broken} lines holds a conversation; check the traces")
    if as_json:
        print_json(totals.build_report())
    else:
        _show(totals)


def _replay_simulated(files: tuple[Path, ...], model: "Model", via: tuple[str, ...], *, as_json: bool) -> None:
    """The entry points alone, at the provider's simulator: a cache without breakpoints leaves no policy to compare."""
    from holdfast.cli.costs.entry_points import create_player, play_simulated
    from holdfast.replay.trace_files import read_traces

    setting = ReplaySetting(model, model.cache, model.cache)
    costs = {player: Decimal(0) for player in (create_player(name, setting) for name in dict.fromkeys(via))}
    conversations = 0
    for recording in track_progress(read_traces(files, compactions=True), "conversations"):
        if isinstance(recording, Recording):
            conversations += 1
            for player in costs:
                costs[player] += play_simulated(player, recording, model)
    if not conversations:
        raise UserError("no line holds a conversation; check the traces")
    rows = [(player.name, cost) for player, cost in costs.items()]
    if as_json:
        entry_points = [{"entry_point": name, "cost_usd": float(cost)} for name, cost in rows]
        print_json({"conversations": conversations, "entry_points": entry_points})
        return
    print_table(("entry point", "cost"), ((name, f"${cost:.4f}") for name, cost in rows))
    click.echo(f"{format_count(conversations, 'conversation')}; the prompts alone, at the provider's simulator")


def _create_players(via: tuple[str, ...], setting: "ReplaySetting") -> "tuple[EntryPoint, ...]":
    if not via:
        return ()
    from holdfast.cli.costs.entry_points import create_player

    return tuple(create_player(name, setting) for name in dict.fromkeys(via))


def _replay_all(
    files: tuple[Path, ...],
    policies: PolicyFactory,
    players: "tuple[EntryPoint, ...]",
    setting: "ReplaySetting",
    *,
    compaction: "CompactionMode | None",
    requests_out: Path | None,
) -> ReplayTotals:
    from holdfast.compaction.models import CompactionConfig
    from holdfast.replay.compaction import compact_recording
    from holdfast.replay.trace_files import read_traces

    totals = ReplayTotals()
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(requests_out.open("wb")) if requests_out is not None else None
        for recording in track_progress(read_traces(files, compactions=compaction is None), "conversations"):
            if not isinstance(recording, Recording):
                totals.broken += 1
                continue
            on_request = _request_writer(out.write, recording.id) if out is not None else None
            played, model_fit = recording, None
            if compaction is not None:
                # The recorded usage is of the uncompacted conversation, so it cannot validate the cache model here.
                compacted = compact_recording(recording, setting.model, CompactionConfig(mode=compaction))
                totals.compactions += compacted.compactions
                played = compacted.recording
            else:
                model_fit = measure_model_fit(recording, setting)
            for player in players:
                player.open_recording(played)
            comparison = compare_policies(played, (*policies.create_policies(), *players), setting, on_request)
            totals.add_comparison(comparison, model_fit, len(recording.calls))
    return totals


def _request_writer(write: "Callable[[bytes], int]", conversation: str) -> "OnRequest":
    def write_request(policy: str, at: float, body: bytes) -> None:
        # Raw keeps the body byte for byte as it would be sent.
        write(encode_json({"conversation": conversation, "at": at, "body": msgspec.Raw(body)}) + b"\n")

    return write_request


def _show(totals: ReplayTotals) -> None:
    report = totals.build_report()
    print_policies(report.policies)
    played = f"{format_count(report.conversations, 'conversation')}, {format_count(report.calls, 'call')}"
    click.echo(f"{played}; bound ${report.bound_usd:.4f}, optimum ${report.optimum_usd:.4f}")
    if report.compactions:
        click.echo(format_count(report.compactions, "compaction"))
    if report.broken_lines:
        click.echo(f"{report.broken_lines} broken lines were skipped")
    if totals.model_fit is not None:
        for question, figures in format_model_fit(totals.model_fit):
            click.echo(f"{question}: {figures}")


def print_policies(policies: Iterable[PolicyRow]) -> None:
    """Cheapest first."""
    headings = ("policy", "cost", "read share", "vs best", "vs bound", "vs optimum", "pings", "misses")
    print_table(headings, map(_policy_cells, sorted(policies, key=lambda row: row.cost_usd)))


def _policy_cells(row: PolicyRow) -> tuple[str, ...]:
    ratios = (f"{ratio:.3f}" for ratio in (row.to_best, row.to_bound, row.to_optimum))
    counts = (str(row.pings), str(row.cache_misses))
    return row.policy, f"${row.cost_usd:.4f}", f"{row.read_share:.2%}", *ratios, *counts
