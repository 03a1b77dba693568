"""`holdfast instructions migrate`: proposes units and a manifest for instruction files, for review."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.instructions.open import create_option, open_library
from holdfast.cli.options import db_option, json_option

if TYPE_CHECKING:
    from holdfast.instructions.migration.proposal import MigrationProposal


def compile_pattern(context: click.Context, parameter: click.Parameter, value: str | None) -> "re.Pattern[str] | None":
    try:
        return re.compile(value) if value is not None else None
    except (re.error, RecursionError, OverflowError) as error:
        raise click.BadParameter(f"not a valid regular expression: {error}") from error


@click.command("migrate")
@click.argument("paths", metavar="FILES...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--agent", default="main", show_default=True, help="Agent that will have the instructions.")
@click.option("--version", default="v1", show_default=True, help="Version of the units and of the manifest.")
@click.option(
    "--mode",
    type=click.Choice(("coexistence", "stigmem", "file")),
    default="coexistence",
    show_default=True,
    help="Whether entries refer to units, files, or both.",
)
@click.option(
    "--at", callback=compile_pattern, metavar="REGEX", help="Split before matching lines instead of at headings."
)
@click.option(
    "--root", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Follow imports inside this folder."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write units and manifest into this new folder.")
@click.option("--write", is_flag=True, help="Also write each text as a signed unit; manifest and stub are unchanged.")
@db_option
@create_option
@json_option
def migrate(
    *,
    paths: tuple[Path, ...],
    agent: str,
    version: str,
    mode: str,
    at: "re.Pattern[str] | None",
    root: Path | None,
    out: Path | None,
    write: bool,
    db: str | None,
    create: bool,
    as_json: bool,
) -> None:
    """Propose units and a manifest for AGENTS.md, CLAUDE.md or folders of rules; nothing is published.

    Every line ends up in one unit or in the rules of the boot stub. Review the proposal, improve its triggers, then run
    `holdfast instructions check` and `publish` on the folder that --out has written.
    """
    from holdfast.cli.instructions.format import encode_proposal, show_proposal
    from holdfast.instructions.migration.files import read_migration_files, write_instruction_folder
    from holdfast.instructions.migration.proposal import MigrationTarget, propose_migration
    from holdfast.retrieval.encoders.registry import create_semantic_stage
    from holdfast.runtime.instructions.settings import load_instruction_config

    settings = load_instruction_config(os.environ).settings
    source = read_migration_files(paths, root=root)
    encoder = settings.encoder
    proposal: MigrationProposal = propose_migration(
        source.files,
        msgspec.convert(
            {"agent_id": agent, "deployment": settings.deployment, "version": version, "mode": mode}, MigrationTarget
        ),
        at=at,
        meaning=lambda: create_semantic_stage(encoder) if encoder else None,
    )
    warnings = (*source.warnings, *proposal.warnings)
    if out is not None:
        write_instruction_folder(proposal, out)
    if write:
        with open_library(db, make=True, create=create) as library:
            library.write(proposal)
    if as_json:
        click.echo(encode_proposal(proposal, warnings))
        return
    show_proposal(proposal, warnings)
    if out is not None:
        click.echo(f"\nwritten to {out}; nothing is published")
