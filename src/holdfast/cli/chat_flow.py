"""Runs a chat from start to end: opens the store and session, reads messages, prints the closing line."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

from holdfast.canonical.blocks import text_of
from holdfast.catalog.lookup import find_model, shipped_models
from holdfast.catalog.overrides import with_overrides
from holdfast.cli.chat_commands import obey, switch_to
from holdfast.cli.chat_room import Room, Setting
from holdfast.cli.chat_screen import (
    Screen,
    hang_ups,
    home_relative,
    messages_piped,
    messages_typed,
    remember,
    undisturbed,
)
from holdfast.cli.chat_setup import Wishes, check_reach, options_of, resume_command, stored_chat, workspace_of
from holdfast.cli.chat_talk import LoopThread, Talk, Warnings
from holdfast.cli.chat_texts import dollars, shortened_lines, visible
from holdfast.cli.counts import counted
from holdfast.cli.requests import printable
from holdfast.cli.stores import configured_models, open_configured
from holdfast.engine.state import State
from holdfast.events.log import Log
from holdfast.runtime.config import load_config
from holdfast.runtime.session import Session
from holdfast.stores.open import open_store

LAST_LINES_MAX = 12


def enter(wishes: Wishes, screen: Screen, environ: Mapping[str, str]) -> int:
    """Run a whole chat and return the exit status."""
    with ExitStack() as stack:
        stack.enter_context(hang_ups())
        if wishes.resume is None:
            # Check the model and key before opening the store, so that a failure leaves no empty store behind.
            _load_setting(wishes, None, environ)
            path = wishes.store or load_config(environ).db_path
            log: Log = stack.enter_context(closing(open_store(path, models=configured_models())))
        else:
            log = stack.enter_context(open_configured(wishes.store))
        stored = stored_chat(wishes, log)
        setting = _load_setting(wishes, stored, environ)
        thread = LoopThread()
        stack.callback(thread.close)
        with _open_room(setting, stored, log=log, screen=screen, thread=thread) as room:
            _show_greeting(room, stored)
            _run_messages(room)
        _show_ending(room, is_new=stored is None)
        # A script that pipes messages must see a failure; an interactive user has already seen it.
        return int(room.failed and not screen.interactive)


def _load_setting(wishes: Wishes, stored: State | None, environ: Mapping[str, str]) -> Setting:
    workspace = workspace_of(wishes, stored)
    config = load_config(
        environ, workspace=workspace, flags={"model": wishes.model, "also_skills": wishes.also_skills or None}
    )
    models = with_overrides(shipped_models(), config.models)
    if stored is None or stored.model:
        name = stored.model if stored else config.model
        check_reach(find_model(name, models), wishes, config, environ)
    return Setting(wishes, workspace, config, models, environ)


@contextmanager
def _open_room(
    setting: Setting, stored: State | None, *, log: Log, screen: Screen, thread: LoopThread
) -> Iterator[Room]:
    """Open the session; on exit it is closed cleanly, and a new session without a turn is deleted."""
    wishes = setting.wishes
    model = find_model((stored.model if stored else "") or setting.config.model, setting.models)
    options = options_of(wishes, model, stored, workspace=setting.workspace)
    talk = Talk(thread)
    options["confirm"] = talk.confirm
    options["store"] = log
    if wishes.simulate:
        from holdfast.cli.chat_offline import offline_reply
        from holdfast.simulator.provider import SimulatedProvider

        options["wire"] = SimulatedProvider(models=setting.models, script=offline_reply)
    session = Session.resume(stored.session_id, **options) if stored else Session.create(**options)
    warnings = Warnings(talk.notices)
    logger = logging.getLogger("holdfast")
    logger.addHandler(warnings)
    try:
        thread.call(session.__aenter__())
        try:
            yield Room(setting, session, talk, log=log, screen=screen)
        finally:
            with undisturbed():
                thread.call(session.aclose())
                # A new chat in which nothing was sent leaves no session behind.
                if stored is None and not session.turn_count:
                    log.delete(session.id)
    finally:
        logger.removeHandler(warnings)


def _show_greeting(room: Room, stored: State | None) -> None:
    """Show the model and workspace; for a resumed session, also its last messages."""
    session, wishes = room.session, room.setting.wishes
    if room.screen.interactive:
        folder = printable(home_relative(str(room.setting.workspace.resolve())))
        room.screen.tell(f"{session.model}{' (simulated)' if wishes.simulate else ''} in {folder}")
        room.screen.note("/help lists commands; Ctrl-C stops a call, Ctrl-D exits")
    if stored is None:
        return
    room.screen.note(f"resumed after {counted(session.turn_count, 'turn')}, {dollars(session.cost)}")
    messages = [passage for passage in stored.passages if not passage.injected and text_of(passage.content).strip()]
    if room.screen.interactive:
        for passage in messages[-2:]:
            lines = visible(text_of(passage.content))
            prefix = "> " if passage.role == "user" else "  "
            room.screen.change([prefix + line for line in shortened_lines(lines, LAST_LINES_MAX)], whole=True)
        for passage in messages:
            if passage.role == "user":
                remember(text_of(passage.content))
    if wishes.model is not None and wishes.model != session.model:
        switch_to(room, wishes.model)


def _run_messages(room: Room) -> None:
    screen = room.screen
    messages = messages_typed(screen) if screen.interactive else messages_piped(sys.stdin)
    room.tell_warnings()
    for message in messages:
        try:
            if not message.startswith("/"):
                room.speak(message)
            elif not obey(room, message):
                break
        except KeyboardInterrupt:
            if not screen.interactive:
                raise
        room.tell_warnings()


def _show_ending(room: Room, *, is_new: bool) -> None:
    session = room.session
    if is_new and not session.turn_count:
        room.screen.note("no message was sent; nothing is stored")
        return
    room.screen.note(f"{dollars(session.cost)} in {counted(session.turn_count, 'turn')}; to continue:")
    room.screen.note(resume_command(room.setting.wishes, session.id))
