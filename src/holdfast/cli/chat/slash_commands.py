"""The slash commands of a chat, such as `/cost` and `/model`."""

import textwrap
from collections.abc import Callable
from typing import NamedTuple, get_args

from holdfast.catalog.lookup import find_model
from holdfast.cli.chat.command import check_model_usable, format_resume_command
from holdfast.cli.chat.format import (
    build_cost_rows,
    find_closest_word,
    format_cache_lines,
    format_compaction_setting,
    format_context_lines,
    format_cost_total,
    format_dropped_lines,
    format_usd_4,
)
from holdfast.cli.chat.screen import shorten_home_path
from holdfast.cli.chat.session import ChatSession
from holdfast.cli.format import format_count
from holdfast.clock import system_clock
from holdfast.compaction.models import CompactionMode
from holdfast.engine.tools.builtin.memory import MEMORY_TOOL_NAMES as MEMORY_NAMES
from holdfast.engine.tools.permissions import CONFIRM_FOR
from holdfast.errors import HoldfastError
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.calls import compute_turn_costs
from holdfast.ledger.requests.format import strip_control_characters
from holdfast.runtime.config import default_skill_roots
from holdfast.runtime.tools import builtin_tools
from holdfast.sources.skills.library import read_skill_library

EXIT_COMMANDS = ("exit", "quit")
DESCRIPTION_CHARACTERS_MAX = 80


class ChatCommand(NamedTuple):
    run: Callable[[ChatSession, str], None]
    usage: str
    description: str


def run_chat_command(chat: ChatSession, line: str) -> bool:
    """Run the slash command in `line`; False if it ends the chat."""
    name, _, argument = line[1:].strip().partition(" ")
    name = name.lower()
    if name in EXIT_COMMANDS:
        return False
    command = CHAT_COMMANDS.get(name)
    if command is None:
        closest = find_closest_word(name, (*CHAT_COMMANDS, *EXIT_COMMANDS))
        hint = f"did you mean /{closest}?" if closest else "/help lists all commands."
        advice = f"{hint} To send the line as a message, start it with a space."
        chat.screen.show_error(f"unknown command /{strip_control_characters(name)}; {advice}")
        return True
    try:
        command.run(chat, argument.strip())
    except HoldfastError as error:
        chat.screen.show_error(strip_control_characters(str(error)))
    return True


def list_command_words(chat: ChatSession) -> dict[str, tuple[str, ...]]:
    """What Tab can complete: the commands, each with its arguments."""
    arguments = {"model": tuple(chat.settings.models), "compact": ("show", "mode", *get_args(CompactionMode))}
    return {f"/{name}": arguments.get(name, ()) for name in (*CHAT_COMMANDS, *EXIT_COMMANDS)}


def switch_chat_model(chat: ChatSession, name: str) -> None:
    """Switch to another model after the user has seen the cost and agreed."""
    settings, session = chat.settings, chat.session
    model = find_model(name, settings.models)
    if model.id == session.model:
        chat.screen.show_lines(f"{model.id} is already in use")
        return
    check_model_usable(model, settings.options, settings.config, settings.environ)
    quote = session.quote_switch(model.id)
    chat.screen.show_lines(str(quote))
    if quote.dropped:
        chat.screen.show_lines("not transferred: " + ", ".join(f"{count} {kind}" for kind, count in quote.dropped))
    if not chat.ask_yes_no("Switch?"):
        chat.screen.show_lines(f"staying with {session.model}")
        return
    chat.run_coroutine(session.switch_model(model.id, allow_uncached=True))
    chat.plan = None
    chat.screen.show_lines(f"now using {session.model}")


def _help(chat: ChatSession, argument: str) -> None:
    rows = [(command.usage, command.description) for command in CHAT_COMMANDS.values()]
    widest = max(len(usage) for usage, _ in rows)
    chat.screen.show_lines(
        *(f"{usage:<{widest}}  {about}" for usage, about in rows),
        f"{'/exit':<{widest}}  end the chat; Ctrl-D does the same",
        "A line that ends in \\ continues on the next one; so does Alt-Enter.",
        "Tab completes commands, models and paths; Ctrl-R searches earlier messages; Ctrl-C stops a call.",
    )


def _cost(chat: ChatSession, argument: str) -> None:
    from holdfast.cli.tables import print_table

    turns = compute_turn_costs(chat.log.read(chat.session.id), chat.settings.models)
    if not turns:
        chat.screen.show_lines("no cost yet")
        return
    chat.screen.end_line()
    print_table(
        ("turn", "calls", "in", "read", "written", "uncached", "out", "cost", "without"),
        build_cost_rows(turns),
        spare=("uncached", "written", "calls"),
    )
    chat.screen.show_lines(format_cost_total(turns))


def _cache(chat: ChatSession, argument: str) -> None:
    session, verdict = chat.session, None
    for entry in iter_entries(chat.log.read(session.id), chat.settings.models):
        verdict = entry.verdict or verdict
    chat.screen.show_lines(
        *format_cache_lines(session.cache.state(), session.cache.next_wake(), chat.plan, verdict, at=system_clock())
    )


def _context(chat: ChatSession, argument: str) -> None:
    chat.screen.show_lines(*format_context_lines(chat.session.context_use(), chat.screen.width))


