"""How else might a person say what a trigger says? Other words, forms, order, fewer words, slips of the hand.

Only the trigger is read, never a unit's text, and nothing is drawn by lot: the same trigger has the same paraphrases.
"""

import re
from collections.abc import Iterator

from holdfast.retrieval.synonyms import alternatives, is_order
from holdfast.retrieval.words import STOP_WORDS

COUNT = 5
COUNT_MAX = 40
INTENT_CHARACTERS_MAX = 1_000

_OPENINGS = re.compile(
    r"^(?:please|kindly|how (?:do|can|should) (?:i|we)|how to|(?:can|could|would) you(?: please)?"
    r"|help (?:me|us)(?: to)?|(?:i|we) (?:want|need|would like|have|am going|are going) to"
    r"|(?:i'd|we'd) like to|let's|let us)\s+",
    re.I,
)
_JOINTS = (
    " when ",
    " if ",
    " before ",
    " after ",
    " because ",
    " while ",
    ", ",
    " and ",
    " or ",
    " for ",
    " with ",
    " in ",
    " to ",
)
_TURNED_WITH_JOINT = {
    " when ",
    " if ",
    " before ",
    " after ",
    " because ",
    " while ",
    " for ",
    " with ",
    " in ",
    " to ",
}
_ORDERS = (
    "how do I {}?",
    "please {}",
    "can you {}?",
    "I need to {}",
    "what is the right way to {}?",
    "time to {} now",
    "we are about to {}",
    "what should I know before I {}?",
)
_SITUATIONS = (
    "what should I do when {}?",
    "{}, what now?",
    "help, {}",
    "it seems that {}",
    "which rules hold if {}?",
    "how to go on while {}?",
    "I noticed that {}",
    "advise me: {}",
)
_SITUATION = re.compile(
    r"\w (?:is|are|was|were|has|have|had|does|did|cannot|can't|won't|fails|failed|wants|asks)\b", re.I
)
_TOPICS = (
    "what about {}?",
    "I need help with {}",
    "tell me more on {}",
    "{}: what should I do?",
    "any guidance for {}?",
    "how does {} work here?",
    "my question is about {}",
    "deal with {}",
)


def paraphrases(intent: str, count: int = COUNT) -> tuple[str, ...]:
    """So many different ways to say it, none of them as it was said; none for a blank intent."""
    said = " ".join(intent[:INTENT_CHARACTERS_MAX].split())
    if not said:
        return ()
    found: dict[str, str] = {_key(said): ""}
    for other in _ways(said):
        if len(found) > min(count, COUNT_MAX):
            break
        if other:
            found.setdefault(_key(other), other)
    return tuple(other for other in found.values() if other)


def probes(intents: tuple[str, ...], description: str = "", *, count: int) -> tuple[str, ...]:
    """So many paraphrases in all, from each intent in turn, then from the description; fewer if there are no more."""
    lists = [paraphrases(text, COUNT_MAX) for text in (*intents, description)]
    turns = (one[turn] for turn in range(COUNT_MAX) for one in lists if turn < len(one))
    return tuple(dict.fromkeys(turns))[:count]


def _ways(said: str) -> Iterator[str]:
    """The first five have nothing in common; those behind them combine the same."""
    core = _core(said)
    frames = [frame for frame in _frames(core) if _key(frame.format(core)) != _key(said)]
    for turn in range(COUNT_MAX):
        frame = frames[turn % len(frames)]
        reworded = _in_other_words(core, turn)
        yield from (
            reworded,
            frame.format(reworded or core if turn else core),
            _turned(reworded or core, turn),
            _shortened(core, turn),
            _mistyped(frame.format(core) if turn else core, turn),
            frame.format(_shortened(core, turn) or core),
            _mistyped(reworded, turn),
        )


def _frames(core: str) -> tuple[str, ...]:
    if _SITUATION.search(core):
        return _SITUATIONS
    words = core.lower().split()
    return _ORDERS if is_order(words[0]) or is_order(" ".join(words[:2])) else _TOPICS


def _core(said: str) -> str:
    """Without what makes it a question or a wish; never empty."""
    core = said.rstrip("?!. ") or said
    while (shorter := _OPENINGS.sub("", core)) != core and shorter:
        core = shorter
    return core


def _in_other_words(core: str, turn: int) -> str:
    """Each word that has others gives way to the next of them; empty if none has."""
    words = core.split(" ")
    orders = _frames(core) is _ORDERS
    changed = False
    for at, word in enumerate(words):
        bare = word.strip(",;:").lower()
        as_order = orders and (at == 0 or words[at - 1].lower() in ("and", "or", "to", "then"))
        if bare and (others := alternatives(bare, as_order=as_order)):
            words[at] = word.lower().replace(bare, others[(turn + at) % len(others)])
            changed = True
    return " ".join(words) if changed else ""


def _turned(core: str, turn: int) -> str:
    """The second part first; empty for one word."""
    joints = [joint for joint in _JOINTS if joint in core]
    if joints:
        joint = joints[turn % len(joints)]
        first, _, second = core.partition(joint)
        if joint in _TURNED_WITH_JOINT:
            return f"{joint.strip()} {second}, {first}"
        return f"{second}{joint}{first}"
    words = core.split()
    if len(words) < 2:
        return ""
    middle = 1 + turn % (len(words) - 1)
    return f"{' '.join(words[middle:])}, {' '.join(words[:middle])}"


def _shortened(core: str, turn: int) -> str:
    """Keywords only, and of four or more not even all."""
    words = [word for word in core.split() if word.lower() not in STOP_WORDS]
    if len(words) > 3:
        del words[(turn + 1) % len(words)]
    return " ".join(words).lower()


def _mistyped(text: str, turn: int) -> str:
    """Two letters change places, one is missing, or one stands twice, in a long word; empty if there is none."""
    words = text.split(" ")
    long = sorted((at for at, word in enumerate(words) if len(word) > 3), key=lambda at: -len(words[at]))
    if not long:
        return ""
    at = long[turn % len(long)]
    word = words[at]
    place = 1 + (turn + len(word)) % (len(word) - 2)
    slips = (
        word[:place] + word[place + 1] + word[place] + word[place + 2 :],
        word[:place] + word[place + 1 :],
        word[:place] + word[place] + word[place:],
    )
    words[at] = slips[turn % len(slips)]
    return " ".join(words)


def _key(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower())) or text
