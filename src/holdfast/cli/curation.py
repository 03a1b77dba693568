"""`holdfast curation`: which files sessions are told of, by presets that people write."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.groups import Group

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.knowledge.folder import KnowledgeFolder

_workspace = click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False),
    default=".",
    show_default="this folder",
    help="Whose presets.",
)


@click.group("curation", cls=Group)
def command() -> None:
    """Choose which files sessions are told of, by presets.

    A preset is .holdfast/curation/NAME.toml with a list of files: paths, or {path = "a.py", lines = "10-40"}, or
    {path = "a.py", symbol = "parse"}. Switching costs only what stands behind the conversation.
    """


@command.command("list")
@_workspace
def list_presets(workspace: str) -> None:
    """The presets there are; the one that is chosen has a star."""
    from holdfast.knowledge.curation import active_preset, preset_names

    folder, _ = _folder(workspace)
    chosen, names = active_preset(folder), preset_names(folder)
    for name in names:
        click.echo(f"{'*' if name == chosen else ' '} {name}")
    if not names:
        click.echo("There are no presets; a preset is a file .holdfast/curation/NAME.toml.")


@command.command("show")
@click.argument("name")
@_workspace
def show(name: str, workspace: str) -> None:
    """What a session would be told."""
    from holdfast.knowledge.curation import read_preset, render_preset
    from holdfast.ledger.wording import printable

    folder, root = _folder(workspace)
    for line in render_preset(root, name, read_preset(folder, name).slices).split("\n"):
        click.echo(printable(line))


@command.command("use")
@click.argument("name")
@_workspace
def use(name: str, workspace: str) -> None:
    """Tell sessions of this folder these files, from their next message on."""
    from holdfast.knowledge.curation import choose_preset

    choose_preset(_folder(workspace)[0], name)
    click.echo(f"Sessions are told the files of {name} from their next message on.")


@command.command("off")
@_workspace
def off(workspace: str) -> None:
    """Tell sessions no chosen files."""
    from holdfast.knowledge.curation import choose_preset

    choose_preset(_folder(workspace)[0], "")
    click.echo("No files are chosen.")


def _folder(workspace: str) -> "tuple[KnowledgeFolder, Path]":
    from pathlib import Path

    from holdfast.runtime.dimensions import curation_folder

    root = Path(workspace)
    return curation_folder(root), root
