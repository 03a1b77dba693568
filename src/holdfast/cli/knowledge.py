"""`holdfast knowledge`: what earlier sessions have taught, kept as files, and what of it a prompt is told."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.counts import counted
from holdfast.cli.groups import Group

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.catalog.rows import Model
    from holdfast.knowledge.folder import KnowledgeFolder
    from holdfast.knowledge.harvest import HarvestPlan, Outcome

HOUR_SECONDS = 3600


@click.group("knowledge", cls=Group)
def command() -> None:
    """Harvest sessions that are over, and look at what is known of a project.

    Knowledge is kept as Markdown in .holdfast/knowledge of the workspace; edit it as you like, what you write wins.
    """


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_db = click.option("--db", help="The store: a path or a URL. Default: the configured one.")
_NO_WORKSPACE = "holdfast.no_workspace"


def _remember(context: click.Context, option: click.Parameter, chosen: bool) -> None:
    context.meta[_NO_WORKSPACE] = chosen


def _workspace(function: "Callable[..., None]") -> "Callable[..., None]":
    """Whose knowledge it is: `_folder` knows which of the two was said."""
    function = click.option(
        "--no-workspace",
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="That of sessions without a workspace, below $HOLDFAST_HOME.",
    )(function)
    return click.option(
        "--workspace",
        type=click.Path(exists=True, file_okay=False),
        default=".",
        show_default="this folder",
        help="Whose knowledge it is, and whose sessions are harvested.",
    )(function)


@command.command("harvest")
@click.option("--apply", "applies", is_flag=True, help="Do it; otherwise only show what would be done.")
@click.option("--quiet-hours", type=click.FloatRange(min=0), default=24.0, show_default=True,
              help="A session that has said nothing for so long is over, too.")  # fmt: skip
@click.option("--ask", "model", metavar="MODEL", help="Have this model look at each session, too; it costs money.")
@click.option("--simulated", is_flag=True, help="Also sessions with a simulated model.")
@_workspace
@_db
@_json
def harvest(
    *,
    applies: bool,
    quiet_hours: float,
    model: str | None,
    simulated: bool,
    workspace: str,
    db: str | None,
    as_json: bool,
) -> None:
    """Find by rule what sessions that are over hold: facts, decisions, tasks, questions, playbooks, notes on files.

    What may hold a secret is left out. An unchanged session is never harvested twice.
    """
    import msgspec

    from holdfast.cli.stores import open_configured
    from holdfast.clock import system_clock
    from holdfast.knowledge.harvest import apply_harvest, plan_harvest
    from holdfast.knowledge.journal import read_journal
    from holdfast.runtime.asking_models import model_asked
    from holdfast.runtime.knowing import project_files, spoken_in

    folder, root = _folder(workspace)
    asked = _known_model(model) if model else None
    with open_configured(db) as log:
        sessions = spoken_in(
            log,
            at=system_clock(),
            workspace=root,
            quiet_seconds=quiet_hours * HOUR_SECONDS,
            known=read_journal(folder).seen,
            simulated=simulated,
        )
        if applies:
            ask = model_asked(log, asked.id) if asked else None
            done = apply_harvest(folder, sessions, project=project_files(root), ask=ask)
            _print_json(msgspec.to_builtins(done)) if as_json else _tell_outcome(done, folder)
            return
        plan = plan_harvest(folder, sessions)
    _print_json(msgspec.to_builtins(plan)) if as_json else _tell_plan(plan, asked)


def _known_model(name: str) -> "Model":
    from holdfast.catalog.lookup import find_model
    from holdfast.cli.stores import configured_models

    return find_model(name, configured_models())


@command.command("list")
@click.option("--category", type=click.Choice(("facts", "decisions", "tasks", "questions", "playbooks", "files")))
@_workspace
@_json
def list_items(category: str | None, workspace: str, as_json: bool) -> None:
    """Every item, and why it is not in the digest where it is not."""
    import msgspec

    from holdfast.knowledge.shelf import items_in
    from holdfast.ledger.wording import printable

    items = [one for one in items_in(_folder(workspace)[0]) if category in (None, one.category)]
    if as_json:
        _print_json([{**msgspec.to_builtins(one), "held_back": one.held_back} for one in items])
        return
    for item in items:
        why = f"  [{item.held_back}]" if item.held_back else ""
        where = f" {item.scope}:" if item.category == "files" else ""
        click.echo(printable(f"{item.id}  {item.category}:{where} {item.text}{why}"))
    click.echo(counted(len(items), "item"))


@command.command("digest")
@click.option("--rebuild", is_flag=True, help="Make it anew from the pages, for instance after editing them.")
@_workspace
def show_digest(rebuild: bool, workspace: str) -> None:
    """What new sessions are told; delete digest.md to tell them nothing."""
    from holdfast.knowledge.harvest import rebuild_digest
    from holdfast.ledger.wording import printable
    from holdfast.runtime.knowing import knowledge_text

    folder, _ = _folder(workspace)
    if rebuild:
        with folder.locked():
            rebuild_digest(folder)
    text = knowledge_text(folder)
    click.echo("\n".join(printable(line) for line in text.split("\n")) if text else "There is no digest.")


@command.command("off")
@_workspace
def turn_off(workspace: str) -> None:
    """Keep the digest out of new sessions, also after the next harvest."""
    from holdfast.knowledge.folder import DIGEST, DISABLED

    folder, _ = _folder(workspace)
    folder.replace(DISABLED, b"Knowledge is turned off here; delete this file to turn it on again.\n")
    folder.remove(DIGEST)
    click.echo(f"Knowledge is off; `holdfast knowledge on` or deleting {folder.shown}/{DISABLED} turns it on again.")


@command.command("on")
@_workspace
def turn_on(workspace: str) -> None:
    """Tell new sessions what is known, from the pages as they are."""
    from holdfast.knowledge.folder import DISABLED
    from holdfast.knowledge.harvest import rebuild_digest

    folder, _ = _folder(workspace)
    with folder.locked():
        folder.remove(DISABLED)
        _, made, _ = rebuild_digest(folder)
    click.echo(f"Knowledge is on: {counted(made.items, 'item')} in the digest.")


def _folder(workspace: str) -> "tuple[KnowledgeFolder, Path | None]":
    import os
    from pathlib import Path

    from holdfast.knowledge.folder import knowledge_folder
    from holdfast.sources.home import holdfast_home

    root = None if click.get_current_context().meta[_NO_WORKSPACE] else Path(workspace)
    return knowledge_folder(root, holdfast_home(os.environ)), root


def _tell_plan(plan: "HarvestPlan", asked: "Model | None") -> None:
    from holdfast.clock import system_clock
    from holdfast.runtime.asking_models import cost_of_asking

    for one in plan.sources:
        click.echo(f"{one.session}  {one.said_bytes:>10,} bytes  {counted(len(one.found.items), 'item')}")
    click.echo(
        f"{counted(len(plan.sources), 'session')} to harvest, {plan.known} known: "
        f"{counted(plan.new_items, 'new item')}, {plan.merged_items} with another source"
    )
    if plan.secrets:
        click.echo(f"{counted(plan.secrets, 'text')} left out that may hold a secret")
    if plan.pending:
        click.echo(f"{counted(plan.pending, 'session')} begun by a run that was cut off; --apply finishes it")
    if asked is None:
        click.echo("Found by rule, it costs nothing. Nothing was written; --apply does it.")
    else:
        dollars = cost_of_asking(asked, plan.model_tokens, system_clock())
        click.echo(
            f"{asked.id} would read about {plan.model_tokens:,} tokens, ${dollars:.4f} without its answers. "
            "Nothing was written; --apply does it."
        )


def _tell_outcome(done: "Outcome", folder: "KnowledgeFolder") -> None:
    from decimal import Decimal

    click.echo(f"{counted(done.sessions, 'session')} harvested into {folder.shown}: {counted(done.items, 'item')}")
    if done.secrets:
        click.echo(f"{counted(done.secrets, 'text')} left out that may hold a secret")
    if done.failed:
        click.echo(f"{counted(done.failed, 'session')} left as it is: the model gave no answer that can be used")
    if Decimal(done.cost_usd):
        click.echo(f"the model took ${Decimal(done.cost_usd):.4f}")
    if done.quarantined:
        click.echo(f"{counted(done.quarantined, 'line')} of the ledger cannot be read and was put aside")
    if not done.digest_written:
        click.echo("The digest is turned off and was not written.")
    elif done.change.bytes_changed:
        click.echo(
            f"digest.md: {counted(done.digest.items, 'item')}, {done.change.bytes_after:,} bytes, another one from "
            f"byte {done.change.first_byte:,} on; new sessions write about {done.change.bytes_changed // 4:,} tokens "
            "of it anew, and what stands behind it"
        )
    else:
        click.echo(f"digest.md: {counted(done.digest.items, 'item')}, unchanged")


def _print_json(value: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
