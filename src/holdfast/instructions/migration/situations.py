"""Phrase titles as situations: what somebody is about to do who needs the text, in the words of an intent."""

import re

from holdfast.retrieval.synonyms import is_imperative

PHRASE_CHARACTERS_MAX = 80

_VERBS_TEXT = """
add adopt annotate answer apply approve archive ask assign audit avoid backport benchmark bootstrap branch
build bump call change check checkout choose claim clean clone close code commit compile comply compose
configure connect contribute convert copy create customize cut debug decide define delegate delete deploy
deprecate describe design detect develop diagnose document download edit embed enable ensure escalate estimate
evaluate execute explain explore export expose extend extract fail fetch file find finish fix follow format
generate handle hand identify implement import improve include inspect install integrate investigate invoke
issue keep land launch lint list load localize log look maintain make manage measure merge migrate mock modify
monitor move name navigate open operate optimize organize package page parse patch pause perform pick plan
prefer prepare preserve prevent profile propose protect provide publish push query raise read rebase recall
record refactor register release remove rename render replace reply report reproduce request resolve respond
restart restore retry return reuse revert review rewrite roll rotate run scaffold schedule search secure
select send set ship sign simplify skip solve spawn specify stage start stop store structure submit switch
sync test think touch trace track translate transform triage troubleshoot tune understand undo update upgrade
use validate verify version view wait wake work wrap write
announce attach authorize buy cancel collect compare confirm draft get give grant inform invite join leave notify pay
put recover reduce reject renew reset save share summarise summarize take teach tell unlock upload warn
"""
_VERBS = frozenset(_VERBS_TEXT.split())
_NOUNS_TOO_TEXT = """
code commit design draft issue leave log package page plan profile release report review share stage test version view
"""
_NOUNS_TOO = frozenset(_NOUNS_TOO_TEXT.split())

_TOPICS: tuple[tuple[str, str], ...] = (
    (r"wrap.?up|finish|before (?:you )?(?:submit|commit|push)|checklist", "finish a task and wrap up"),
    (r"pull requests?|\bprs?\b", "open a pull request"),
    (r"code review|review", "review a change"),
    (r"commit", "commit a change"),
    (r"\bbranch|\bgit\b|worktree", "work with branches in git"),
    (r"release|changelog|changeset|versioning", "release a new version"),
    (r"deploy|rollout", "deploy a change"),
    (r"\bci\b|workflow files?|github actions", "fix a failing check in CI"),
    (r"test|coverage", "write or run tests"),
    (r"lint|format", "lint and format code"),
    (r"style|convention|guideline|standard|principle|best practice", "write code in our style"),
    (r"\btyp(?:e|es|ing)\b", "add types to code"),
    (r"error|exception|failure", "handle an error"),
    (r"debug|troubleshoot|pitfall|gotcha|common (?:issues|mistakes)", "find out why something fails"),
    (r"logg?ing|telemetry|observab|metric", "add logging or telemetry"),
    (r"secur|secret|credential|auth\b|authenticat|permission", "handle credentials or permissions"),
    (r"performance|latency|speed", "make something faster"),
    (r"depend|package manager|lock ?file", "add or upgrade a dependency"),
    (r"database|schema|migration|\bsql\b", "change the database schema"),
    (r"\bapi\b|endpoint|route|rest\b", "add or change an API endpoint"),
    (r"document|\bdocs?\b|readme|docstring", "write documentation"),
    (r"setup|set up|install|getting started|environment|prerequisite|onboard", "set up the development environment"),
    (r"build|compil|bundl", "build the project"),
    (r"command|script|cheat ?sheet|quick reference", "look up which command to run"),
    (r"architect|structure|layout|overview|director|organi[sz]ation|map\b|where things", "find where code belongs"),
    (r"component|frontend|\bui\b|css|styling", "build a user interface component"),
    (r"config|setting|option|flag|environment variable", "change the configuration"),
    (r"agent|prompt|llm|model", "work on an agent or its prompts"),
    (r"example|template|pattern|snippet", "follow an existing pattern"),
    (r"resource|link|reference|further reading|see also", "look for more documentation"),
    (r"communicat|escalat|tone|voice", "report to people or escalate"),
    (r"never|must not|don'?ts?\b|forbidden|prohibit|constraint|boundar|limits", "decide whether something is allowed"),
)  # fmt: skip

