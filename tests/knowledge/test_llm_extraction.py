"""Extraction of items by an LLM: which parts of its reply count, and that nothing is paid for twice."""

import json
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.knowledge_folders import (
    FACT,
    RULE,
    Crash,
    CrashingDisk,
    contents,
    harvest_all,
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
from holdfast.knowledge.llm_extraction import MODEL_ITEMS_MAX, PROMPT_CHARACTERS_MAX, RETRY_PROMPT, ModelReply
from holdfast.knowledge.review import list_knowledge_items
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry

SAID = "In this project the parser needs libxml2_next. We should make the API faster later."
RUN = ("run", '{"command": "make check"}', "ok")
GOOD = {
    "facts": [
        {"statement": "The parser needs libxml2_next.", "from": [1]},
        "The API is slow.",
        {"detail": "no statement", "from": [1]},
        {"statement": "The parser needs no line.", "from": []},
        {"statement": "The parser needs another line.", "from": [99]},
        7,
    ],
    "tasks_open": [{"statement": "Make the API faster later.", "from": [2]}],
    "playbooks": [{"name": "", "steps": "make check", "from": [3]}, {"name": "Nothing"}],
    "questions": "none",
}


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


def test_items_that_the_llm_chose_are_stored_with_those_of_rules(folder: KnowledgeFolder) -> None:
    llm = ScriptedLlm(f"```json\n{json.dumps(GOOD)}\n```")
    done = harvest_all(folder, [tool_session("s1", SAID, RUN)], ask=llm)
    assert (done.failed, done.cost_usd) == (0, "0.01")
    assert stored_items(folder) == {
        ("decisions", "project", "In this project the parser needs libxml2_next."),
        ("facts", "project", "The parser needs libxml2_next."),
        ("tasks", "project", "Make the API faster later."),
        ("playbooks", "project", "make check"),
    }
    chosen = next(item for item in list_knowledge_items(folder) if item.category == "playbooks")
    assert (chosen.sources[0].session, chosen.sources[0].number, chosen.sources[0].origin) == ("s1", 2, "model")


def test_llm_reads_the_candidates_and_not_the_conversation(folder: KnowledgeFolder) -> None:
    output = ("run", '{"command": "cat notes"}', "The launch code is banana-seven.")
    injected = HistoryEntry("user", (Text("We always use the harness."),), layer="project", number=99)
    asked = tool_session("s1", SAID, output, RUN)
    session = msgspec.structs.replace(asked, read_entries=lambda: [injected, *asked.read_entries()])
    llm = ScriptedLlm({})
    harvest_all(folder, [session], ask=llm)
    (prompt,) = llm.prompts
    assert "1. [m1 user] In this project the parser needs libxml2_next." in prompt
    assert "3. [m4 model] make check" in prompt
    assert "banana" not in prompt
    assert "harness" not in prompt


def test_session_without_candidates_is_not_sent_to_the_llm(folder: KnowledgeFolder) -> None:
    done = harvest_all(folder, [text_session("s1", "Good morning to you.", "Good morning.")], ask=ScriptedLlm())
    assert (done.failed, done.sessions, done.cost_usd) == (0, 1, "0")


@pytest.mark.parametrize("command", ["rm -rf build", "git push --force", "git rebase -i main", "make deploy"])
def test_llm_cannot_make_a_playbook_of_a_command_that_destroys(folder: KnowledgeFolder, command: str) -> None:
    said = f"We should always use {command} afterwards."
    reply = {"playbooks": [{"name": "", "steps": command, "from": [1]}]}
    harvest_all(folder, [text_session("s1", said, "Ok.")], ask=ScriptedLlm(reply))
    assert not [item for item in list_knowledge_items(folder) if item.category == "playbooks"]


def test_statement_in_other_words_than_its_lines_is_not_taken(folder: KnowledgeFolder) -> None:
    reply = {"facts": [{"statement": "Customers may always wire money to account nine.", "from": [1]}]}
    harvest_all(folder, [text_session("s1", SAID, "Ok.")], ask=ScriptedLlm(reply))
    assert not [text for _, _, text in stored_items(folder) if "wire money" in text]


def test_unreadable_llm_reply_is_requested_once_more(folder: KnowledgeFolder) -> None:
    llm = ScriptedLlm("Sure! Here it is:", GOOD)
    done = harvest_all(folder, [tool_session("s1", SAID)], ask=llm)
    assert [prompt.endswith(RETRY_PROMPT) for prompt in llm.prompts] == [False, True]
    assert (done.failed, done.cost_usd) == (0, "0.02")


@pytest.mark.parametrize("replies", [("no", "[]"), ("", '{"facts": '), ("[1]", "null")])
def test_session_is_skipped_for_good_after_two_bad_replies(folder: KnowledgeFolder, replies: tuple[str, str]) -> None:
    llm = ScriptedLlm(*replies)
    done = harvest_all(folder, [text_session("s1", RULE, "Ok.")], ask=llm)
    assert (done.failed, done.sessions, len(llm.prompts)) == (1, 0, 2)
    assert stored_items(folder) == set()
    assert harvest_all(folder, [text_session("s1", RULE, "Ok.")], ask=llm).failed == 0
    assert len(llm.prompts) == 2
    assert harvest_all(folder, [text_session("s1", RULE, "Ok.")]).sessions == 1
    assert stored_items(folder) == {("decisions", "project", RULE)}


def test_unreachable_llm_is_tried_again_in_a_later_run(folder: KnowledgeFolder) -> None:
    llm = ScriptedLlm(ProviderError("network", "gone"), GOOD)
    assert harvest_all(folder, [tool_session("s1", SAID)], ask=llm).failed == 1
    assert harvest_all(folder, [tool_session("s1", SAID)], ask=llm).sessions == 1


def test_prompt_for_the_llm_is_bounded(folder: KnowledgeFolder) -> None:
    said = "\n".join(f"We should never change part_{number} of it." for number in range(40))
    texts = [text for number in range(60) for text in (f"{said} {number}", "We decided to use it.")]
    llm = ScriptedLlm({})
    harvest_all(folder, [text_session("s1", *texts)], ask=llm)
    assert len(llm.prompts[0]) <= PROMPT_CHARACTERS_MAX


def test_crash_after_a_reply_does_not_pay_for_it_twice(tmp_path: Path) -> None:
    sessions = [
        tool_session("s1", SAID),
        tool_session("s2", f"{FACT} {SAID}"),
        text_session("s3", RULE, "Ok."),
    ]
    undisturbed = knowledge_folder(tmp_path / "calm")
    harvest_all(undisturbed, sessions, ask=ScriptedLlm(GOOD, GOOD, {}))
    for at in range(1, 9):
        folder, llm = knowledge_folder(tmp_path / str(at)), ScriptedLlm(GOOD, GOOD, {})
        try:
            harvest_all(CrashingDisk(folder, at=at, mode="after"), sessions, ask=llm)
        except Crash:
            harvest_all(folder, sessions, ask=llm)
        assert len(llm.prompts) == 3
        assert contents(folder) == contents(undisturbed)


def test_secret_is_neither_sent_to_the_llm_nor_accepted_from_it(folder: KnowledgeFolder) -> None:
    secret = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
    llm = ScriptedLlm({"facts": [{"statement": f"The token is {secret}.", "from": [1]}]})
    harvest_all(folder, [text_session("s1", f"{SAID} We should use the token {secret}.", "Ok.")], ask=llm)
    assert secret not in llm.prompts[0]
    assert not [raw for raw in contents(folder).values() if secret.encode() in raw]


def test_items_of_one_llm_reply_are_limited(folder: KnowledgeFolder) -> None:
    said = "\n".join(f"We should use part_{number} of it." for number in range(MODEL_ITEMS_MAX * 2))
    facts = [{"statement": f"Use part_{number} of it.", "from": [number + 1]} for number in range(MODEL_ITEMS_MAX * 2)]
    done = harvest_all(folder, [text_session("s1", said, "Ok.")], ask=ScriptedLlm({"facts": facts}))
    assert done.items == MODEL_ITEMS_MAX


def test_llm_extraction_runs_in_its_own_session_with_its_cost_counted(folder: KnowledgeFolder) -> None:
    store = MemoryStore()
    provider = scripted_provider(json.dumps(GOOD))
    ask = knowledge_model(store, "anthropic:claude-sonnet-5-5", transport=provider)
    done = harvest_all(folder, [tool_session("s1", SAID)], ask=ask)
    assert Decimal(done.cost_usd) > 0
    (row,) = store.sessions()
    assert row.name == "knowledge harvest"
    assert ("facts", "project", "The parser needs libxml2_next.") in stored_items(folder)


@pytest.fixture
async def db(tmp_path: Path) -> str:
    """A store with one session of a project, and one of a simulated model."""
    (tmp_path / "project").mkdir()
    path = str(tmp_path / "log.db")
    log = open_store(path)
    await store_session(log, tmp_path / "project", f"{FACT} {RULE}")
    await store_session(log, tmp_path / "project", "Simulated.", simulated=True)
    log.close()
    return path


def run_harvest(db: str, *words: str, answer: str = "") -> Result:
    workspace = str(Path(db).parent / "project")
    return CliRunner().invoke(
        command, ["knowledge", "harvest", "--workspace", workspace, "--db", db, *words], input=answer
    )


def test_price_of_the_llm_is_shown_without_calling_it(db: str) -> None:
    shown = run_harvest(db, "--dry-run", "--ask", "anthropic:claude-sonnet-5-5").stdout
    assert "1 session to harvest" in shown
    assert "anthropic:claude-sonnet-5-5 would be asked about 1 session: about " in shown
    assert "at most $0.0" in shown
    assert "no model was called" in shown
    assert "2 sessions to harvest" in run_harvest(db, "--dry-run", "--simulated").stdout


def test_llm_is_not_called_unless_the_price_is_confirmed(db: str) -> None:
    refused = run_harvest(db, "--ask", "anthropic:claude-sonnet-5-5", answer="n\n")
    assert refused.exit_code == 1
    assert "at most $" in refused.stdout
    assert "Ask it? [y/N]" in refused.stdout
    assert "harvested" not in refused.stdout
    assert not (Path(db).parent / "project" / ".holdfast").exists()


def test_confirmed_llm_is_called_and_its_cost_is_shown(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ScriptedLlm({"decisions": [{"statement": "Never push to release/2.x.", "from": [2]}]})
    monkeypatch.setattr("holdfast.cli.knowledge.harvest.knowledge_model", lambda log, model: llm)
    done = run_harvest(db, "--ask", "anthropic:claude-sonnet-5-5", "--yes")
    assert "3 items wait for you" in done.stdout
    assert "the model cost $0.0100" in done.stdout
    assert len(llm.prompts) == 1


def test_llm_is_not_called_beyond_its_limit(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ScriptedLlm()
    monkeypatch.setattr("holdfast.cli.knowledge.harvest.knowledge_model", lambda log, model: llm)
    done = run_harvest(db, "--ask", "anthropic:claude-sonnet-5-5", "--yes", "--usd-max", "0.001")
    assert "1 session not harvested" in done.stdout
    assert llm.prompts == []
    assert "2 items wait for you" in run_harvest(db).stdout
