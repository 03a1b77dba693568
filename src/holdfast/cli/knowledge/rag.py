"""`holdfast rag`: indexes a project's files and searches them for passages that answer a question."""

from pathlib import Path

import click
import msgspec

from holdfast.cli.format import CommandGroup, format_count, print_json
from holdfast.cli.options import json_option, workspace_option
from holdfast.errors import UserError
from holdfast.ledger.requests.format import strip_control_characters

_workspace = workspace_option("Project folder.")


@click.group("rag", cls=CommandGroup)
def command() -> None:
    """Index the files of a project and search them for relevant passages.

    Once there is an index, sessions receive matching passages; delete .holdfast/rag to stop that. Ignored and hidden
    files, and passages that may contain a secret, are left out. Your files are never changed.
    """


@command.command("index")
@_workspace
@json_option
def index_files(workspace: str, as_json: bool) -> None:
    """Index the files that are new or changed since the last run."""
    from holdfast.knowledge.rag_index import update_rag_index
    from holdfast.runtime.volatile_context import rag_folder

    root = Path(workspace)
    update = update_rag_index(rag_folder(root), root)
    if as_json:
        click.echo(msgspec.json.encode(update).decode())
        return
    click.echo(
        f"{format_count(update.files, 'file')} with {format_count(update.chunks, 'passage')}: {update.read:,} read, "
        f"{update.unchanged:,} unchanged, {update.removed:,} gone"
    )
    if update.left_out:
        click.echo(f"{format_count(update.left_out, 'passage')} left out because of possible secrets")


@command.command("query")
@click.argument("question")
@click.option("--limit", type=click.IntRange(1, 50), default=4, show_default=True, help="Maximum number of passages.")
@_workspace
@json_option
def query_files(question: str, limit: int, workspace: str, as_json: bool) -> None:
    """Show the best matching passages, each with its path, lines and the digest of its file."""
    from holdfast.knowledge.rag_index import RagIndex, read_rag_index
    from holdfast.runtime.volatile_context import rag_folder

    root = Path(workspace)
    files = read_rag_index(rag_folder(root))
    if files is None:
        raise UserError("there is no index of these files; `holdfast rag index` creates one")
    passages = RagIndex(files).query(root, question, limit=limit)
    if as_json:
        print_json(passages)
        return
    for passage in passages:
        lines = f"{strip_control_characters(passage.path)}:{passage.first_line}-{passage.last_line}"
        click.echo(f"{lines}  {passage.score:.2f}  sha256 {passage.sha256[:12]}")
        for line in passage.text.split("\n"):
            click.echo(f"    {strip_control_characters(line)}"[:200])
    if not passages:
        click.echo("No passage matches.")
