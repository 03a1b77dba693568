"""The `paired` encoder: wordllama and the Universal Sentence Encoder combined."""

from holdfast.retrieval.encoders import universal, wordllama
from holdfast.retrieval.encoders.combined import CombinedStage
from holdfast.retrieval.encoders.tuning import create_tuned_stage
from holdfast.retrieval.vectors import VectorStage, encode_by_words

# Shares and floor are calibrated on published query sets (docs/decisions/0026).
SENTENCES_SHARE = 0.65
WORDS_SHARE = 0.5
FLOOR = 0.12


def stage() -> CombinedStage:
    weighted_stages = (
        (1 - SENTENCES_SHARE, VectorStage(wordllama.load_wordllama_encoder(), encode_by_words)),
        (SENTENCES_SHARE, create_tuned_stage(universal.load_universal_encoder(), "universal")),
    )
    return CombinedStage(weighted_stages, floor=FLOOR, words_share=WORDS_SHARE)
