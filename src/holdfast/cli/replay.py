"""`holdfast replay`: what recorded conversations would have cost under different cache policies."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli.counts import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.cli.policies import Roster
    from holdfast.replay.likeness import Likeness
    from holdfast.replay.play import Sent, Setting
    from holdfast.replay.totals import Totals


@click.command("replay")
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--model", "model_name", required=True, help="Model whose cache rules and prices apply, as provider:name."
)
@click.option("--policy", default="all", show_default=True, help="Name of one policy, or all.")
@click.option("--lookback", type=click.Choice(["blocks", "positions"]), help="Unit of the provider's cache lookback.")
@click.option("--compact", is_flag=True, help="Compact each conversation whenever a session would have.")
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *,
    traces: tuple[Path, ...],
    model_name: str,
    policy: str,
    lookback: str | None,
    compact: bool,
    keep_alive: bool,
    truth: str,
    requests_out: Path | None,
    as_json: bool,
) -> None:
    """Replay recorded conversations call by call with their own timestamps, and compare the cost of cache policies.

    TRACES are .jsonl or .jsonl.gz files, or folders of them. Costs cover prompts only: no policy changes what replies
    cost.
    """
    import os

    import msgspec

    from holdfast.catalog.lookup import find_model, shipped_models
    from holdfast.catalog.overrides import with_overrides
    from holdfast.cli.policies import ALL, Roster
    from holdfast.errors import UserError
    from holdfast.replay.play import setting_for
    from holdfast.replay.traces import trace_files
    from holdfast.runtime.config import load_config

    if requests_out is not None and policy == ALL:
        raise UserError("requests are written for one policy; name it with --policy")
    roster = Roster(policy, keep_alive=keep_alive)
    models = with_overrides(shipped_models(), load_config(os.environ, workspace=Path.cwd()).models)
    setting = setting_for(find_model(model_name, models), ttl_upgrade=truth == "upgrade", lookback=lookback)
    setting = msgspec.structs.replace(setting, keep_alive=keep_alive)
    totals = _replay_all(_Traces(trace_files(traces), compact), roster, setting, requests_out)
    if not totals.recordings:
        raise UserError(f"none of the {totals.broken} lines holds a conversation; check the traces")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(totals.report())).decode())
    else:
        _show(totals)


class _Traces(NamedTuple):
    """The files to replay, and whether their conversations are compacted on the way."""

    files: tuple[Path, ...]
    compact: bool


def _replay_all(traces: _Traces, roster: "Roster", setting: "Setting", requests_out: Path | None) -> "Totals":
    import contextlib

    from holdfast.cli.progress import with_progress
    from holdfast.compaction.values import DEFAULT_CONFIG
    from holdfast.replay.compacted import compacted_recording
    from holdfast.replay.compare import compare
    from holdfast.replay.likeness import likeness
    from holdfast.replay.recording import Recording
    from holdfast.replay.totals import Totals
    from holdfast.replay.traces import read_traces

    totals = Totals()
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(requests_out.open("wb")) if requests_out is not None else None
        for recording in with_progress(read_traces(traces.files, compactions=not traces.compact), "conversations"):
            if not isinstance(recording, Recording):
                totals.broken += 1
                continue
            sent = _request_writer(out.write, recording.id) if out is not None else None
            if traces.compact:
                compacted = compacted_recording(recording, setting.model, DEFAULT_CONFIG)
                totals.compactions += compacted.compactions
                # The recorded usage is of the uncompacted conversation, so it cannot validate the cache model here.
                totals.add(compare(compacted.recording, roster.fresh(), setting, sent), None, len(recording.calls))
            else:
                totals.add(
                    compare(recording, roster.fresh(), setting, sent),
                    likeness(recording, setting),
                    len(recording.calls),
                )
    return totals


def _request_writer(write: "Callable[[bytes], int]", conversation: str) -> "Sent":
    import msgspec

    from holdfast.canonical.encoding import plain_json

    def sent(policy: str, at: float, body: bytes) -> None:
        # Raw keeps the body byte for byte as it would be sent.
        write(plain_json({"conversation": conversation, "at": at, "body": msgspec.Raw(body)}) + b"\n")

    return sent


def _show(totals: "Totals") -> None:
    from holdfast.cli.policies import show_policies

    report = totals.report()
    show_policies(report.policies)
    played = f"{counted(report.conversations, 'conversation')}, {counted(report.calls, 'call')}"
    click.echo(f"{played}; bound ${report.bound_usd:.4f}, optimum ${report.optimum_usd:.4f}")
    if report.compactions:
        click.echo(counted(report.compactions, "compaction"))
    if report.broken_lines:
        click.echo(f"{report.broken_lines} broken lines were skipped")
    if totals.likeness is not None:
        _show_likeness(totals.likeness)


def _show_likeness(likeness: "Likeness") -> None:
    from holdfast.replay.likeness import told

    for question, figures in told(likeness):
        click.echo(f"{question}: {figures}")
