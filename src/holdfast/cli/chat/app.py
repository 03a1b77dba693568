"""Runs a chat from start to end, and answers as the simulated model of `holdfast chat --simulate`."""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.cachemodel.values import CacheEntry, EntryKey
from holdfast.catalog.lookup import apply_model_overrides, find_model, shipped_models
from holdfast.cli.chat.command import (
    ChatOptions,
    build_session_options,
    check_model_usable,
    format_resume_command,
    load_stored_chat,
    resolve_chat_workspace,
)
from holdfast.cli.chat.format import format_usd_4, split_visible_lines, truncate_lines
from holdfast.cli.chat.screen import (
    INDENT,
    ChatScreen,
    exit_on_hangup,
    ignore_signals,
    read_piped_messages,
    shorten_home_path,
)
from holdfast.cli.chat.session import ChatSession, ChatSettings
from holdfast.cli.chat.session_thread import ChatLoopThread, TurnRunner, WarningNoticeHandler
from holdfast.cli.chat.slash_commands import list_command_words, run_chat_command, switch_chat_model
from holdfast.cli.format import format_count
from holdfast.cli.open_store import load_configured_models, open_configured_store
from holdfast.engine.state import SessionState
from holdfast.events.log import EventLog
from holdfast.ledger.requests.format import strip_control_characters
from holdfast.runtime.config import load_config
from holdfast.runtime.session import Session
from holdfast.simulator.faults import DeliveryFault
from holdfast.simulator.script import ScriptedReply
from holdfast.stores.open import open_store
from holdfast.types.blocks import Message, Text, ToolResult, ToolUse, join_text_blocks

RESUMED_LINES_MAX = 12
SIMULATED_CACHE_FILE = "simulated_cache.json"
SIMULATED_ENTRIES_MAX = 1_000


def run_chat(flags: ChatOptions, screen: ChatScreen, environ: Mapping[str, str]) -> int:
    """Run a whole chat and return the exit status."""
    with ExitStack() as stack:
        stack.enter_context(exit_on_hangup())
        if flags.resume is None:
            # Check the model and key before opening the store, so that a failure leaves no empty store behind.
            _load_settings(flags, None, environ)
            path = flags.store or load_config(environ).db_path
            log: EventLog = stack.enter_context(closing(open_store(path, models=load_configured_models())))
        else:
            log = stack.enter_context(open_configured_store(flags.store, writable=True))
        stored = load_stored_chat(flags, log)
        settings = _load_settings(flags, stored, environ)
        thread = ChatLoopThread()
        stack.callback(thread.close)
        with _open_chat(settings, stored, log=log, screen=screen, thread=thread) as chat:
            _show_greeting(chat, stored)
            _run_messages(chat)
        _show_ending(chat, is_new=stored is None)
        # A script that pipes messages must see a failure; an interactive user has already seen it.
        return int(chat.has_failed and not screen.interactive)


def _load_settings(flags: ChatOptions, stored: SessionState | None, environ: Mapping[str, str]) -> ChatSettings:
    workspace = resolve_chat_workspace(flags, stored)
    config = load_config(
        environ,
        workspace=workspace,
        flags={"model": flags.model, "also_skills": flags.also_skills or None, "skills_mode": flags.skills_mode},
    )
    models = apply_model_overrides(shipped_models(), config.models)
    if stored is None or stored.model:
        name = stored.model if stored else config.model
        check_model_usable(find_model(name, models), flags, config, environ)
    return ChatSettings(flags, workspace, config, models, environ)


