"""`holdfast rag`: an index of a project's files, and the passages in them that fit a question."""

import click

from holdfast.cli.groups import Group

_workspace = click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False),
    default=".",
    show_default="this folder",
    help="Whose files.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("rag", cls=Group)
def command() -> None:
    """Index the files of a project, and find passages in them that fit a question.

    Sessions are told such passages once there is an index; delete .holdfast/rag and they are told none. Files that an
    ignore file names, hidden ones and passages that may hold a secret are left out. No file is ever changed.
    """


@command.command("index")
@_workspace
@_json
def index(workspace: str, as_json: bool) -> None:
    """Read what is new or has changed since the last time."""
    from pathlib import Path

    import msgspec

    from holdfast.cli.counts import counted
    from holdfast.knowledge.passages import update_index
    from holdfast.runtime.dimensions import rag_folder

    root = Path(workspace)
    done = update_index(rag_folder(root), root)
    if as_json:
        click.echo(msgspec.json.encode(done).decode())
        return
    click.echo(
        f"{counted(done.files, 'file')} with {counted(done.passages, 'passage')}: {done.read:,} read, "
        f"{done.unchanged:,} unchanged, {done.removed:,} gone"
    )
    if done.left_out:
        click.echo(f"{counted(done.left_out, 'passage')} left out that may hold a secret")


@command.command("query")
@click.argument("question")
@click.option("--limit", type=click.IntRange(1, 50), default=4, show_default=True, help="How many passages.")
@_workspace
@_json
def query(question: str, limit: int, workspace: str, as_json: bool) -> None:
    """The passages that fit best, each with its path, lines and the digest of its file."""
    from pathlib import Path

    import msgspec

    from holdfast.errors import UserError
    from holdfast.knowledge.passages import PassageIndex, read_files
    from holdfast.ledger.wording import printable
    from holdfast.runtime.dimensions import rag_folder

    root = Path(workspace)
    files = read_files(rag_folder(root))
    if files is None:
        raise UserError("there is no index of these files; `holdfast rag index` makes one")
    found = PassageIndex(files).query(root, question, limit=limit)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    for one in found:
        click.echo(f"{printable(one.path)}:{one.first}-{one.last}  {one.score:.2f}  sha256 {one.sha256[:12]}")
        for line in one.text.split("\n"):
            click.echo(f"    {printable(line)}"[:200])
    if not found:
        click.echo("No passage fits.")
