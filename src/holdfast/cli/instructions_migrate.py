"""`holdfast instructions migrate`: proposes units and a manifest for instruction files, for review."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.instructions_opened import db_option, opened

if TYPE_CHECKING:
    from holdfast.instructions.migration.proposal import Proposal


def compiled(context: click.Context, parameter: click.Parameter, value: str | None) -> "re.Pattern[str] | None":
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
@click.option("--at", callback=compiled, metavar="REGEX", help="Split before matching lines instead of at headings.")
@click.option(
    "--root", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Follow imports inside this folder."
)
@click.option("--out", type=click.Path(path_type=Path), help="Write units and manifest into this new folder.")
@click.option("--write", is_flag=True, help="Also write each text as a signed unit; manifest and stub are unchanged.")
@db_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    as_json: bool,
) -> None:
    """Propose units and a manifest for AGENTS.md, CLAUDE.md or folders of rules; nothing is published.

    Every line ends up in one unit or in the rules of the boot stub. Review the proposal, improve its triggers, then run
    `holdfast instructions check` and `publish` on the folder that --out has written.
    """
    import os

    import msgspec

    from holdfast.cli.instructions_shown import proposal_json, show_proposal
    from holdfast.instructions.migration.folder import write_folder
    from holdfast.instructions.migration.proposal import Wanted, propose
    from holdfast.instructions.migration.reading import read_files
    from holdfast.retrieval.meaning import meaning_stage
    from holdfast.runtime.instruction_settings import load_instructions

    settings = load_instructions(os.environ).settings
    source = read_files(paths, root=root)
    encoder = settings.encoder
    proposal: Proposal = propose(
        source.files,
        msgspec.convert(
            {"agent_id": agent, "deployment": settings.deployment, "version": version, "mode": mode}, Wanted
        ),
        at=at,
        meaning=lambda: meaning_stage(encoder) if encoder else None,
    )
    warnings = (*source.warnings, *proposal.warnings)
    if out is not None:
        write_folder(proposal, out)
    if write:
        with opened(db, make=True) as library:
            library.write(proposal)
    if as_json:
        click.echo(proposal_json(proposal, warnings))
        return
    show_proposal(proposal, warnings)
    if out is not None:
        click.echo(f"\nwritten to {out}; nothing is published")
