"""Every format of credential, on every way out of the process."""

import json
import logging
import sys
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

import pytest
from tests.support.event_examples import event
from tests.support.secret_examples import SECRETS

from holdfast.cli.chat.session_thread import ChatNotice, WarningNoticeHandler
from holdfast.cli.format import print_json
from holdfast.cli.main import main
from holdfast.engine.guard import WarningLog
from holdfast.engine.tools.builtin.shell import command_environment
from holdfast.errors import StoreError, UserError
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.events.payloads.session import MessageAppended
from holdfast.instructions.coverage.schedule import redact_personal_text
from holdfast.knowledge.llm_extraction import ModelReply, extract_items_with_model
from holdfast.knowledge.screening import contains_secret
from holdfast.ledger.cache.prefix_diff import compare_requests
from holdfast.ledger.requests.parse import parse_request
from holdfast.providers.errors import make_refusal
from holdfast.service.http.routes import ApiError
from holdfast.service.telemetry.spans import SpanBuilder
from holdfast.sources.skills.frontmatter import quote_text
from holdfast.types.blocks import Message, Text
from holdfast.types.prompt import HistoryEntry


class Captures(NamedTuple):
    capsys: pytest.CaptureFixture[str]
    caplog: pytest.LogCaptureFixture
    monkeypatch: pytest.MonkeyPatch


def provider_error(secret: str, captures: Captures) -> str:
    return str(make_refusal(401, {}, f"refused {secret}"))


def raised_error(secret: str, captures: Captures) -> str:
    return f"{UserError(f'unknown {secret}')} {StoreError(f'gone {secret}')}"


def cli_error(secret: str, captures: Captures) -> str:
    """A file that is not there, and an option that is not known."""
    for words in (["explain", secret], ["explain", f"--{secret}"]):
        captures.monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        with pytest.raises(SystemExit):
            main()
    return captures.capsys.readouterr().err


def service_error(secret: str, captures: Captures) -> str:
    return ApiError(400, "invalid", f"no {secret}").response.error.message


def telemetry_span(secret: str, captures: Captures) -> str:
    spans = SpanBuilder(content=True)
    said = MessageAppended(Message("user", (Text(f"use {secret}"),)))
    failed = LlmCallFailed("a:b", "a", "network", "gone", 0, 2000, "r0")
    return str([span.attributes for one in (said, failed) for span in spans.add_event(event("e", one, at=9.0))])


def knowledge_harvest(secret: str, captures: Captures) -> str:
    """No such text becomes knowledge, and the model that extracts knowledge is not shown it."""
    assert contains_secret(f"use {secret}")
    return f"[redacted] {redact_personal_text(f'use {secret}')}"


def prefix_diff(secret: str, captures: Captures) -> str:
    def request(text: str) -> bytes:
        body = {"model": "claude-sonnet-5-5", "system": text, "messages": [{"role": "user", "content": "Hi."}]}
        return json.dumps(body).encode()

    before, after = parse_request(request(f"use {secret} or")), parse_request(request(f"take {secret} or"))
    difference = compare_requests(before, after, None).difference
    assert difference is not None
    return "\n".join(difference.diff)


def report_json(secret: str, captures: Captures) -> str:
    print_json({"name": [f"use {secret}"]})
    return captures.capsys.readouterr().out


def log_line(secret: str, captures: Captures) -> str:
    with captures.caplog.at_level(logging.WARNING), WarningLog().suppress_errors("not recorded"):
        raise UserError(f"unknown {secret}")
    return captures.caplog.text


def chat_warning(secret: str, captures: Captures) -> str:
    notices: SimpleQueue[ChatNotice] = SimpleQueue()
    WarningNoticeHandler(notices).emit(logging.LogRecord("holdfast", 30, "", 0, "lost %s", (secret,), None))
    return str(notices.get())


def skill_finding(secret: str, captures: Captures) -> str:
    return quote_text(f"key {secret}")


def child_environment(secret: str, captures: Captures) -> str:
    return f"[redacted] {command_environment({'HTTP_PROXY': secret})}"


SURFACES: tuple[Callable[[str, Captures], str], ...] = (
    *(provider_error, raised_error, cli_error, service_error, telemetry_span, knowledge_harvest, prefix_diff),
    *(report_json, log_line, chat_warning, skill_finding, child_environment),
)


@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.__name__)
def test_no_credential_leaves(
    surface: Callable[[str, Captures], str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaks = []
    for name, secret in SECRETS.items():
        caplog.clear()
        shown = surface(secret, Captures(capsys, caplog, monkeypatch))
        telling = [part for part in ("MIIEabc", "s3cret", "hunter2") if part in secret] or [secret.split(" ")[-1]]
        if "[redacted]" not in shown or any(part in shown for part in telling):
            leaks.append(f"{name}: {shown}")
    assert leaks == []


def test_a_model_that_extracts_knowledge_sees_no_credential() -> None:
    prompts: list[str] = []

    def ask(prompt: str) -> ModelReply:
        prompts.append(prompt)
        return ModelReply("{}")

    said = ["Always use the staging database.", *(f"use {secret}" for secret in SECRETS.values())]
    entries = [HistoryEntry("user", (Text(text),)) for text in said]
    extract_items_with_model(ask, entries, session="s", day="2026-11-17")
    assert [name for name, secret in SECRETS.items() if secret in prompts[0]] == []
