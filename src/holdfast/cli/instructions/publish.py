"""`holdfast instructions` check, publish, approve, promote, archive and rollback."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.format import print_json
from holdfast.cli.instructions.open import (
    agent_option,
    create_option,
    open_library,
    open_library_or_service,
    url_option,
)
from holdfast.cli.open_store import resolve_store_address
from holdfast.cli.options import db_option, json_option
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.instructions.manifest.check import DraftCheck
    from holdfast.instructions.manifest.deploy import DeploymentResult
    from holdfast.instructions.manifest.publish import PublicationResult

_folder = click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
_entity = click.option("--entity", metavar="URI", help="Author to act for, such as acme:user/ann.")


@click.command("check")
@_folder
@db_option
@url_option
@json_option
def check(folder: Path, db: str | None, url: str | None, as_json: bool) -> None:
    """Check whether the folder written by `migrate --out` can be published; exit with status 1 if not.

    Also shows flaws that do not prevent publishing: see `lint`.
    """
    from holdfast.cli.instructions.format import show_check_result

    address, has_store = resolve_store_address(db or None)
    if db and not url and not has_store:
        raise UserError(f"there is no store at {address!r}; check the path, or leave --db out")
    if url or has_store:
        with open_library_or_service(db, url) as library:
            checked = library.check(folder)
    else:
        checked = _check_without_store(folder)
    if as_json:
        print_json({"passed": checked.passed, "checked": checked})
    else:
        show_check_result(checked)
    if not checked.passed:
        raise click.exceptions.Exit(1)


def _check_without_store(folder: Path) -> "DraftCheck":
    """Before the first publication there is no store, and a check must not create one."""
    from holdfast.instructions.access import InstructionCaller
    from holdfast.instructions.manifest.check import assume_submitted, check_draft
    from holdfast.instructions.migration.files import read_instruction_folder
    from holdfast.instructions.models import Agent
    from holdfast.runtime.instructions.settings import load_instruction_config

    settings = load_instruction_config(os.environ).settings
    source = read_instruction_folder(folder)
    manifest = source.manifest
    agent = Agent(manifest.agent_id, settings.deployment, 0, always_rules=manifest.always_rules or ())
    approvals = assume_submitted(manifest.approvals, agent, InstructionCaller("admin", "embedded"), at=0)
    return check_draft(manifest.draft, source.texts, agent, settings=settings, approvals=approvals)


@click.command("publish")
@_folder
@db_option
@url_option
@create_option
@_entity
@click.option("--skip-gate", is_flag=True, help="Also publish units that are not found reliably; this is recorded.")
@json_option
def publish(
    *,
    folder: Path,
    db: str | None,
    url: str | None,
    create: bool,
    entity: str | None,
    skip_gate: bool,
    as_json: bool,
) -> None:
    """Publish DIR: changed texts as new versions, then the manifest, if it passes every check."""
    with open_library_or_service(db, url, make=True, create=create, entity=entity) as library:
        deployed = library.publish(folder, skip_coverage_gate=skip_gate)
    _show_deployed(deployed, as_json=as_json)


@click.command("approve")
@click.argument("unit", required=False)
@agent_option
@db_option
@url_option
@_entity
@click.option(
    "--kind",
    type=click.Choice(("guarantee_load", "force_prepend", "task_types")),
    help="Approve this, also before the manifest that needs it is published. Default: what a pending version needs.",
)
@click.option("--version", metavar="VERSION", help="Version of the unit. Default: the newest.")
@click.option("--skip-gate", metavar="VERSION", help="Approve that this manifest version skips the coverage gate.")
@click.option("--reason", default="", help="Result of your review; required for a unit with force_prepend.")
@json_option
def approve(
    *,
    unit: str | None,
    agent: str,
    db: str | None,
    url: str | None,
    entity: str | None,
    kind: str | None,
    version: str | None,
    skip_gate: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """Approve the newest version of UNIT, which is preloaded or guaranteed, so that agents receive it from now on.

    `publish` and `rollback` list the versions that are pending approval. With --kind or --skip-gate, it records an
    approval that a manifest will need when it is published.
    """
    from holdfast.instructions.manifest.validate import SubmittedApproval

    if (unit is None) == (skip_gate is None):
        raise click.UsageError("name a unit, or a manifest version with --skip-gate")
    with open_library_or_service(db, url, writable=True, entity=entity) as library:
        if unit is not None and kind is None:
            approval = library.approve(unit, agent=agent, reason=reason)
        else:
            fields = {"kind": kind or "skip_gate", "unit": unit, "version": skip_gate or version, "reason": reason}
            approval = library.record_approval(msgspec.convert(fields, SubmittedApproval), agent=agent)
    if as_json:
        print_json(approval)
        return
    click.echo(f"approved {approval.fact_uri}: {', '.join(approval.kinds) or 'nothing was missing'}")
    if approval.is_activated:
        click.echo("it is active from now on")
    elif kind is None and skip_gate is None:
        click.echo("it still needs the approval of another agent")


@click.command("withdraw")
@click.argument("unit")
@agent_option
@db_option
@_entity
def withdraw(*, unit: str, agent: str, db: str | None, entity: str | None) -> None:
    """Withdraw the active text of UNIT: no recall, heartbeat or preload returns it from now on.

    Publishing the unit again, as it was or changed, brings it back.
    """
    with open_library(db, writable=True, entity=entity) as library:
        click.echo(f"withdrawn: {library.withdraw(unit, agent=agent)}")


@click.command("promote")
@agent_option
@db_option
@url_option
@_entity
@click.option("--force", is_flag=True, help="Promote before the 7 days are over; not possible for sensitive agents.")
@json_option
def promote(*, agent: str, db: str | None, url: str | None, entity: str | None, force: bool, as_json: bool) -> None:
    """Use units without their files: only after 7 days in which fewer than one in ten units was missed."""
    with open_library_or_service(db, url, writable=True, entity=entity) as library:
        published = library.promote(agent, force=force)
    _show_published(published, as_json=as_json)


@click.command("archive")
@click.argument("files", metavar="FILES...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@agent_option
@db_option
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    help="Project folder. Default: the current one.",
)
def archive(files: tuple[Path, ...], agent: str, db: str | None, root: Path) -> None:
    """Move FILES to docs/legacy-instructions, each with a note that says where its text is now."""
    with open_library(db) as library:
        archived = library.archive(*files, root=root, agent=agent)
    for old, new in archived.moved_files:
        click.echo(f"{old} -> {new}")


@click.command("rollback")
@click.argument("version")
@agent_option
@db_option
@_entity
@json_option
def rollback(*, version: str, agent: str, db: str | None, entity: str | None, as_json: bool) -> None:
    """Publish manifest VERSION, with the texts it had at that time, as a new version."""
    with open_library(db, writable=True, entity=entity) as library:
        deployed = library.rollback(version, agent=agent)
    _show_deployed(deployed, as_json=as_json)


def _show_deployed(deployed: "DeploymentResult", *, as_json: bool) -> None:
    if as_json:
        print_json(deployed)
        return
    for name, change in deployed.changes.items():
        if change != "noop":
            click.echo(f"{change} {name}")
    if deployed.published is None:
        click.echo(f"{deployed.version} is already published; nothing to do")
        for line in deployed.pending:
            click.echo(f"warning: {line}")
    else:
        _show_published(deployed.published, as_json=False)
    if deployed.pending:
        click.echo("see `holdfast instructions approve --help`")


def _show_published(published: "PublicationResult", *, as_json: bool) -> None:
    if as_json:
        print_json(published)
        return
    manifest = published.manifest
    click.echo(f"published {manifest.fact_uri}: {len(manifest.body)} units, {manifest.token_count} tokens")
    for warning in published.warnings:
        click.echo(f"warning: {warning}")
