"""Finding units by words, by meaning and by their links, with reasons."""

import subprocess
import sys

import msgspec
import pytest
from tests.support.retrieval_units import OFFICE

from holdfast.errors import UserError
from holdfast.retrieval.bm25 import extract_terms
from holdfast.retrieval.encoders import wordllama
from holdfast.retrieval.encoders.registry import NO_MODEL, create_semantic_stage
from holdfast.retrieval.index import FLOOR_LEXICAL, SearchIndex, SearchResult, StageWeights
from holdfast.retrieval.units import PASSAGE_WORDS, PASSAGES_MAX, SearchUnit, list_passages, split_name


def ids(answer: SearchResult) -> list[str]:
    return [one.id for one in answer.hits]


def test_words_are_found_in_any_grammatical_form() -> None:
    assert ids(SearchIndex(OFFICE).search("filling forms"))[0] == "forms"
    assert extract_terms("Please, could you be FILLING the forms?") == ["fill", "form"]


def test_the_parts_of_a_name_are_words() -> None:
    assert split_name("readPDFText_file2.käse") == "read PDF Text file 2 käse"
    assert ids(SearchIndex(OFFICE).search("merge"))[0] == "merge"


def test_a_name_is_found_by_its_meaning_however_long_the_description_is() -> None:
    described = "Talk to the office of a company, its people and its partners, and keep what was said in a ledger"
    named, unnamed = SearchUnit("named", "kitten", described), SearchUnit("unnamed", "office", described)
    fits = {
        one.id: one.stages[1].score
        for one in SearchIndex([named, unnamed, *OFFICE], meaning=create_semantic_stage()).search("cats", floor=0).hits
    }
    assert fits["named"] == 1 > fits["unnamed"]


def test_case_and_punctuation_do_not_change_the_meaning() -> None:
    index = SearchIndex(OFFICE, meaning=create_semantic_stage())
    assert index.search("Will it RAIN -- tomorrow?!", floor=0) == index.search("will it rain tomorrow", floor=0)


def test_a_query_without_a_common_word_finds_by_meaning_only() -> None:
    query = "will there be a storm tomorrow"
    assert ids(SearchIndex(OFFICE).search(query)) == []
    assert ids(SearchIndex(OFFICE, meaning=create_semantic_stage()).search(query))[:1] == ["weather"]