_GENERIC_TEXT = """
checklist conventions etiquette guide guidelines guides hygiene instructions layout naming organization
overview patterns philosophies philosophy policies policy practices principles procedure process rules
standards steps strategy structure style tips workflow workflows
"""
_GENERIC = frozenset(_GENERIC_TEXT.split())
_LEADING = re.compile(r"^(?:[\W_]*(?:\d+(?:\.\d+)*[.):]?|step \d+[:.]?|[a-z][.)])\s+)*[\W_]*", re.I)
_HOW_TO = re.compile(
    r"^(?:how (?:to|do (?:i|we|you))|guide to|steps to|instructions for|rules? for|notes? on)\s+", re.I
)
_WHEN = re.compile(r"^(?:when|before|after|if|while|whenever)\b", re.I)
_SITUATED = re.compile(
    r"\b(?:am|is|are|was|were|has|have|had|needs?|wants?|asks?|fails?|failed|cannot|can't|about to|going to|allowed)\b",
    re.I,
)


def strip_title(title: str) -> str:
    """A title without leading numbering and surrounding punctuation."""
    return _LEADING.sub("", title).rstrip(" :.!*_#-–—") or title.strip()


def base_verb(word: str) -> str | None:
    """The base form of a verb, from the imperative or the -ing form; None for an unknown verb."""
    word = word.lower()
    if word in _VERBS or is_imperative(word):
        return word
    if not word.endswith("ing") or len(word) < 5:
        return None
    stem = word[:-3]
    # running -> run, writing -> write.
    undoubled = stem[:-1] if len(stem) > 2 and stem[-1] == stem[-2] else stem
    return next(
        (candidate for candidate in (stem, f"{stem}e", undoubled) if candidate in _VERBS or is_imperative(candidate)),
        None,
    )


def describe_situation(title: str) -> str:
    """What somebody is about to do who needs the text under this title; empty for an empty title."""
    plain = _HOW_TO.sub("", strip_title(title))[:PHRASE_CHARACTERS_MAX].strip()
    words = _sentence_case(plain).split()
    if not words:
        return ""
    if _WHEN.match(plain):
        return " ".join(words)
    if words[-1].lower() in _GENERIC:
        return f"follow the {' '.join(words)}"
    verb = base_verb(words[0])
    if verb is not None and not (verb in _NOUNS_TOO and words[0].lower() == verb):
        return " ".join((verb, *words[1:])) if len(words) > 1 else f"{verb} something"
    return f"work on {' '.join(words)}"


def find_topics(text: str) -> tuple[str, ...]:
    """Situations in which texts about such topics are usually needed, in the order of the table."""
    lowered = text.lower()
    return tuple(phrase for pattern, phrase in _TOPICS if re.search(pattern, lowered))


def is_situation(trigger: str) -> bool:
    """Whether a trigger describes an action or a situation rather than the content of a text."""
    words = re.findall(r"[a-z']+", trigger.lower())
    if not words:
        return False
    starts_with_verb = base_verb(words[0]) is not None and not (len(words) == 1 and words[0] in _NOUNS_TOO)
    is_question = words[0] in ("how", "what", "which", "who", "where", "why", "may", "can", "should", "i", "we")
    return starts_with_verb or is_question or _WHEN.match(trigger) is not None or _SITUATED.search(trigger) is not None


def _sentence_case(title: str) -> str:
    """Lowercase the words of a title in title case; names within a sentence keep their capitals."""
    words = title.split()
    written = [word for word in words if word[:1].isalpha()]
    is_title = all(word[:1].isupper() or len(word) < 4 for word in written)
    return " ".join(
        word.lower() if (is_title or not number) and word[:1].isupper() and word[1:].islower() else word
        for number, word in enumerate(words)
    )
