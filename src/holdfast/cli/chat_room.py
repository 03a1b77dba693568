"""The state of a running chat: sends a message, shows the turn, and asks the user for confirmations."""

from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.canonical.prompt import Plan
from holdfast.catalog.lookup import Models
from holdfast.cli.chat_asking import judged_lines, verdict
from holdfast.cli.chat_screen import Screen, interrupts
from holdfast.cli.chat_setup import Wishes
from holdfast.cli.chat_talk import Over, Question, Talk, Warned
from holdfast.cli.chat_texts import DIFF_LINES_MAX, since, status_line
from holdfast.cli.chat_turn import TurnView
from holdfast.cli.requests import printable
from holdfast.clock import system_clock
from holdfast.engine.confirm import Confirmation, ConfirmationRequest
from holdfast.errors import HoldfastError, ProviderError
from holdfast.events.envelope import Event
from holdfast.events.log import Log
from holdfast.events.payloads import LlmCallFailed
from holdfast.runtime.config import Config
from holdfast.runtime.session import Session

Result = TypeVar("Result")


class Setting(msgspec.Struct, frozen=True):
    """What stays fixed for the whole chat."""

    wishes: Wishes
    workspace: Path
    config: Config
    models: Models
    environ: Mapping[str, str]


class Room:
    """A session, the screen that shows it, and the thread that runs it."""

    def __init__(self, setting: Setting, session: Session, talk: Talk, *, log: Log, screen: Screen) -> None:
        self.setting = setting
        self.session = session
        self.log = log
        self.screen = screen
        self.talk = talk
        self.plan: Plan | None = None
        self.failed = False

    def call(self, coroutine: Coroutine[object, None, Result]) -> Result:
        return self.talk.thread.call(coroutine)

    def speak(self, message: str) -> None:
        """Send the message and show the turn until it ends; Ctrl-C cancels it."""
        view = TurnView(self.screen, thinking=self.setting.wishes.thinking)
        cost_before, usage_before = self.session.cost, self.session.usage
        estimated: list[Event] = []
        unsubscribe = self.session.subscribe(
            lambda event: estimated.append(event) if _is_output_estimated(event) else None
        )
        with interrupts(lambda number, frame: self.talk.cancel()):
            self.talk.begin(self.session, message)
            over = self._follow(view)
        unsubscribe()
        self.screen.end_line()
        self.plan = view.plan or self.plan
        self._conclude(over)
        # The session's counters are cumulative: the turn is the difference between two readings.
        cost, usage = self.session.cost - cost_before, since(usage_before, self.session.usage)
        if usage.tokens_sent or cost:
            cached = self.session.cache_state()
            warm = cached.expires_at - system_clock() if cached.tokens else 0.0
            total = self.session.cost
            self.screen.note(status_line(usage, cost, session_usd=total, warm_seconds=warm, estimated=bool(estimated)))

    def sure(self, question: str) -> bool:
        """Whether the user answers yes; with --yes, the question is not asked."""
        return self.setting.wishes.yes or verdict(self.screen.ask(f"{question} [y]es / [n]o: ")) is True

    def tell_warnings(self) -> None:
        """Show the warnings logged since the last turn."""
        while not self.talk.notices.empty():
            notice = self.talk.notices.get()
            if isinstance(notice, Warned):
                self.screen.note(printable(notice.text))

    def _follow(self, view: TurnView) -> Over:
        while True:
            match self.talk.notices.get():
                case Over() as over:
                    return over
                case Question(request, answer):
                    answer(self._judge(request))
                case Warned(text):
                    self.screen.note(printable(text))
                case item:
                    view.show(item)

    def _judge(self, request: ConfirmationRequest) -> Confirmation:
        if self.setting.wishes.yes:
            return True
        if not self.screen.interactive:
            self.screen.note(f"{printable(request.tool_name)}: refused without a terminal to ask; --yes allows it")
            return False
        lines = judged_lines(request, self.setting.workspace)
        self.screen.change(lines, whole=False)
        is_cut = len(lines) > DIFF_LINES_MAX
        choices = "[y]es / [n]o / [a]lways this session" + (" / [s]how all" if is_cut else "")
        question = f"  {printable(request.tool_name)}: {choices}? "
        while (answer := self.screen.ask(question)) is not None and is_cut and answer.strip().lower() in ("s", "show"):
            self.screen.change(lines, whole=True)
        return verdict(answer)

    def _conclude(self, over: Over) -> None:
        if over.cancelled:
            self.screen.note("cancelled; the conversation so far is kept")
            if not self.screen.interactive:
                raise KeyboardInterrupt
        elif isinstance(over.error, HoldfastError):
            self.failed = True
            self.screen.complain(printable(str(over.error)))
            unreached = isinstance(over.error, ProviderError) and over.error.kind == "network" and not self.session.cost
            if unreached:
                self.screen.note("to try things without a network: holdfast chat --simulate")
        elif over.error is not None:
            raise over.error


def _is_output_estimated(event: Event) -> bool:
    """Whether the event is a broken-off call whose output tokens the provider did not report."""
    return isinstance(event.payload, LlmCallFailed) and event.payload.output_estimated
