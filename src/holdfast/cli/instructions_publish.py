"""`holdfast instructions` check, publish, approve, promote, archive, rollback: from a folder to what is told."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.instructions_opened import agent_option, db_option, is_there, json_option, opened, print_json

if TYPE_CHECKING:
    from holdfast.instructions.checking import Checked
    from holdfast.instructions.deploying import Deployed
    from holdfast.instructions.publishing import Published

_folder = click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
_entity = click.option("--entity", metavar="URI", help="On whose behalf, such as acme:user/ann.")


@click.command("check")
@_folder
@db_option
@json_option
def check(folder: Path, db: str | None, as_json: bool) -> None:
    """Say whether the folder that `migrate --out` has written could be published; end with 1 where it could not.

    Also shown are flaws that keep nothing from being published: see `lint`.
    """
    from holdfast.cli.instructions_shown import show_checked

    if is_there(db):
        with opened(db) as library:
            checked = library.check(folder)
    else:
        checked = _checked_alone(folder)
    if as_json:
        print_json({"passed": checked.passed, "checked": checked})
    else:
        show_checked(checked)
    if not checked.passed:
        raise click.exceptions.Exit(1)


def _checked_alone(folder: Path) -> "Checked":
    """Where nothing was ever published there is no store, and looking makes none."""
    import os

    from holdfast.instructions.callers import Caller
    from holdfast.instructions.checking import check_draft, given_approvals
    from holdfast.instructions.migration.folder import read_folder
    from holdfast.instructions.values import Agent
    from holdfast.runtime.instruction_settings import load_instructions

    settings = load_instructions(os.environ).settings
    given = read_folder(folder)
    manifest = given.manifest
    agent = Agent(manifest.agent_id, settings.deployment, 0, always_rules=manifest.always_rules or ())
    approvals = given_approvals(manifest.approvals, agent, Caller("admin", "embedded"), at=0)
    return check_draft(manifest.draft, given.texts, agent, settings=settings, approvals=approvals)


@click.command("publish")
@_folder
@db_option
@_entity
@click.option("--skip-gate", is_flag=True, help="Publish units that are not found too; goes on record.")
@json_option
def publish(*, folder: Path, db: str | None, entity: str | None, skip_gate: bool, as_json: bool) -> None:
    """Publish DIR: texts that changed as new versions, then the manifest, if it passes every check."""
    with opened(db, make=True, entity=entity) as library:
        done = library.publish(folder, skip_coverage_gate=skip_gate)
    _show_deployed(done, as_json=as_json)


@click.command("approve")
@click.argument("unit")
@agent_option
@db_option
@_entity
@click.option("--reason", default="", help="What you found; needed for a unit that stands first.")
@json_option
def approve(*, unit: str, agent: str, db: str | None, entity: str | None, reason: str, as_json: bool) -> None:
    """Approve the newest version of UNIT, which is preloaded or guaranteed, so that it is told from now on.

    `publish` and `rollback` say which versions wait for that.
    """
    with opened(db, entity=entity) as library:
        done = library.approve(unit, agent=agent, reason=reason)
    if as_json:
        print_json(done)
    else:
        click.echo(f"approved {done.fact_uri}: {', '.join(done.kinds) or 'nothing was missing'}")
        click.echo("it is told from now on" if done.activated else "it still waits for the approval of another agent")


@click.command("promote")
@agent_option
@db_option
@_entity
@click.option("--force", is_flag=True, help="Before the week is over; never for agents that are flagged sensitive.")
@json_option
def promote(*, agent: str, db: str | None, entity: str | None, force: bool, as_json: bool) -> None:
    """Let units stand alone: refused before 7 days, and unless fewer than one in ten units was missed in them."""
    with opened(db, entity=entity) as library:
        done = library.promote(agent, force=force)
    _show_published(done, as_json=as_json)


@click.command("archive")
@click.argument("files", metavar="FILES...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@agent_option
@db_option
@click.option("--root", type=click.Path(file_okay=False, path_type=Path), default=".", help="The project; else here.")
def archive(files: tuple[Path, ...], agent: str, db: str | None, root: Path) -> None:
    """Move FILES below docs/legacy-instructions, each with a note of where its text is now."""
    with opened(db) as library:
        done = library.archive(*files, root=root, agent=agent)
    for old, new in done.moved:
        click.echo(f"{old} -> {new}")


@click.command("rollback")
@click.argument("version")
@agent_option
@db_option
@_entity
@json_option
def rollback(*, version: str, agent: str, db: str | None, entity: str | None, as_json: bool) -> None:
    """Publish the manifest VERSION, and the texts of its time, as a new version."""
    with opened(db, entity=entity) as library:
        done = library.rollback(version, agent=agent)
    _show_deployed(done, as_json=as_json)


def _show_deployed(done: "Deployed", *, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    for name, change in done.changes.items():
        if change != "noop":
            click.echo(f"{change} {name}")
    if done.published is None:
        click.echo(f"{done.version} holds already; nothing to publish")
        for line in done.waiting:
            click.echo(f"warning: {line}")
    else:
        _show_published(done.published, as_json=False)
    if done.waiting:
        click.echo("see `holdfast instructions approve --help`")


def _show_published(done: "Published", *, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    manifest = done.manifest
    click.echo(f"published {manifest.fact_uri}: {len(manifest.body)} units, {manifest.token_count} tokens")
    for warning in done.warnings:
        click.echo(f"warning: {warning}")
