"""`holdfast knowledge`: extracts what finished sessions learned into pages, and manages the digest of new sessions."""

import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from holdfast.cli.format import CommandGroup, format_count, print_json
from holdfast.cli.options import db_option, json_option, workspace_option
from holdfast.clock import system_clock
from holdfast.ledger.requests.format import strip_control_characters

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.catalog.schema import Model
    from holdfast.events.log import EventLog
    from holdfast.knowledge.folder import KnowledgeFolder
    from holdfast.knowledge.harvest import HarvestPlan, HarvestResult
    from holdfast.knowledge.llm_extraction import SendPrompt
    from holdfast.runtime.options import Options

HOUR_SECONDS = 3600


@click.group("knowledge", cls=CommandGroup)
def command() -> None:
    """Extract knowledge from finished sessions, and inspect what is known about a project.

    Knowledge is stored as Markdown in .holdfast/knowledge of the workspace. You can edit it: your text wins.
    """


_NO_WORKSPACE = "holdfast.no_workspace"


def _remember(context: click.Context, option: click.Parameter, chosen: bool) -> None:
    context.meta[_NO_WORKSPACE] = chosen


def _workspace(function: "Callable[..., None]") -> "Callable[..., None]":
    """Add --workspace and --no-workspace; `_folder` reads which of the two applies."""
    function = click.option(
        "--no-workspace",
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="Use the knowledge of sessions without a workspace, in $HOLDFAST_HOME.",
    )(function)
    return workspace_option("Workspace of the knowledge and of the sessions to harvest.")(function)


@command.command("harvest")
@click.option("--apply", "applies", is_flag=True, help="Write the result; without it, only show what would be done.")
@click.option("--quiet-hours", type=click.FloatRange(min=0), default=24.0, show_default=True,
              help="Also harvest sessions without activity for this long.")  # fmt: skip
@click.option("--ask", "model", metavar="MODEL", help="Also have this model read each session; it costs money.")
@click.option("--simulated", is_flag=True, help="Include sessions with a simulated model.")
@_workspace
@db_option
@json_option
def harvest_knowledge(
    *,
    applies: bool,
    quiet_hours: float,
    model: str | None,
    simulated: bool,
    workspace: str,
    db: str | None,
    as_json: bool,
) -> None:
    """Extract facts, decisions, tasks, questions, playbooks and file notes from finished sessions, by rules.

    Text that may contain a secret is left out. An unchanged session is never harvested twice.
    """
    from holdfast.catalog.lookup import find_model
    from holdfast.cli.open_store import load_configured_models, open_configured_store
    from holdfast.knowledge.harvest import apply_harvest, plan_harvest
    from holdfast.knowledge.journal import read_ledger
    from holdfast.runtime.knowledge import finished_sessions, project_lookup

    folder, root = _folder(workspace)
    model_row = find_model(model, load_configured_models()) if model else None
    with open_configured_store(db, writable=applies and model is not None) as log:
        sessions = finished_sessions(
            log,
            at=system_clock(),
            workspace=root,
            quiet_seconds=quiet_hours * HOUR_SECONDS,
            known=read_ledger(folder).harvested_sessions,
            simulated=simulated,
        )
        if applies:
            ask = knowledge_model(log, model_row.id) if model_row else None
            outcome = apply_harvest(folder, sessions, project=project_lookup(root), ask=ask)
            print_json(outcome) if as_json else _show_outcome(outcome, folder)
            return
        plan = plan_harvest(folder, sessions)
    print_json(plan) if as_json else _show_plan(plan, model_row)


@command.command("list")
@click.option("--category", type=click.Choice(("facts", "decisions", "tasks", "questions", "playbooks", "files")))
@_workspace
@json_option
def list_knowledge(category: str | None, workspace: str, as_json: bool) -> None:
    """List all items; those that are not in the digest show why."""
    import msgspec

    from holdfast.knowledge.item_edits import list_knowledge_items

    items = [item for item in list_knowledge_items(_folder(workspace)[0]) if category in (None, item.category)]
    if as_json:
        print_json([{**msgspec.to_builtins(item), "exclusion_reason": item.exclusion_reason} for item in items])
        return
    for item in items:
        reason = f"  [{item.exclusion_reason}]" if item.exclusion_reason else ""
        scope = f" {item.scope}:" if item.category == "files" else ""
        click.echo(strip_control_characters(f"{item.id}  {item.category}:{scope} {item.text}{reason}"))
    click.echo(format_count(len(items), "item"))


@command.command("digest")
@click.option("--rebuild", is_flag=True, help="Rebuild it from the pages, for instance after editing them.")
@_workspace
def show_digest(rebuild: bool, workspace: str) -> None:
    """Show the digest that new sessions receive; delete digest.md to give them none."""
    from holdfast.knowledge.harvest import rebuild_digest
    from holdfast.runtime.knowledge import digest_text

    folder, _ = _folder(workspace)
    if rebuild:
        with folder.lock():
            rebuild_digest(folder)
    text = digest_text(folder)
    click.echo(
        "\n".join(strip_control_characters(line) for line in text.split("\n")) if text else "There is no digest."
    )


