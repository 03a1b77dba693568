"""The `paired` encoder: wordllama and the Universal Sentence Encoder combined."""

from holdfast.retrieval import universal, wordllama
from holdfast.retrieval.sides import SideBySide
from holdfast.retrieval.tuned import tuned_stage
from holdfast.retrieval.vectors import VectorStage, by_words

# Shares and floor are calibrated on published query sets (docs/decisions/0026).
SENTENCES_SHARE = 0.65
WORDS_SHARE = 0.5
FLOOR = 0.12


def stage() -> SideBySide:
    weighted_stages = (
        (1 - SENTENCES_SHARE, VectorStage(wordllama.encoder(), by_words)),
        (SENTENCES_SHARE, tuned_stage(universal.encoder(), "universal")),
    )
    return SideBySide(weighted_stages, floor=FLOOR, words_share=WORDS_SHARE)
