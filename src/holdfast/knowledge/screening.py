"""Screen texts before they become knowledge: secrets are never stored, possible prompt injections need approval.

What users say about themselves stays with them.
"""

import re
from itertools import pairwise

from holdfast.redaction import redact_secrets

_LONG_WORD = re.compile(r"[A-Za-z0-9+/_=-]{20,}")
_NAMED_SECRET = re.compile(
    r"(?i)\b(?:pass(?:word|phrase|wd)?|secret|token|api[ _-]?key|credentials?|private key)\b"
    r"(?:\s+(?:is|are|was|for\s+\S+\s+is)\b|\s*[:=])\s*\S"
)

_INJECTIONS = {
    "an order to forget instructions": re.compile(
        r"(?i)\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}"
        r"\b(?:instructions?|rules|prompts?|guidelines|polic(?:y|ies)|everything|all (?:previous|prior|above))\b"
    ),
    "a new role for the model": re.compile(r"(?i)\byou are (?:now|no longer)\b|\b(?:act|behave) as (?:if|an? )\b"),
    "words of another speaker": re.compile(
        r"(?i)(?:^|\s)(?:system|assistant|human|user|developer)\s*:\s"
        r"|(?:<|&lt;)/?\s*(?:system|context|tool|instructions?)\b|\[/?INST\]|<\|"
    ),
    "a secret order": re.compile(
        r"(?i)\b(?:do not|don't|never) (?:tell|inform|mention|reveal|show).{0,30}\b(?:user|person|human|operator)\b"
        r"|\bwithout (?:telling|asking|informing)\b|\bsystem prompt\b"
    ),
    "a way out for secrets": re.compile(
        r"(?i)\b(?:exfiltrat\w*|send|post|upload|leak)\b.{0,60}"
        r"(?:\b(?:keys?|secrets?|tokens?|passwords?|credentials?)\b|\.env\b)"
    ),
    "a download that is executed": re.compile(r"(?i)\b(?:curl|wget)\b.{0,120}\|\s*(?:ba|z)?sh\b|\brm -rf\s+[~/]"),
}

# People about themselves, and what identifies a person: prefers false positives, which only keep an item private.
_PERSONAL = re.compile(
    r"(?i)\b(?:i|i'm|i'd|i've|i'll|me|my|mine|myself)\b|[\w.+-]+@[\w-]+\.\w|(?<![\w.])\+?\d[\d ()-]{7,}\d\b"
    r"|\b(?:user|customer|account|member|passport|card|phone|tax|insurance|patient|employee)[ _-]?(?:id|number|no)\b"
    r"|\b(?:e-?mail|address|birthday|born|salary|nickname|pronouns?)\b|/(?:home|Users)/\w"
)


def is_personal(text: str) -> bool:
    """Whether a text may say something about a person; such a text is never shared with others."""
    return _PERSONAL.search(text) is not None


def contains_secret(text: str) -> bool:
    """Whether something in the text looks like a credential; prefers false positives over leaks."""
    if redact_secrets(text) != text or _NAMED_SECRET.search(text):
        return True
    return any(_looks_random(word) for word in _LONG_WORD.findall(text))


def detect_injection(text: str) -> str:
    """What kind of prompt injection the text looks like; empty if none."""
    return next((name for name, pattern in _INJECTIONS.items() if pattern.search(text)), "")


def _looks_random(word: str) -> bool:
    """Whether a long word looks random: it changes between character classes more often than a name does."""
    if "/" in word and not re.search(r"[+=]", word):
        return any(_looks_random(part) for part in word.split("/") if len(part) >= 20)
    classes = [0 if char.isdigit() else 1 if char.isupper() else 2 if char.islower() else 3 for char in word]
    if len({*classes} & {0, 1, 2}) < 3:
        # Digests are lower case and digits too; a key of that shape is recognised by the word before it.
        return False
    changes = sum(before != after for before, after in pairwise(classes) if 3 not in (before, after))
    # A change at every third character or more; camel case and snake case names change less often.
    return changes * 3 >= len(word)