def test_long_content_is_found_by_one_of_its_chunks() -> None:
    filler = " ".join(["ledger"] * PASSAGE_WORDS)
    nap = " ".join(["The cat sleeps on the sofa."] * (PASSAGE_WORDS // 6))
    long = SearchUnit("long", "handbook", "Rules of the house", content=f"{filler} {nap} {filler}")
    index = SearchIndex([long, *OFFICE], meaning=create_semantic_stage())
    assert ids(index.search("kitten napping on a couch", floor=0))[0] == "long"
    much = " ".join(map(str, range(PASSAGE_WORDS * (PASSAGES_MAX + 5))))
    assert len(list_passages(SearchUnit("much", content=much))) == PASSAGES_MAX


def test_a_sentence_among_others_is_found_by_words_that_mean_the_same() -> None:
    """The vector of the whole text is closer to the other one; word by word, bicycles are bikes and broken damaged."""
    notes = "Invoices are paid in May. The printer needs paper. Broken bicycles go to the workshop. Ask for holidays."
    rent = "Customers rent a scooter or a motorcycle by the hour and return it clean."
    units = (SearchUnit("notes", content=notes), SearchUnit("rent", content=rent))
    assert ids(SearchIndex(units, meaning=create_semantic_stage()).search("my bike is damaged", floor=0))[0] == "notes"


def test_a_hit_lists_the_matched_words_and_the_share_of_each_stage() -> None:
    found = SearchIndex(OFFICE, meaning=create_semantic_stage()).search("fill in the fields of a form").hits[0]
    assert found.id == "forms"
    assert found.matched_terms == ("fill", "field", "form")
    assert [share.stage for share in found.stages] == ["lexical", "semantic", "graph"]
    assert [share.score for share in found.stages[:2]] == [1, 1]
    assert found.links == ("mergePages",)


def test_a_reference_adds_the_unit_that_it_names() -> None:
    by_id = {one.id: one for one in SearchIndex(OFFICE).search("fill in a form", floor=0).hits}
    assert by_id["merge"].stages[-1].stage == "graph"
    assert by_id["merge"].stages[-1].score == 1
    assert by_id["weather"].score == 0


def test_a_bare_word_is_not_a_reference() -> None:
    plain = msgspec.structs.replace(OFFICE[0], content="Read mergePages first.")
    assert SearchIndex([plain, *OFFICE[1:]]).search("fill in a form", floor=0).hits[0].links == ()


@pytest.mark.parametrize("spelled", ["`mergePages`", "[[mergePages]]", "[the pages](mergePages)", "skill:merge/v1"])
def test_a_reference_is_quoted_bracketed_linked_or_an_address(spelled: str) -> None:
    naming = SearchUnit("naming", "naming", "Forms", content=f"First read {spelled}.")
    named = SearchUnit("skill:merge/v1", "mergePages", "Pages")
    found = {one.id: one for one in SearchIndex([naming, named]).search("forms", floor=0).hits}
    assert found["skill:merge/v1"].stages[-1].score == 1


def test_a_unit_is_not_its_own_neighbour() -> None:
    sharing = [SearchUnit("one", "alpha", triggers=("ship it",)), SearchUnit("two", "beta", triggers=("ship it",))]
    assert SearchIndex(sharing).search("alpha", floor=0).hits[0].stages[-1].score == 0
    itself = SearchUnit("three", "gamma", content="This is `gamma`.")
    found = SearchIndex([itself, *sharing]).search("gamma", floor=0).hits[0]
    assert (found.links, found.stages[-1].score) == ((), 0)


def test_a_trigger_shared_by_many_units_counts_less() -> None:
    def reached(count: int) -> float:
        sharing = [
            SearchUnit(f"unit-{one}", triggers=("ship it",), content="rare" * (one == 0)) for one in range(count)
        ]
        index = SearchIndex(sharing)
        return {one.id: one for one in index.search("rare", floor=0, limit=count).hits}["unit-1"].stages[-1].score

    assert reached(2) == 1
    assert 0 < reached(20) < reached(3) < 1


def test_triggers_are_compared_by_their_words() -> None:
    one, other = (
        SearchUnit("one", "alpha", triggers=("Ship the release!",)),
        SearchUnit("two", "beta", triggers=("release shipping",)),
    )
    assert SearchIndex([one, other]).search("alpha", floor=0).hits[1].stages[-1].score == 1


def test_units_below_the_floor_are_not_returned() -> None:
    index = SearchIndex(OFFICE, meaning=create_semantic_stage())
    answer = index.search("quantum chromodynamics of mesons")
    assert answer.hits == ()
    assert len(answer.dropped) == len(OFFICE)
    assert all(one.relevance < answer.floor for one in answer.dropped)
    assert len(index.search("quantum chromodynamics of mesons", floor=0).hits) == len(OFFICE)


def test_dropped_units_make_room_for_others() -> None:
    answer = SearchIndex(OFFICE).search("fill the fields, tell users", limit=2, floor=FLOOR_LEXICAL)
    assert ids(answer) == ["forms", "release"]


def test_the_floor_is_that_of_the_stages_there_are() -> None:
    assert SearchIndex().floor == FLOOR_LEXICAL
    assert SearchIndex(meaning=create_semantic_stage()).floor == wordllama.FLOOR


def test_a_blank_query_finds_nothing() -> None:
    assert SearchIndex(OFFICE, meaning=create_semantic_stage()).search("  ").hits == ()


def test_without_vectors_the_result_says_so() -> None:
    answer = SearchIndex(OFFICE).search("forms")
    assert answer.embedding_model_version == NO_MODEL
    assert answer.weights.semantic == 0
    assert [share.stage for share in answer.hits[0].stages] == ["lexical", "graph"]


def test_the_answer_names_the_model_and_its_version() -> None:
    index = SearchIndex(OFFICE, meaning=create_semantic_stage())
    assert index.search("forms").embedding_model_version == "wordllama-l2_supercat_256@64b47a2d"
    assert ids(index.search("will it rain tomorrow"))[0] == "weather"
    assert index.digest != SearchIndex(OFFICE).digest


def test_weights_must_add_up_to_one() -> None:
    with pytest.raises(UserError, match=r"must sum to 1, not to 0\.900"):
        StageWeights(0.3, 0.5, 0.1)
    with pytest.raises(UserError, match="numbers from 0 to 1"):
        StageWeights(-0.5, 1.0, 0.5)
    with pytest.raises(UserError, match="numbers from 0 to 1"):
        StageWeights(float("nan"), 0.5, 0.5)


def test_weights_decide_which_stage_wins() -> None:
    units = [
        SearchUnit("word", "ledgers", "accounting and tax by Storm Ltd"),
        SearchUnit("sense", "forecast", "Rain, thunder, wind"),
    ]
    index = SearchIndex(units, meaning=create_semantic_stage())
    assert ids(index.search("heavy storm", floor=0, weights=StageWeights(1, 0, 0)))[0] == "word"
    assert ids(index.search("heavy storm", floor=0, weights=StageWeights(0, 1, 0)))[0] == "sense"


def test_unknown_encoder_error_lists_the_alternatives() -> None:
    with pytest.raises(UserError, match="unknown encoder 'glove'; use wordllama, none, the folder of an ONNX model,"):
        create_semantic_stage("glove")


def test_a_missing_extra_is_named_and_the_rest_works_without_it() -> None:
    code = (
        "import sys\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('numpy', 'wordllama', 'tokenizers'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name in ('numpy', 'wordllama', 'tokenizers') else real(name)\n"
        "from holdfast.retrieval.index import SearchIndex\n"
        "from holdfast.retrieval.units import SearchUnit\n"
        "from holdfast.retrieval.encoders.registry import create_semantic_stage\n"
        "print(SearchIndex([SearchUnit('a', 'forms')]).search('form').hits[0].id)\n"
        "try: create_semantic_stage()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "a",
        "UserError ranking by wordllama needs wordllama, tokenizers, numpy: pip install 'holdfast-context[semantic]', "
        "or rank lexically",
    ]


def test_every_process_and_every_number_of_threads_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, msgspec\n"
        "from tests.support.retrieval_units import OFFICE\n"
        "from holdfast.retrieval.index import SearchIndex\n"
        "from holdfast.retrieval.encoders.registry import create_semantic_stage\n"
        "from holdfast.retrieval.units import SearchUnit\n"
        "many = [SearchUnit(str(n), f'unit {n}', f'{n * 7919 % 1000} pages of forms') for n in range(300)]\n"
        "index = SearchIndex([*OFFICE, *many], meaning=create_semantic_stage())\n"
        "answers = [index.search(query, floor=0, limit=300) for query in ('fill forms', 'will it rain soon')]\n"
        "sys.stdout.buffer.write(msgspec.json.encode(answers))\n"
    )
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    outputs = []
    for threads, hash_seed in (("1", "1"), ("2", "2"), ("4", "3")):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        outputs.append(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert outputs[0]
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("text", ["", "\ud800", "\x00", "𝔘𝔫𝔦", "a" * 100_000, "漢字 かな", "`" * 500, "[[" * 500])
def test_any_text_can_be_indexed_and_queried(text: str) -> None:
    index = SearchIndex(OFFICE, meaning=create_semantic_stage())
    index.add([SearchUnit(text, text, text, (text,), text)])
    assert text in index
    assert len(index.search(text, floor=0).hits) == len(OFFICE) + 1
    index.remove([text])
    assert index.digest == SearchIndex(OFFICE, meaning=create_semantic_stage()).digest