def _compact(chat: ChatSession, argument: str) -> None:
    if argument == "show":
        chat.screen.show_lines(*format_dropped_lines(chat.session.dropped()))
        return
    if argument == "mode":
        chat.screen.show_lines(format_compaction_setting(chat.session.compaction))
        return
    modes: tuple[CompactionMode, ...] = get_args(CompactionMode)
    mode = next((mode for mode in modes if mode == argument), None)
    if argument and mode is None:
        accepted = f"`show`, `mode`, {', '.join(f'`{mode}`' for mode in modes)} or nothing"
        chat.screen.show_error(f"/compact takes {accepted}, not {strip_control_characters(argument)!r}")
        return
    if mode is not None:
        chat.session.set_compaction(mode)
        chat.was_compaction_near = False
        chat.screen.show_lines(format_compaction_setting(chat.session.compaction))
        return
    result = chat.run_coroutine(chat.session.compact())
    if result.reason:
        chat.screen.show_lines(f"not compacted: {result.reason}")
        return
    chat.plan = None
    chat.screen.show_lines(
        f"compacted {result.removed_message_count} messages: {result.tokens_before:,} tokens became "
        f"{result.tokens_after:,}; the log keeps the messages",
        f"`holdfast history {chat.session.id}` shows them; the next call writes the shorter prompt to the cache",
        *result.compressed_summary.splitlines(),
    )


def _undo_compact(chat: ChatSession, argument: str) -> None:
    result = chat.run_coroutine(chat.session.undo_compaction())
    chat.plan = None
    chat.screen.show_lines(
        f"the newest compaction is undone: {result.tokens_before:,} tokens became {result.tokens_after:,}",
        "the next call writes the longer prompt to the cache, unless it is still there; no automatic compaction "
        "follows until it has grown",
    )


def _skills(chat: ChatSession, argument: str) -> None:
    settings = chat.settings
    library = read_skill_library(default_skill_roots(settings.config, settings.environ, workspace=settings.workspace))
    skills = library.store.list_skills()
    if not skills:
        chat.screen.show_lines(
            "no skills; a skill is a folder with a SKILL.md in .holdfast/skills, here or in your home"
        )
    for skill in skills:
        description = _shorten(skill.description)
        tokens = format_count(skill.estimated_body_tokens, "token")
        chat.screen.show_lines(f"{skill.name} ({skill.source}, {tokens}): {description}")
    if invalid := sum(not report.valid for report in library.reports):
        chat.screen.show_lines(f"{invalid} could not be loaded; `holdfast skills validate` says why")


def _model(chat: ChatSession, argument: str) -> None:
    if argument:
        switch_chat_model(chat, argument)
        return
    provider = chat.session.model.partition(":")[0]
    others = [name for name in chat.settings.models if name.startswith(f"{provider}:") and name != chat.session.model]
    chat.screen.show_lines(chat.session.model, *(f"  {name}" for name in others))
    chat.screen.show_lines("/model PROVIDER:NAME shows what a switch costs and asks before switching")


def _tools(chat: ChatSession, argument: str) -> None:
    confirmed = {tool.spec.name for tool in builtin_tools() if tool.side_effects in CONFIRM_FOR} | set(MEMORY_NAMES)
    if not chat.session.tools:
        chat.screen.show_lines("the model has no tools")
    for spec in chat.session.tools:
        sentence = _shorten(spec.description.partition("\n")[0].partition(". ")[0].rstrip("."))
        chat.screen.show_lines(f"{spec.name}{' (asks first)' if spec.name in confirmed else ''}: {sentence}")


def _shorten(description: str) -> str:
    """The description in one line; a long one ends after a word, and says so."""
    return textwrap.shorten(strip_control_characters(description), DESCRIPTION_CHARACTERS_MAX, placeholder=" …")


def _session(chat: ChatSession, argument: str) -> None:
    session, settings = chat.session, chat.settings
    chat.screen.show_lines(
        f"session    {session.id}",
        f"model      {session.model}{' (simulated)' if settings.options.simulate else ''}",
        f"workspace  {strip_control_characters(shorten_home_path(str(settings.workspace.resolve())))}",
        f"compaction {format_compaction_setting(session.compaction)}",
        f"turns      {session.turn_count}, {format_usd_4(session.cost)}",
    )
    chat.screen.show_command(format_resume_command(settings.options, session.id), label="resume     ")


CHAT_COMMANDS = {
    "help": ChatCommand(_help, "/help", "this list"),
    "cost": ChatCommand(_cost, "/cost", "what each turn cost, and would have cost without a cache"),
    "cache": ChatCommand(_cache, "/cache", "what is cached, until when, and what a late return costs"),
    "context": ChatCommand(_context, "/context", "what the prompt consists of"),
    "compact": ChatCommand(
        _compact,
        "/compact [show|MODE]",
        "replace older messages by a summary; show what left; off, threshold or economical",
    ),
    "undo-compact": ChatCommand(_undo_compact, "/undo-compact", "restore what the newest compaction removed"),
    "model": ChatCommand(_model, "/model [NAME]", "show the model, or switch to another one"),
    "tools": ChatCommand(_tools, "/tools", "the tools of the model"),
    "skills": ChatCommand(_skills, "/skills", "the skills available in this folder"),
    "session": ChatCommand(_session, "/session", "this session and how to resume it"),
}
