"""The `joined` encoder: word vectors and three sentence encoders combined."""

from collections.abc import Mapping

from holdfast.retrieval import granite, minilm, universal, wordllama
from holdfast.retrieval.sides import SideBySide
from holdfast.retrieval.tuned import tuned_stage
from holdfast.retrieval.vectors import VectorStage, by_words

# Shares and floor are calibrated on published query sets (docs/decisions/0026).
SHARES = {"wordllama": 1 / 11, "universal": 1 / 11, "minilm": 3 / 11, "granite": 6 / 11}
SHARES_BESIDE_ANOTHER = {"wordllama": 1 / 6, "universal": 1 / 6, "minilm": 1 / 6, "granite": 3 / 6}
"""With a user's own model, MiniLM gets less: most such models were trained on the same text pairs."""
WORDS_SHARE = 0.4
WORDS_SHARE_BESIDE_ANOTHER = 0.5
FLOOR = 0.135


def stage() -> SideBySide:
    return SideBySide(_weighted_stages(SHARES), floor=FLOOR, words_share=WORDS_SHARE)


def stage_beside_another() -> SideBySide:
    return SideBySide(_weighted_stages(SHARES_BESIDE_ANOTHER), floor=FLOOR, words_share=WORDS_SHARE_BESIDE_ANOTHER)


def _weighted_stages(shares: Mapping[str, float]) -> tuple[tuple[float, VectorStage], ...]:
    return (
        (shares["wordllama"], VectorStage(wordllama.encoder(), by_words)),
        (shares["universal"], tuned_stage(universal.encoder(), "universal")),
        (shares["minilm"], tuned_stage(minilm.encoder(), "minilm")),
        (shares["granite"], tuned_stage(granite.encoder(), "granite")),
    )
