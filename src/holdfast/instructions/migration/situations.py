"""Finds the situations in which a text is needed, from its clauses: `before you push`, `Run the tests`, `Never ...`.

Only local rules on English text; the verbs are those of `situations.toml`.
"""

import re
from collections.abc import Iterator

from holdfast.instructions.migration.naming import PHRASE_CHARACTERS_MAX, base_verb, is_noun_too
from holdfast.retrieval.bm25 import STOP_WORDS, extract_terms
from holdfast.retrieval.paraphrases import to_gerund

SITUATIONS_MAX = 60
CHARACTERS_READ_MAX = 20_000
_WORDS_MIN, _WORDS_MAX = 2, 9
_POINTING = frozenset(
    {"one", "ones", "next", "them", "other", "others", "same", "thing", "things", "when", "befor", "after"}
)
"""Words that mean something only in their place in a text, as in `write the next`."""
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_ITEM = re.compile(r"^[\s>]*(?:[-*+]|\d+[.)])?\s*(?:\[[ xX]\]\s*)?")
_MARKUP = re.compile(r"!?\[([^\[\]]{0,200})\]\([^()]{0,300}\)|[*_]{2,}|<[^<>]{0,200}>|[✅❌⚠️]+")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\s+[-–—]+\s+|:\s*$")
_WHEN = re.compile(
    r"\b(when(?:ever)?|before|after|while|if|unless) "
    r"((?:you(?:'re| are)?|we|the user|an? |the |every )?[^,.;:()]{6,90})",
    re.I,
)
_LEADING_CLAUSE = re.compile(r"^(?:when(?:ever)?|before|after|while|if|unless)\b[^,]{0,120},\s+(?=\w)", re.I)
_FORBIDDEN = re.compile(
    r"^(?:please\s+)?(?:never|do not|don'?t|must not|avoid|you (?:may|must|should) (?:not|never)|not)\s+", re.I
)
_ORDER = re.compile(
    r"^(?:please\s+|always\s+|make sure (?:to|you)\s+|be sure to\s+|remember to\s+"
    r"|you (?:must|should|can|may|need to)\s+)+",
    re.I,
)
_TO = re.compile(r"^to\s+(?=\w)", re.I)
_SUBJECT = re.compile(r"^(?:you|we|the user|i)(?:'re| are|'ve| have)?\s+", re.I)
_CUT_AT = re.compile(
    r"\s+(?:because|so that|such as|for example|e\.g\.|i\.e\.|which|that|unless|instead of|rather than|but|using|via|"
    r"with|and then|then|or|and|to ensure|to avoid)\s.*$|[,(;:].*$",
    re.I,
)


def find_situations(text: str) -> tuple[str, ...]:
    """Situations in the order of the text, without repetition: what someone is about to do when it applies."""
    found: dict[str, str] = {}
    for situation in _situations(text[:CHARACTERS_READ_MAX]):
        found.setdefault(" ".join(sorted(set(extract_terms(situation)))), situation)
        if len(found) >= SITUATIONS_MAX:
            break
    return tuple(found.values())


def _situations(text: str) -> Iterator[str]:
    is_code = False
    for line in text.split("\n"):
        if _FENCE.match(line):
            is_code = not is_code
            continue
        if is_code or line.startswith(("    ", "\t", "|")) or not line.strip():
            continue
        plain = _MARKUP.sub(lambda match: match[1] or "", _ITEM.sub("", line.lstrip("# "), count=1)).strip()
        for sentence in _SENTENCE_END.split(plain):
            yield from _in_sentence(sentence.strip(" *_\"'.!"))


def _in_sentence(sentence: str) -> Iterator[str]:
    for match in _WHEN.finditer(sentence):
        if clause := _clause(match[1].lower(), match[2]):
            yield clause
    order = _LEADING_CLAUSE.sub("", sentence)
    allowed = _FORBIDDEN.sub("", order)
    plain = _TO.sub("", _ORDER.sub("", allowed))
    verb, _, rest = plain.partition(" ")
    # What follows `never` is an action, also if its verb is unknown, as in `Never force-push`.
    base = base_verb(verb) or (verb.lower() if allowed != order else None)
    is_marked = plain != order
    if base is None or not rest or (is_noun_too(verb) and not is_marked):
        return
    if phrase := _bounded(f"{base} {_CUT_AT.sub('', rest)}"):
        yield phrase


def _clause(conjunction: str, clause: str) -> str | None:
    """`before you open a pull request` as `before opening a pull request`; other clauses as they are."""
    active = _SUBJECT.sub("", clause.strip())
    verb, _, rest = _CUT_AT.sub("", active).partition(" ")
    base = base_verb(verb)
    if base is None:
        whole = _CUT_AT.sub("", clause.strip())
        is_statement = active == clause.strip() and len(extract_terms(whole)) >= _WORDS_MIN
        return _bounded(f"{conjunction} {whole}") if is_statement else None
    gerund = verb.lower() if verb.lower() != base else to_gerund(base)
    return _bounded(f"{base} {rest}" if conjunction in ("if", "unless") else f"{conjunction} {gerund} {rest}")


def _bounded(phrase: str) -> str | None:
    words = phrase.replace("`", "").split()[:_WORDS_MAX]
    while words and words[-1].lower() in STOP_WORDS:
        words.pop()
    text = " ".join(words).rstrip(" ,.;:")
    is_enough = len([term for term in extract_terms(text) if term not in _POINTING]) >= _WORDS_MIN
    return text if is_enough and len(text) <= PHRASE_CHARACTERS_MAX else None
