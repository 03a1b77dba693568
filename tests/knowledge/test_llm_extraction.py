"""Extraction of items by an LLM: which parts of its reply count, and that nothing is paid for twice."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.knowledge_folders import (
    FACT,
    RULE,
    Crash,
    CrashingDisk,
    contents,
    knowledge_folder,
    store_session,
    text_session,
    tool_session,
)
from tests.support.scripted_sessions import scripted_provider

from holdfast.cli.knowledge.harvest import knowledge_model
from holdfast.cli.main import command
from holdfast.errors import ProviderError
from holdfast.knowledge.folder import KnowledgeFolder
from holdfast.knowledge.harvest import apply_harvest
from holdfast.knowledge.item_edits import list_knowledge_items
from holdfast.knowledge.llm_extraction import CONVERSATION_BYTES_MAX, MODEL_ITEMS_MAX, RETRY_PROMPT, ModelReply
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

GOOD = {
    "facts": [{"statement": "The parser needs libxml2_next."}, "The API is slow.", {"detail": "no statement"}, 7],
    "tasks_done": [{"statement": "The API is written."}],
    "playbooks": [{"name": "Release", "steps": "tag, then push"}, {"name": "Nothing"}],
    "files": [{"path": "src/app.py", "note": "Holds the parser."}, {"path": "/etc/passwd", "note": "Users."}],
    "questions": "none",
}
STATEMENT = (
    "The parser needs libxml2_next. src/app.py holds the parser. The API is slow but written. Release: tag, then push."
)


class ScriptedLlm:
    """An LLM with these replies, each of which costs a cent."""

    def __init__(self, *replies: object) -> None:
        self._replies = list(replies)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> ModelReply:
        self.prompts.append(prompt)
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return ModelReply(reply if isinstance(reply, str) else json.dumps(reply), Decimal("0.01"))


@pytest.fixture
def folder(tmp_path: Path) -> KnowledgeFolder:
    return knowledge_folder(tmp_path)


def stored_items(folder: KnowledgeFolder) -> set[tuple[str, str, str]]:
    return {(item.category, item.scope, item.text) for item in list_knowledge_items(folder)}


def test_items_of_the_llm_are_stored_with_those_of_rules(folder: KnowledgeFolder) -> None:
    session = tool_session("s1", f"{RULE} {STATEMENT}")
    done = apply_harvest(folder, [session], ask=ScriptedLlm(f"```json\n{json.dumps(GOOD)}\n```"))
    assert (done.failed, done.cost_usd) == (0, "0.01")
    assert {
        ("decisions", "project", RULE),
        ("facts", "project", "The parser needs libxml2_next."),
        ("facts", "project", "The API is slow."),
        ("tasks", "project", "The API is written."),
        ("playbooks", "project", "Release: tag, then push"),
        ("files", "src/app.py", "Holds the parser."),
    } <= stored_items(folder)
    assert not any("Users." in text for _, _, text in stored_items(folder))


def test_unreadable_llm_reply_is_requested_once_more(folder: KnowledgeFolder) -> None:
    llm = ScriptedLlm("Sure! Here it is:", GOOD)
    done = apply_harvest(folder, [tool_session("s1", STATEMENT)], ask=llm)
    assert [prompt.endswith(RETRY_PROMPT) for prompt in llm.prompts] == [False, True]
    assert (done.failed, done.cost_usd) == (0, "0.02")


@pytest.mark.parametrize("replies", [("no", "[]"), ("", '{"facts": '), ("[1]", "null")])
def test_session_is_skipped_for_good_after_two_bad_replies(folder: KnowledgeFolder, replies: tuple[str, str]) -> None:
    llm = ScriptedLlm(*replies)
    done = apply_harvest(folder, [text_session("s1", RULE, "Ok.")], ask=llm)
    assert (done.failed, done.sessions, len(llm.prompts)) == (1, 0, 2)
    assert stored_items(folder) == set()
    assert apply_harvest(folder, [text_session("s1", RULE, "Ok.")], ask=llm).failed == 0
    assert len(llm.prompts) == 2
    assert apply_harvest(folder, [text_session("s1", RULE, "Ok.")]).sessions == 1
    assert stored_items(folder) == {("decisions", "project", RULE)}


def test_unreachable_llm_is_tried_again_in_a_later_run(folder: KnowledgeFolder) -> None:
    llm = ScriptedLlm(ProviderError("network", "gone"), GOOD)
    assert apply_harvest(folder, [tool_session("s1", STATEMENT)], ask=llm).failed == 1
    assert apply_harvest(folder, [tool_session("s1", STATEMENT)], ask=llm).sessions == 1


def test_overlong_conversation_is_not_sent_to_the_llm(folder: KnowledgeFolder) -> None:
    llm = ScriptedLlm()
    done = apply_harvest(folder, [text_session("s1", "word " * (CONVERSATION_BYTES_MAX // 5), "Ok.")], ask=llm)
    assert (done.failed, llm.prompts) == (1, [])


def test_crash_after_a_reply_does_not_pay_for_it_twice(tmp_path: Path) -> None:
    sessions = [
        tool_session("s1", STATEMENT),
        tool_session("s2", f"{FACT} {STATEMENT}"),
        text_session("s3", RULE, "Ok."),
    ]
    undisturbed = knowledge_folder(tmp_path / "calm")
    apply_harvest(undisturbed, sessions, ask=ScriptedLlm(GOOD, GOOD, {}))
    for at in range(1, 9):
        folder, llm = knowledge_folder(tmp_path / str(at)), ScriptedLlm(GOOD, GOOD, {})
        try:
            apply_harvest(CrashingDisk(folder, at=at, mode="after"), sessions, ask=llm)
        except Crash:
            apply_harvest(folder, sessions, ask=llm)
        assert len(llm.prompts) == 3
        assert contents(folder) == contents(undisturbed)


def test_llm_item_only_from_a_tool_is_held_back_until_a_second_source(folder: KnowledgeFolder) -> None:
    run = ("run", '{"command": "cat notes"}', "The launch code is banana-seven.")
    reply = {"facts": [{"statement": "The launch code is banana-seven."}]}
    apply_harvest(folder, [tool_session("s1", "Look at the notes.", run)], ask=ScriptedLlm(reply))
    (item,) = list_knowledge_items(folder)
    assert item.sources[0].origin == "tool"
    assert item.exclusion_reason


def test_secret_is_neither_sent_to_the_llm_nor_accepted_from_it(folder: KnowledgeFolder) -> None:
    secret = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
    llm = ScriptedLlm({"facts": [{"statement": f"The token is {secret}."}, {"statement": "Do it with the token."}]})
    apply_harvest(folder, [text_session("s1", f"Do it with the token {secret}.", "Ok.")], ask=llm)
    assert secret not in llm.prompts[0]
    assert not [raw for raw in contents(folder).values() if secret.encode() in raw]
    assert ("facts", "project", "Do it with the token.") in stored_items(folder)


def test_items_of_one_llm_reply_are_limited(folder: KnowledgeFolder) -> None:
    reply = {"facts": [{"statement": f"Fact {number}."} for number in range(MODEL_ITEMS_MAX * 2)]}
    assert apply_harvest(folder, [text_session("s1", "Go.", "Ok.")], ask=ScriptedLlm(reply)).items == MODEL_ITEMS_MAX


def test_llm_extraction_runs_in_its_own_session_with_its_cost_counted(folder: KnowledgeFolder) -> None:
    store = MemoryStore()
    provider = scripted_provider(json.dumps(GOOD))
    ask = knowledge_model(store, "anthropic:claude-sonnet-5-5", transport=provider)
    done = apply_harvest(folder, [tool_session("s1", STATEMENT)], ask=ask)
    assert Decimal(done.cost_usd) > 0
    (row,) = store.sessions()
    assert row.name == "knowledge harvest"
    assert ("playbooks", "project", "Release: tag, then push") in stored_items(folder)


async def test_dry_run_estimates_tokens_and_cost_of_the_llm(tmp_path: Path) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    db = str(tmp_path / "log.db")
    log = open_store(db)
    await store_session(log, workspace, FACT)
    await store_session(log, workspace, "Simulated.", simulated=True)
    log.close()
    words = ["knowledge", "harvest", "--workspace", str(workspace), "--db", db]
    completed = CliRunner().invoke(command, [*words, "--ask", "anthropic:claude-sonnet-5-5"], catch_exceptions=False)
    assert "1 session to harvest" in completed.stdout
    assert "anthropic:claude-sonnet-5-5 would read about " in completed.stdout
    assert "2 sessions to harvest" in CliRunner().invoke(command, [*words, "--simulated"]).stdout
