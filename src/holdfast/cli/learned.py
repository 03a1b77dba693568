"""`holdfast learned`: what stored sessions have taught those that come after them, and by which evidence."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.stores import open_configured

if TYPE_CHECKING:
    from holdfast.ledger.learning import CacheLesson, Lessons, Rhythms


@click.command("learned")
@click.option("--db", help="Store to use instead of the configured one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(db: str | None, as_json: bool) -> None:
    """Show what sessions have seen of caches and pauses, and how often.

    A new session starts with this. Deleting a session unteaches what it has taught.
    """
    import msgspec

    from holdfast.ledger.learning import lessons_of

    with open_configured(db) as log:
        told = lessons_of(log)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(told)).decode())
    elif not told.caches:
        click.echo("No session has learned anything yet.")
    else:
        _show(told)


def _show(told: "Lessons") -> None:
    from holdfast.cli.tables import show_table

    headings = ("model", "route", "a longer lifetime keeps the prefix", "read", "lost", "cached from", "sessions")
    show_table(headings, map(_cache_row, told.caches))
    click.echo("")
    waits = ("workspace", "sessions", "calls", "waits for tools", "for people", "pauses of 5 to 60 min")
    show_table(waits, map(_rhythm_row, told.rhythms))


def _cache_row(lesson: "CacheLesson") -> tuple[str, ...]:
    upgrade = "not seen yet" if not lesson.anchors_read + lesson.anchors_lost else f"{lesson.upgrade:.0%} likely"
    floor = "as listed" if lesson.floor_tokens is None else f"{lesson.floor_tokens} tokens"
    counts = (str(lesson.anchors_read), str(lesson.anchors_lost))
    return (lesson.model, lesson.route, upgrade, *counts, floor, str(len(lesson.sessions)))


def _rhythm_row(rhythm: "Rhythms") -> tuple[str, ...]:
    return (
        rhythm.workspace or "(none)",
        str(rhythm.sessions),
        str(rhythm.calls),
        f"{rhythm.tool_gaps:.0f}",
        f"{rhythm.person_gaps:.0f}",
        f"{rhythm.pause:.1%}",
    )
