"""`holdfast learned`: the cache parameters learned from stored sessions, and the evidence for them."""

from typing import TYPE_CHECKING

import click

from holdfast.cli.format import print_json
from holdfast.cli.open_store import open_configured_store
from holdfast.cli.options import db_option, json_option

if TYPE_CHECKING:
    from holdfast.ledger.learned import IdleTimeSummary, LearnedCacheSummary, LearnedSummary


@click.command("learned")
@db_option
@json_option
def command(db: str | None, as_json: bool) -> None:
    """Show what stored sessions observed about caches and idle times, and how often.

    New sessions start with these parameters. Deleting a session removes its evidence.
    """
    from holdfast.ledger.learned import summarize_learned

    with open_configured_store(db) as log:
        lessons = summarize_learned(log)
    if as_json:
        print_json(lessons)
    elif not lessons.caches:
        click.echo("Nothing has been learned yet.")
    else:
        _show(lessons)


def _show(lessons: "LearnedSummary") -> None:
    from holdfast.cli.tables import print_table

    headings = ("model", "route", "1h TTL extends the prefix", "read", "lost", "cached from", "sessions")
    print_table(headings, map(_cache_row, lessons.caches))
    click.echo("")
    idle_headings = ("workspace", "sessions", "calls", "tool waits", "user waits", "idle 5 to 60 min")
    print_table(idle_headings, map(_idle_row, lessons.idle_times))


def _cache_row(lesson: "LearnedCacheSummary") -> tuple[str, ...]:
    is_observed = lesson.anchors_read + lesson.anchors_lost > 0
    upgrade = f"{lesson.upgrade_probability:.0%} likely" if is_observed else "not observed yet"
    floor = "catalog value" if lesson.floor_tokens is None else f"{lesson.floor_tokens} tokens"
    counts = (str(lesson.anchors_read), str(lesson.anchors_lost))
    return (lesson.model, lesson.route, upgrade, *counts, floor, str(len(lesson.sessions)))


def _idle_row(idle: "IdleTimeSummary") -> tuple[str, ...]:
    counts = (str(idle.sessions), str(idle.calls), f"{idle.tool_idle_times:.0f}", f"{idle.user_idle_times:.0f}")
    return idle.workspace or "(none)", *counts, f"{idle.pause_share:.1%}"
