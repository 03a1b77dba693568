"""Token estimates, and their calibration by the usage that providers report.

Only OpenAI publishes its tokenizer. For other models the estimate is the number of o200k tokens times a factor per
model family. A count from here is never billing truth.
"""

import functools
import math
import re

import msgspec
from splintr import AnyTokenizer, Tokenizer

from holdfast.types.blocks import replace_surrogates

# Longer texts are sampled, which bounds the time that one count takes.
COUNTED_CHARACTERS_MAX = 131_072
SAMPLE_COUNT = 16
FACTOR_MAX = 4.0  # The correction stays between 1/4 and 4, whatever a provider reports.
SAMPLE_RATIO_MAX = 1.5  # A sample counts as at most this many times off the current factor.

# Weights of the running average, in estimated tokens: of the initial factor 1, of one sample, and of all samples
# together. With the last at its bound, a full sample moves the factor by 50/250 of its distance.
PRIOR_TOKENS = 2_000.0
SAMPLE_TOKENS_MAX = 50_000.0
MEMORY_TOKENS_MAX = 200_000.0
REPORTED_MAX = 10**12

IMAGE_TOKENS = 1_600
"""About what providers count for an image of the largest size that they do not scale down."""

IMAGE_BYTES_MIN = 512
# An image in Anthropic's encoding: `"type":"base64"` and a long `data` member.
_PICTURE = re.compile(rb'"data":"[A-Za-z0-9+/=_-]{256,}"')


def count_tokens(text: str | bytes, factor: float = 1.0) -> int:
    """An estimate; exact for o200k at factor 1 up to `COUNTED_CHARACTERS_MAX`, from samples beyond it.

    Special tokens written out in the text count as ordinary text. Bytes are decoded as UTF-8 with replacement.
    """
    if len(text) <= COUNTED_CHARACTERS_MAX:
        return math.ceil(_o200k_tokens(text) * factor)
    size = COUNTED_CHARACTERS_MAX // SAMPLE_COUNT
    starts = [(len(text) - size) * index // (SAMPLE_COUNT - 1) for index in range(SAMPLE_COUNT)]
    sampled = sum(_o200k_tokens(text[start : start + size]) for start in starts)
    # Tokens per sampled character, extrapolated to the whole text.
    return math.ceil(sampled * len(text) / (size * SAMPLE_COUNT) * factor)


def count_cl100k_tokens(text: str) -> int:
    """The exact count in the vocabulary in which instructions are limited."""
    return len(_cl100k().encode_ordinary(replace_surrogates(text)))


def count_block_tokens(data: bytes, factor: float = 1.0) -> int:
    """An estimate for one encoded block: an image counts as an image, not as its base64 text."""
    images = 0
    if len(data) > IMAGE_BYTES_MIN and b'"base64"' in data:
        data, images = _PICTURE.subn(b'"data":""', data)
    return count_tokens(data, factor) + images * IMAGE_TOKENS


class TokenCalibration(msgspec.Struct, frozen=True):
    """A correction learned from reported usage: estimates are multiplied by `factor`.

    `weight_tokens` is the weight of all samples so far, in estimated tokens. Once it is at its bound, old samples fade.
    """

    factor: float = 1.0
    weight_tokens: float = PRIOR_TOKENS

    def correct_estimate(self, estimated: int) -> int:
        return math.ceil(estimated * self.factor)

    def add_sample(self, estimated: int, reported: int) -> "TokenCalibration":
        """Add a sample: the uncorrected estimate of a prompt, and the prompt tokens that the provider reported.

        An outlier counts as one that is `SAMPLE_RATIO_MAX` times off, so a single one can do little harm.
        """
        if estimated <= 0 or reported <= 0:
            return self
        reported = min(reported, REPORTED_MAX)
        ratio = min(max(reported / estimated, self.factor / SAMPLE_RATIO_MAX), self.factor * SAMPLE_RATIO_MAX)
        ratio = min(max(ratio, 1 / FACTOR_MAX), FACTOR_MAX)
        sample_weight = min(float(estimated), SAMPLE_TOKENS_MAX)
        total = self.weight_tokens + sample_weight
        # Average of the old factor and the new ratio, weighted by the tokens that each is based on.
        factor = (self.factor * self.weight_tokens + ratio * sample_weight) / total
        return TokenCalibration(factor, min(total, MEMORY_TOKENS_MAX))


def _o200k_tokens(text: str | bytes) -> int:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return len(_tokenizer().encode_ordinary(replace_surrogates(text)))


@functools.cache
def _tokenizer() -> AnyTokenizer:
    return Tokenizer.from_pretrained("o200k_base")


@functools.cache
def _cl100k() -> AnyTokenizer:
    return Tokenizer.from_pretrained("cl100k_base")