@command.command("off")
@_workspace
def turn_off(workspace: str) -> None:
    """Stop giving the digest to new sessions, even after the next harvest."""
    from holdfast.knowledge.folder import DIGEST_FILE, DISABLED_FILE

    folder, _ = _folder(workspace)
    folder.replace(DISABLED_FILE, b"Knowledge is turned off here; delete this file to turn it on again.\n")
    folder.remove(DIGEST_FILE)
    marker = f"{folder.display_path}/{DISABLED_FILE}"
    click.echo(f"Knowledge is off; `holdfast knowledge on` or deleting {marker} turns it on again.")


@command.command("on")
@_workspace
def turn_on(workspace: str) -> None:
    """Give new sessions the digest again, rebuilt from the current pages."""
    from holdfast.knowledge.folder import DISABLED_FILE
    from holdfast.knowledge.harvest import rebuild_digest

    folder, _ = _folder(workspace)
    with folder.lock():
        folder.remove(DISABLED_FILE)
        _, digest, _ = rebuild_digest(folder)
    click.echo(f"Knowledge is on: {format_count(digest.items, 'item')} in the digest.")


def _folder(workspace: str) -> "tuple[KnowledgeFolder, Path | None]":
    from holdfast.knowledge.folder import open_knowledge_folder
    from holdfast.sources.files import holdfast_home

    # --no-workspace is stored in the context's meta, so that no command needs a parameter for it.
    root = None if click.get_current_context().meta[_NO_WORKSPACE] else Path(workspace)
    return open_knowledge_folder(root, holdfast_home(os.environ)), root


def _show_plan(plan: "HarvestPlan", model: "Model | None") -> None:
    for source in plan.sources:
        click.echo(
            f"{source.session}  {source.content_bytes:>10,} bytes  {format_count(len(source.extracted.items), 'item')}"
        )
    click.echo(
        f"{format_count(len(plan.sources), 'session')} to harvest, {plan.unchanged} already harvested: "
        f"{format_count(plan.new_items, 'new item')}, {plan.merged_items} with another source"
    )
    if plan.secrets:
        click.echo(f"{format_count(plan.secrets, 'text')} left out because of possible secrets")
    if plan.pending:
        click.echo(f"{format_count(plan.pending, 'session')} left over from an interrupted run; --apply finishes it")
    if model is None:
        click.echo("Extracted by rules, at no cost. Nothing was written; --apply writes it.")
    else:
        dollars = estimate_input_cost(model, plan.model_tokens, system_clock())
        click.echo(
            f"{model.id} would read about {plan.model_tokens:,} tokens for ${dollars:.4f}, plus its output. "
            "Nothing was written; --apply writes it."
        )


def _show_outcome(outcome: "HarvestResult", folder: "KnowledgeFolder") -> None:
    items = format_count(outcome.items, "item")
    click.echo(f"{format_count(outcome.sessions, 'session')} harvested into {folder.display_path}: {items}")
    if outcome.secrets:
        click.echo(f"{format_count(outcome.secrets, 'text')} left out because of possible secrets")
    if outcome.failed:
        click.echo(f"{format_count(outcome.failed, 'session')} not harvested: the model gave no usable answer")
    if Decimal(outcome.cost_usd):
        click.echo(f"the model cost ${Decimal(outcome.cost_usd):.4f}")
    if outcome.quarantined:
        click.echo(f"{format_count(outcome.quarantined, 'line')} of the journal could not be read and was set aside")
    change, digest_items = outcome.digest_change, format_count(outcome.digest.items, "item")
    if not outcome.digest_written:
        click.echo("The digest is turned off and was not written.")
    elif change.bytes_changed:
        # About four bytes per token: only an order of magnitude is needed here.
        tokens_changed = change.bytes_changed // 4
        click.echo(
            f"digest.md: {digest_items}, {change.bytes_after:,} bytes, changed from byte {change.first_byte:,} on; "
            f"new sessions write about {tokens_changed:,} tokens of it again, and everything after it"
        )
    else:
        click.echo(f"digest.md: {digest_items}, unchanged")


def knowledge_model(log: "EventLog", model: str, /, **options: "Unpack[Options]") -> "SendPrompt":
    """Return a function that sends one prompt to the model.

    Each prompt runs in a session of its own, so that its cost is recorded in `log` like that of any other session.
    """
    from holdfast.knowledge.llm_extraction import ModelReply
    from holdfast.runtime.session import run_sync

    def ask(prompt: str) -> ModelReply:
        defaults: Options = {"model": model, "store": log, "name": "knowledge harvest", "knowledge": False}
        reply = run_sync(prompt, **(defaults | options))
        return ModelReply(reply.text, reply.cost_usd)

    return ask


def estimate_input_cost(model: "Model", tokens: int, at: float) -> Decimal:
    """Estimate the price of `tokens` uncached input tokens; output is not included."""
    from holdfast.catalog.lookup import price_at, utc_date

    # Catalog prices are US dollars per million tokens.
    return price_at(model, utc_date(at), tokens).input * tokens / 1_000_000
