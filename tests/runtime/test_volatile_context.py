"""Each of the four memory dimensions changes its own bytes, on the wire of each provider, and no others."""

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import pytest
from click.testing import CliRunner, Result
from tests.support.all_providers import MODELS, answering_provider, inserted_bytes
from tests.support.knowledge_folders import FACT, knowledge_folder, text_session, tool_session

from holdfast.cli.main import command
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.reducer import fold_events
from holdfast.engine.request_draft import build_sent_view
from holdfast.knowledge.folder import DIGEST_FILE
from holdfast.knowledge.harvest import apply_harvest
from holdfast.knowledge.rag_index import update_rag_index
from holdfast.layers.assemble import assemble_prompt
from holdfast.runtime.context_report import encode_prompt, stable_prefix_length
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.runtime.volatile_context import curation_folder, rag_folder
from holdfast.stores.memory import MemoryStore
from holdfast.types.request_buffer import common_prefix_length

PYTHON = """\
import os


class Reader:
    def parse(self, text):
        if not text:
            return None

        return text.split()

    def close(self):
        pass


def main():
    return Reader()
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "app.py").write_text(PYTHON)
    (folder / "src" / "tides.md").write_text("The harbour gate opens twice a day, with the tide.\n")
    place = curation_folder(folder)
    place.replace("reader.toml", b'files = [{path = "src/app.py", symbol = "Reader"}]')
    place.replace("main.toml", b'files = ["src/tides.md", {path = "src/app.py", lines = "15-16"}]')
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


class Talk:
    """Two turns of a session, and what may happen between them."""

    def __init__(self, folder: Path, model: str = MODELS[0], /, **options: Unpack[Options]) -> None:
        self.provider = answering_provider(model)
        self.store = MemoryStore()
        self.model = model
        given: Options = {"model": model, "workspace": folder, "system_prompt": "Be brief.", "padding": "never"}
        parts: Options = {
            "store": self.store,
            "transport": self.provider,
            "clock": ManualClock(),
            "new_id": CountingIds(),
        }
        self.options: Options = given | parts | {"allow_uncached": True} | options

    async def spoken(
        self, between: Callable[[], object] = lambda: None, *, asks: tuple[str, str] = ("a", "b")
    ) -> bytes:
        """The cacheable bytes of the second request; the first one's are their beginning."""
        async with Session.create(**self.options) as session:
            await session.send(asks[0])
            first = self.cacheable()
            between()
            await session.send(asks[1])
        second = self.cacheable()
        assert second.startswith(first), "the prefix moved"
        return second

    def cacheable(self) -> bytes:
        (row,) = self.store.sessions()
        state = fold_events(self.store.read(row.id), row.id)
        return encode_prompt(assemble_prompt(build_sent_view(state)), model=self.model).cacheable


