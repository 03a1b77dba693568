"""How many tokens a text has, as an estimate, and how reported usage corrects the estimate.

No provider but OpenAI publishes its tokenizer: o200k tokens times a factor per family come near. A count
from here is never billing truth.
"""

import functools
import math
import re

import msgspec
from splintr import AnyTokenizer, Tokenizer

from holdfast.canonical.blocks import mend_surrogates

COUNTED_CHARACTERS_MAX = 131_072
SAMPLES = 16
FACTOR_MAX = 4.0
STEP_MAX = 1.5
PRIOR_TOKENS = 2_000.0
SAMPLE_TOKENS_MAX = 50_000.0
MEMORY_TOKENS_MAX = 200_000.0
REPORTED_MAX = 10**12

PICTURE_TOKENS = 1_600
"""What providers count for a picture of the largest size that they do not scale down, about."""

PICTURE_BYTES_MIN = 512
_PICTURE = re.compile(rb'"data":"[A-Za-z0-9+/=_-]{256,}"')


def count_tokens(text: str | bytes, factor: float = 1.0) -> int:
    """An estimate; exact for o200k at factor 1 up to `COUNTED_CHARACTERS_MAX`, from samples beyond it.

    Special tokens spelled out in the text are text. Bytes are read as UTF-8, whatever they hold.
    """
    if len(text) <= COUNTED_CHARACTERS_MAX:
        return math.ceil(_o200k_tokens(text) * factor)
    size = COUNTED_CHARACTERS_MAX // SAMPLES
    starts = [(len(text) - size) * index // (SAMPLES - 1) for index in range(SAMPLES)]
    counted = sum(_o200k_tokens(text[start : start + size]) for start in starts)
    return math.ceil(counted * len(text) / (size * SAMPLES) * factor)


def count_block(data: bytes, factor: float = 1.0) -> int:
    """An estimate for one block on the wire: a picture counts as a picture, not as the text that spells it."""
    pictures = 0
    if len(data) > PICTURE_BYTES_MIN and b'"base64"' in data:
        data, pictures = _PICTURE.subn(b'"data":""', data)
    return count_tokens(data, factor) + pictures * PICTURE_TOKENS


class Calibration(msgspec.Struct, frozen=True):
    """What reported usage taught about our estimates: they are to be multiplied by `factor`.

    `weight_tokens` is how much was learned, as estimated tokens; old samples fade as it reaches its bound.
    """

    factor: float = 1.0
    weight_tokens: float = PRIOR_TOKENS

    def corrected(self, estimated: int) -> int:
        return math.ceil(estimated * self.factor)

    def learn(self, estimated: int, reported: int) -> "Calibration":
        """One more sample: an uncorrected estimate of a prompt, and the prompt tokens the provider reported.

        A wild sample counts as one that is `STEP_MAX` times off, so a single one can do little harm.
        """
        if estimated <= 0 or reported <= 0:
            return self
        reported = min(reported, REPORTED_MAX)
        ratio = min(max(reported / estimated, self.factor / STEP_MAX), self.factor * STEP_MAX)
        ratio = min(max(ratio, 1 / FACTOR_MAX), FACTOR_MAX)
        sample = min(float(estimated), SAMPLE_TOKENS_MAX)
        total = self.weight_tokens + sample
        factor = (self.factor * self.weight_tokens + ratio * sample) / total
        return Calibration(factor, min(total, MEMORY_TOKENS_MAX))


def _o200k_tokens(text: str | bytes) -> int:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return len(_tokenizer().encode_ordinary(mend_surrogates(text)))


@functools.cache
def _tokenizer() -> AnyTokenizer:
    return Tokenizer.from_pretrained("o200k_base")