@contextmanager
def _open_chat(
    settings: ChatSettings, stored: SessionState | None, *, log: EventLog, screen: ChatScreen, thread: ChatLoopThread
) -> Iterator[ChatSession]:
    """Open the session; on exit it is closed cleanly, and a new session without a turn is deleted."""
    flags = settings.options
    model = find_model((stored.model if stored else "") or settings.config.model, settings.models)
    options = build_session_options(flags, model, stored, workspace=settings.workspace)
    turn_runner = TurnRunner(thread)
    options["confirm"] = turn_runner.ask_confirmation
    options["store"] = log
    provider = None
    simulated_cache = Path(settings.config.home, SIMULATED_CACHE_FILE)
    if flags.simulate:
        from holdfast.simulator.provider import SimulatedProvider

        provider = SimulatedProvider(
            models=settings.models, script=simulate_chat_reply, cache=load_simulated_cache(simulated_cache)
        )
        options["transport"] = provider
    session = Session.resume(stored.session_id, **options) if stored else Session.create(**options)
    warnings = WarningNoticeHandler(turn_runner.notices)
    logger = logging.getLogger("holdfast")
    logger.addHandler(warnings)
    try:
        thread.run_coroutine(session.__aenter__())
        try:
            yield ChatSession(settings, session, turn_runner, log=log, screen=screen)
        finally:
            with ignore_signals():
                thread.run_coroutine(session.aclose())
                if provider is not None:
                    save_simulated_cache(simulated_cache, provider.cache)
                # A new chat in which nothing was sent leaves no session behind.
                if stored is None and not session.turn_count:
                    log.delete(session.id)
    finally:
        logger.removeHandler(warnings)


def _show_greeting(chat: ChatSession, stored: SessionState | None) -> None:
    """Show the model and workspace; for a resumed session, also its last messages."""
    session, flags = chat.session, chat.settings.options
    if chat.screen.keyboard:
        chat.screen.keyboard.commands = list_command_words(chat)
        chat.screen.keyboard.folder = str(chat.settings.workspace)
        folder = strip_control_characters(shorten_home_path(str(chat.settings.workspace.resolve())))
        chat.screen.show_lines(f"{session.model}{' (simulated)' if flags.simulate else ''} in {folder}")
        chat.screen.show_note("/help lists commands; Ctrl-C stops a call, Ctrl-D exits")
    if stored is None:
        return
    chat.screen.show_note(f"resumed after {format_count(session.turn_count, 'turn')}, {format_usd_4(session.cost)}")
    messages = [entry for entry in stored.entries if not entry.is_injected and join_text_blocks(entry.content).strip()]
    if chat.screen.interactive:
        # The newest request and reply: between them may be replies that only called tools.
        requests = [entry for entry in messages if entry.role == "user"]
        replies = [entry for entry in messages[-1:] if entry.role != "user"]
        for entry in (*requests[-1:], *replies):
            lines = split_visible_lines(join_text_blocks(entry.content))
            prefix = "> " if entry.role == "user" else "  "
            chat.screen.show_lines(*(f"{INDENT}{prefix}{line}" for line in truncate_lines(lines, RESUMED_LINES_MAX)))
    if chat.screen.keyboard:
        for entry in messages:
            if entry.role == "user":
                chat.screen.keyboard.history.append_string(join_text_blocks(entry.content))
    if flags.model is not None and flags.model != session.model:
        switch_chat_model(chat, flags.model)


def _run_messages(chat: ChatSession) -> None:
    screen = chat.screen
    messages = screen.keyboard.read_messages(screen) if screen.keyboard else read_piped_messages(sys.stdin)
    chat.show_warnings()
    for message in messages:
        try:
            if not message.startswith("/"):
                chat.send_message(message)
            elif not run_chat_command(chat, message):
                break
        except KeyboardInterrupt:
            if not screen.interactive:
                raise
        chat.show_warnings()


def _show_ending(chat: ChatSession, *, is_new: bool) -> None:
    session = chat.session
    if is_new and not session.turn_count:
        chat.screen.show_note("no message was sent; nothing is stored")
        return
    chat.screen.show_note(f"{format_usd_4(session.cost)} in {format_count(session.turn_count, 'turn')}; to continue:")
    chat.screen.show_command(format_resume_command(chat.settings.options, session.id))


