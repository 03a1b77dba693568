"""`holdfast curation`: presets of files that are added to the context of sessions."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.format import CommandGroup
from holdfast.cli.options import workspace_option
from holdfast.ledger.requests.format import strip_control_characters

if TYPE_CHECKING:
    from holdfast.knowledge.folder import KnowledgeFolder

_workspace = workspace_option("Workspace of the presets.")


@click.group("curation", cls=CommandGroup)
def command() -> None:
    """Choose, by preset, which files are added to the context of sessions.

    A preset is .holdfast/curation/NAME.toml with a list of files: paths, or {path = "a.py", lines = "10-40"}, or
    {path = "a.py", symbol = "parse"}. Switching presets does not break the cached prefix: the files are added after the
    conversation.
    """


@command.command("list")
@_workspace
def list_presets(workspace: str) -> None:
    """List the presets; the active one has a star."""
    from holdfast.knowledge.curation import list_preset_names, read_active_preset

    folder, _ = _folder(workspace)
    active, names = read_active_preset(folder), list_preset_names(folder)
    for name in names:
        click.echo(f"{'*' if name == active else ' '} {name}")
    if not names:
        click.echo("There are no presets; a preset is a file .holdfast/curation/NAME.toml.")


@command.command("show")
@click.argument("name")
@_workspace
def show_preset(name: str, workspace: str) -> None:
    """Show the text that a preset adds to a session."""
    from holdfast.knowledge.curation import read_preset, render_preset

    folder, root = _folder(workspace)
    for line in render_preset(root, name, read_preset(folder, name).slices).split("\n"):
        click.echo(strip_control_characters(line))


@command.command("use")
@click.argument("name")
@_workspace
def activate_preset(name: str, workspace: str) -> None:
    """Add the files of a preset to sessions of this folder, from their next message on."""
    from holdfast.knowledge.curation import choose_preset

    choose_preset(_folder(workspace)[0], name)
    click.echo(f"Sessions receive the files of {name} from their next message on.")


@command.command("off")
@_workspace
def deactivate_presets(workspace: str) -> None:
    """Stop adding files to sessions."""
    from holdfast.knowledge.curation import choose_preset

    choose_preset(_folder(workspace)[0], "")
    click.echo("No preset is active.")


def _folder(workspace: str) -> "tuple[KnowledgeFolder, Path]":
    from holdfast.runtime.volatile_context import curation_folder

    root = Path(workspace)
    return curation_folder(root), root
