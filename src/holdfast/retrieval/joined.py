"""All that can be had side by side: sums of words, and three encoders of sentences."""

from collections.abc import Mapping

from holdfast.retrieval import granite, minilm, universal, wordllama
from holdfast.retrieval.sides import SideBySide
from holdfast.retrieval.tuned import tuned_stage
from holdfast.retrieval.vectors import VectorStage, by_words

SHARES = {"wordllama": 1 / 11, "universal": 1 / 11, "minilm": 3 / 11, "granite": 6 / 11}
SHARES_BESIDE_ANOTHER = {"wordllama": 1 / 6, "universal": 1 / 6, "minilm": 1 / 6, "granite": 3 / 6}
"""What another model says, MiniLM often says too: most were made from the same pairs of texts."""
WORDS_SHARE = 0.4
WORDS_SHARE_BESIDE_ANOTHER = 0.5
FLOOR = 0.135


def stage() -> SideBySide:
    return SideBySide(_parts(SHARES), floor=FLOOR, words_share=WORDS_SHARE)


def stage_beside_another() -> SideBySide:
    return SideBySide(_parts(SHARES_BESIDE_ANOTHER), floor=FLOOR, words_share=WORDS_SHARE_BESIDE_ANOTHER)


def _parts(shares: Mapping[str, float]) -> tuple[tuple[float, VectorStage], ...]:
    return (
        (shares["wordllama"], VectorStage(wordllama.encoder(), by_words)),
        (shares["universal"], tuned_stage(universal.encoder(), "universal")),
        (shares["minilm"], tuned_stage(minilm.encoder(), "minilm")),
        (shares["granite"], tuned_stage(granite.encoder(), "granite")),
    )
