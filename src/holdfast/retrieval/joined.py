"""All that can be had side by side: sums of words, and three encoders of sentences."""

from holdfast.retrieval import granite, minilm, universal, wordllama
from holdfast.retrieval.sides import SideBySide
from holdfast.retrieval.vectors import VectorStage, by_sentences, by_words

SHARES = {"wordllama": 1 / 11, "universal": 1 / 11, "minilm": 3 / 11, "granite": 6 / 11}
WORDS_SHARE = 0.4
FLOOR = 0.23


def stage() -> SideBySide:
    parts = (
        (SHARES["wordllama"], VectorStage(wordllama.encoder(), by_words)),
        (SHARES["universal"], VectorStage(universal.encoder(), by_sentences)),
        (SHARES["minilm"], VectorStage(minilm.encoder(), by_sentences)),
        (SHARES["granite"], VectorStage(granite.encoder(), by_sentences)),
    )
    return SideBySide(parts, floor=FLOOR, words_share=WORDS_SHARE)
