"""The `joined` encoder: word vectors and three sentence encoders combined."""

from collections.abc import Mapping

from holdfast.retrieval.encoders import granite, minilm, universal, wordllama
from holdfast.retrieval.encoders.combined import CombinedStage
from holdfast.retrieval.encoders.tuning import create_tuned_stage
from holdfast.retrieval.vectors import VectorStage, encode_by_words

# Shares and floor are calibrated on published query sets (docs/decisions/0026).
SHARES = {"wordllama": 1 / 11, "universal": 1 / 11, "minilm": 3 / 11, "granite": 6 / 11}
SHARES_WITH_CUSTOM_MODEL = {"wordllama": 1 / 6, "universal": 1 / 6, "minilm": 1 / 6, "granite": 3 / 6}
"""With a user's own model, MiniLM gets less: most such models were trained on the same text pairs."""
WORDS_SHARE = 0.4
WORDS_SHARE_WITH_CUSTOM_MODEL = 0.5
FLOOR = 0.135


def stage() -> CombinedStage:
    return CombinedStage(_weighted_stages(SHARES), floor=FLOOR, words_share=WORDS_SHARE)


def stage_beside_another() -> CombinedStage:
    return CombinedStage(
        _weighted_stages(SHARES_WITH_CUSTOM_MODEL), floor=FLOOR, words_share=WORDS_SHARE_WITH_CUSTOM_MODEL
    )


def _weighted_stages(shares: Mapping[str, float]) -> tuple[tuple[float, VectorStage], ...]:
    return (
        (shares["wordllama"], VectorStage(wordllama.load_wordllama_encoder(), encode_by_words)),
        (shares["universal"], create_tuned_stage(universal.load_universal_encoder(), "universal")),
        (shares["minilm"], create_tuned_stage(minilm.load_minilm_encoder(), "minilm")),
        (shares["granite"], create_tuned_stage(granite.load_granite_encoder(), "granite")),
    )