@pytest.mark.parametrize("model", MODELS)
async def test_choosing_another_preset_adds_its_files_behind_the_history(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    same = await Talk(workspace, model).spoken()
    assert same.count(b"class Reader") == 1
    other = await Talk(workspace, model).spoken(lambda: run("curation", "use", "main", "--workspace", str(workspace)))
    added = inserted_bytes(same, other)
    assert b"Files chosen for this work (main)" in added
    assert b"harbour gate" in added
    assert b"return Reader()" in added
    assert b"def parse" not in added


@pytest.mark.parametrize("model", MODELS)
async def test_editing_a_chosen_file_adds_it_once_more_and_moves_nothing(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    same = await Talk(workspace, model).spoken()
    file = workspace / "src" / "app.py"
    edited = await Talk(workspace, model).spoken(lambda: file.write_text(PYTHON.replace("split()", "splitlines()")))
    assert b"text.splitlines()" in inserted_bytes(same, edited)


@pytest.mark.parametrize("model", MODELS)
async def test_editing_any_other_file_changes_no_byte(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    same = await Talk(workspace, model).spoken()
    edited = await Talk(workspace, model).spoken(lambda: (workspace / "src" / "tides.md").write_text("Low.\n"))
    assert edited == same


@pytest.mark.parametrize("model", MODELS)
async def test_a_note_on_a_chosen_file_is_told_and_on_another_file_is_not(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    same = await Talk(workspace, model).spoken()
    place = knowledge_folder(workspace)

    def harvest(path: str) -> None:
        arguments = f'{{"path": "{path}", "content": "x"}}'
        apply_harvest(place, [tool_session(path, "Mend the reader.", ("write_file", arguments, "ok"))])

    place.replace("disabled", b"")
    assert await Talk(workspace, model).spoken(lambda: harvest("src/other.py")) == same
    noted = await Talk(workspace, model).spoken(lambda: harvest("src/app.py"))
    assert b"Changed for: Mend the reader." in inserted_bytes(same, noted)


@pytest.mark.parametrize("model", MODELS)
async def test_a_new_item_changes_no_byte_of_a_running_session(workspace: Path, model: str) -> None:
    place = knowledge_folder(workspace)
    apply_harvest(place, [text_session("s1", FACT, "Ok.")])
    same = await Talk(workspace, model).spoken()
    more = text_session("s2", "Never touch src/app.py on Fridays.", "Ok.")
    assert await Talk(workspace, model).spoken(lambda: apply_harvest(place, [more])) == same
    fresh = await Talk(workspace, model).spoken()
    assert b"on Fridays" in inserted_bytes(same, fresh)
    assert (place.read(DIGEST_FILE) or b"").count(b"- ") == 2


@pytest.mark.parametrize("model", MODELS)
async def test_a_question_adds_the_passages_that_fit_it_with_where_they_stand(workspace: Path, model: str) -> None:
    asks = ("hello", "When does the harbour gate open?")
    without = await Talk(workspace, model).spoken(asks=asks)
    update_rag_index(rag_folder(workspace), workspace)
    found = inserted_bytes(without, await Talk(workspace, model).spoken(asks=asks))
    assert found.count(b"rag-context") == 1
    assert b"## src/tides.md lines 1-1 (sha256 " in found
    assert b"opens twice a day" in found
    assert await Talk(workspace, model, rag=False).spoken(asks=asks) == without
    (workspace / ".holdfast" / "rag" / "index.jsonl").unlink()
    assert await Talk(workspace, model).spoken(asks=asks) == without
    assert await Talk(workspace, model, rag=True).spoken(asks=asks) == without


async def of_the_seed(folder: Path, model: str, between: Callable[[], object]) -> list[tuple[bytes, bytes]]:
    """What is stable and what is not of two requests under the seed profile; the second asks for the harbour."""
    talk = Talk(folder, model, profile="seed", skills=False)
    parts = []
    async with Session.create(**talk.options) as session:
        for ask in ("hello", "When does the harbour gate open?"):
            await session.send(ask)
            prompt = assemble_prompt(build_sent_view(fold_events(talk.store.read(session.id), session.id)))
            whole, end = encode_prompt(prompt, model=model).cacheable, stable_prefix_length(prompt, model=model)
            parts.append((whole[:end], whole[end:]))
            between()
    return parts


@pytest.mark.parametrize("model", MODELS)
async def test_the_seeds_curation_and_retrieval_are_behind_the_stable_prefix(workspace: Path, model: str) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    update_rag_index(rag_folder(workspace), workspace)
    file = workspace / "src" / "app.py"
    place = knowledge_folder(workspace)
    place.replace("disabled", b"")

    def changed() -> None:
        file.write_text(PYTHON.replace("split()", "splitlines()"))
        arguments = '{"path": "src/app.py", "content": "x"}'
        apply_harvest(place, [tool_session("s", "Mend the reader.", ("write_file", arguments, "ok"))])

    (first, told), (second, then) = await of_the_seed(workspace, model, changed)
    assert first == second
    # The file that was edited, what is known of it, and what fits the question: said with the turn that asks.
    for text in (b"text.splitlines()", b"Changed for: Mend the reader.", b"opens twice a day"):
        assert (text in first, text in told, text in then) == (False, False, True)
    (same, _), (again, switched) = await of_the_seed(
        workspace, model, lambda: run("curation", "use", "main", "--workspace", str(workspace))
    )
    assert same == again == first
    assert b"Files chosen for this work (main)" in switched


@pytest.mark.parametrize("model", MODELS)
async def test_the_seeds_digest_is_in_the_stable_prefix_and_is_another_one_with_the_next_turn(
    workspace: Path, model: str
) -> None:
    place = knowledge_folder(workspace)
    apply_harvest(place, [text_session("s1", FACT, "Ok.")])
    more = text_session("s2", "Never touch src/app.py on Fridays.", "Ok.")
    (first, _), (second, rest) = await of_the_seed(workspace, model, lambda: apply_harvest(place, [more]))
    assert (b"on Fridays" in first, b"on Fridays" in second, b"on Fridays" in rest) == (False, True, False)
    front = common_prefix_length(first, second)
    assert FACT.encode() not in first[:front]
    assert b"# Knowledge from earlier work" in first[:front]


async def test_retrieval_follows_flag_configuration_and_presence_in_this_order(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update_rag_index(rag_folder(workspace), workspace)

    async def told(**options: Unpack[Options]) -> bool:
        return b"rag-context" in await Talk(workspace, **options).spoken(asks=("The harbour gate?", "And?"))

    assert await told()
    monkeypatch.setenv("HOLDFAST_RAG", "off")
    assert not await told()
    assert await told(rag=True)


async def test_a_preset_is_chosen_by_flag_configuration_and_file_in_this_order(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told(**options: Unpack[Options]) -> bytes:
        return await Talk(workspace, **options).spoken()

    assert b"Files chosen" not in await told()
    run("curation", "use", "reader", "--workspace", str(workspace))
    assert b"(reader)" in await told()
    monkeypatch.setenv("HOLDFAST_CURATION", "main")
    assert b"(main)" in await told()
    assert b"(reader)" in await told(curation="reader")
    assert b"Files chosen" not in await told(curation="")


async def test_files_that_are_no_longer_chosen_are_said_to_be_none(workspace: Path) -> None:
    run("curation", "use", "reader", "--workspace", str(workspace))
    said = await Talk(workspace).spoken(lambda: run("curation", "off", "--workspace", str(workspace)))
    assert b"<context layer='active_files' empty/>" in said


async def test_a_preset_that_is_gone_stops_no_session(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert b"Files chosen" not in await Talk(workspace, curation="gone").spoken()
    assert "there is no file preset 'gone'; known: main, reader" in caplog.text


def test_presets_are_listed_shown_and_chosen(workspace: Path) -> None:
    where = ("--workspace", str(workspace))
    assert run("curation", "list", *where).stdout == "  main\n  reader\n"
    run("curation", "use", "main", *where)
    assert run("curation", "list", *where).stdout == "* main\n  reader\n"
    shown = run("curation", "show", "reader", *where).stdout
    assert "## src/app.py lines 4-12 of 16 (sha256 " in shown
    assert shown.rstrip().endswith("pass")
    assert "No preset is active." in run("curation", "off", *where).stdout
