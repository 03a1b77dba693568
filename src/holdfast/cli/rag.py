"""`holdfast rag`: indexes a project's files and searches them for passages that answer a question."""

import click

from holdfast.cli.groups import Group

_workspace = click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False),
    default=".",
    show_default="this folder",
    help="Project folder.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("rag", cls=Group)
def command() -> None:
    """Index the files of a project and search them for relevant passages.

    Once there is an index, sessions receive matching passages; delete .holdfast/rag to stop that. Ignored and hidden
    files, and passages that may contain a secret, are left out. Your files are never changed.
    """


@command.command("index")
@_workspace
@_json
def index(workspace: str, as_json: bool) -> None:
    """Index the files that are new or changed since the last run."""
    from pathlib import Path

    import msgspec

    from holdfast.cli.counts import counted
    from holdfast.knowledge.passages import update_index
    from holdfast.runtime.dimensions import rag_folder

    root = Path(workspace)
    update = update_index(rag_folder(root), root)
    if as_json:
        click.echo(msgspec.json.encode(update).decode())
        return
    click.echo(
        f"{counted(update.files, 'file')} with {counted(update.passages, 'passage')}: {update.read:,} read, "
        f"{update.unchanged:,} unchanged, {update.removed:,} gone"
    )
    if update.left_out:
        click.echo(f"{counted(update.left_out, 'passage')} left out because of possible secrets")


@command.command("query")
@click.argument("question")
@click.option("--limit", type=click.IntRange(1, 50), default=4, show_default=True, help="Maximum number of passages.")
@_workspace
@_json
def query(question: str, limit: int, workspace: str, as_json: bool) -> None:
    """Show the best matching passages, each with its path, lines and the digest of its file."""
    from pathlib import Path

    import msgspec

    from holdfast.errors import UserError
    from holdfast.knowledge.passages import PassageIndex, read_files
    from holdfast.ledger.wording import printable
    from holdfast.runtime.dimensions import rag_folder

    root = Path(workspace)
    files = read_files(rag_folder(root))
    if files is None:
        raise UserError("there is no index of these files; `holdfast rag index` creates one")
    passages = PassageIndex(files).query(root, question, limit=limit)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(passages)).decode())
        return
    for passage in passages:
        lines = f"{printable(passage.path)}:{passage.first}-{passage.last}"
        click.echo(f"{lines}  {passage.score:.2f}  sha256 {passage.sha256[:12]}")
        for line in passage.text.split("\n"):
            click.echo(f"    {printable(line)}"[:200])
    if not passages:
        click.echo("No passage matches.")