def load_simulated_cache(path: Path) -> tuple[CacheEntry, ...]:
    """What an earlier simulated chat left in its provider's cache; a real provider's cache outlives the client too."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[CacheEntry, ...])
    except (OSError, msgspec.MsgspecError):
        return ()


def save_simulated_cache(path: Path, entries: Sequence[CacheEntry]) -> None:
    """Add digests and sizes of prefixes, no text, to what other chats left there meanwhile.

    Without the file the next chat only begins with a cold cache.
    """
    by_key: dict[EntryKey, CacheEntry] = {}
    # Reading an entry renews it, so the later one is the newer state of it.
    for entry in sorted((*load_simulated_cache(path), *entries), key=lambda entry: entry.expires_at):
        by_key.pop((entry.scope, entry.digest), None)
        by_key[entry.scope, entry.digest] = entry
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(tuple(by_key.values())[-SIMULATED_ENTRIES_MAX:]))


SHOWN_CHARACTERS_MAX = 400
COUNT_MAX = 1_000
PAUSE_SECONDS = 0.05
"""Delay before each chunk of `count to N`, which leaves the user time to try cancelling."""
SIMULATED_COMMANDS = (
    "read FILE, list DIR, search PATTERN, write FILE: TEXT, replace OLD by NEW in FILE, run COMMAND, count to N"
)
_CONTEXT = "<context layer="
_Arguments = Callable[[re.Match[str]], dict[str, str]]

_ORDERS: tuple[tuple[str, str, _Arguments], ...] = (
    (r"read\s+(\S+)", "read_file", lambda match: {"path": match[1]}),
    (r"list(?:\s+(\S+))?", "list_dir", lambda match: {"path": match[1] or "."}),
    (r"search\s+(.+)", "grep_files", lambda match: {"pattern": match[1]}),
    (r"write\s+([^\s:]+)\s*:\s*(.+)", "write_file", lambda match: {"path": match[1], "content": match[2] + "\n"}),
    (
        r"replace\s+(.+)\s+by\s+(.+)\s+in\s+(\S+)",
        "edit_file",
        lambda match: {"path": match[3], "old_text": match[1], "new_text": match[2]},
    ),
    (r"run\s+(.+)", "run_command", lambda match: {"command": match[1]}),
)


def simulate_chat_reply(messages: Sequence[Message]) -> ScriptedReply:
    """Reply with a tool call, the result of one, a slow count, or an echo of the user's message."""
    newest = messages[-1].content if messages else ()
    results = [block for block in newest if isinstance(block, ToolResult)]
    # After a cancelled turn, the newest message holds both its tool results and the user's next text: answer the text.
    has_user_text = any(isinstance(block, Text) and not block.text.startswith(_CONTEXT) for block in newest)
    if results and not has_user_text:
        return _text("\n".join(_describe_result(result) for result in results))
    text = _last_user_text(messages)
    if count := re.fullmatch(r"count to (\d{1,6})", text, re.IGNORECASE):
        numbers = range(1, min(int(count[1]), COUNT_MAX) + 1)
        slowly = DeliveryFault("drip", seconds=PAUSE_SECONDS)
        return ScriptedReply((Text(" ".join(map(str, numbers)) or "0"),), faults=(slowly,))
    for pattern, tool, arguments in _ORDERS:
        if order := re.fullmatch(pattern, text, re.IGNORECASE | re.DOTALL):
            call = ToolUse("", tool, msgspec.json.encode(arguments(order)).decode())
            return ScriptedReply((Text(f"I use {tool}."), call))
    return _text(f"You said: {_short(text)}\n\nThis is a simulated model. It understands: {SIMULATED_COMMANDS}.")


def _text(text: str) -> ScriptedReply:
    return ScriptedReply((Text(text),))


def _describe_result(result: ToolResult) -> str:
    text = join_text_blocks(tuple(block for block in result.content if isinstance(block, Text)))
    return f"{'The tool failed' if result.is_error else 'The tool returned'}: {_short(text)}"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def _last_user_text(messages: Sequence[Message]) -> str:
    """The user's last text, without the context blocks that the session injects before it."""
    texts = (
        block.text.strip()
        for message in reversed(messages)
        if message.role == "user"
        for block in reversed(message.content)
        if isinstance(block, Text) and not block.text.startswith(_CONTEXT)
    )
    return next(texts, "nothing")
