"""Synonyms for paraphrasing requests."""

import re

# Written by hand from what people ask agents in general; verbs first.
VERBS: tuple[tuple[str, ...], ...] = (
    ("write", "draft", "compose"),
    ("fix", "repair", "mend", "resolve"),
    ("deploy", "ship", "roll out"),
    ("release", "publish", "launch"),
    ("review", "inspect", "look over", "go through"),
    ("test", "check", "try out"),
    ("verify", "confirm", "validate"),
    ("create", "make", "set up", "build"),
    ("delete", "remove", "get rid of", "erase"),
    ("update", "change", "modify", "revise"),
    ("find", "locate", "look for", "search for"),
    ("show", "display", "present"),
    ("explain", "describe", "clarify"),
    ("summarize", "sum up", "condense"),
    ("merge", "combine", "join"),
    ("split", "divide", "break up"),
    ("start", "begin", "kick off"),
    ("stop", "halt", "end"),
    ("finish", "complete", "wrap up"),
    ("run", "execute", "carry out"),
    ("install", "set up", "add"),
    ("configure", "set up", "adjust"),
    ("debug", "troubleshoot", "track down"),
    ("refactor", "restructure", "clean up"),
    ("rename", "call differently", "relabel"),
    ("move", "shift", "relocate"),
    ("copy", "duplicate", "replicate"),
    ("send", "mail", "forward"),
    ("fetch", "get", "retrieve"),
    ("read", "go through", "study"),
    ("plan", "lay out", "prepare"),
    ("estimate", "gauge", "assess"),
    ("compare", "contrast", "weigh"),
    ("analyze", "examine", "study"),
    ("convert", "turn", "transform"),
    ("extract", "pull out", "take out"),
    ("translate", "render", "put into other words"),
    ("schedule", "arrange", "book"),
    ("cancel", "call off", "drop"),
    ("approve", "accept", "sign off on"),
    ("reject", "refuse", "turn down"),
    ("assign", "give", "hand over"),
    ("claim", "take", "pick up"),
    ("escalate", "raise", "pass up"),
    ("report", "tell about", "notify of"),
    ("ask", "inquire", "request"),
    ("answer", "reply", "respond"),
    ("document", "write down", "record"),
    ("measure", "gauge", "benchmark"),
    ("improve", "enhance", "better"),
    ("speed up", "accelerate", "optimize"),
    ("reduce", "lower", "cut"),
    ("increase", "raise", "grow"),
    ("handle", "deal with", "treat"),
    ("use", "employ", "work with"),
    ("commit", "check in", "save"),
    ("revert", "undo", "roll back"),
    ("backup", "save a copy of", "archive"),
    ("restore", "recover", "bring back"),
    ("monitor", "watch", "keep an eye on"),
    ("close", "shut", "finish"),
    ("open", "start", "unlock"),
    ("buy", "purchase", "order"),
    ("sell", "offer", "trade"),
    ("pay", "settle", "transfer"),
    ("block", "stop", "hold up"),
)
OTHER_WORDS: tuple[tuple[str, ...], ...] = (
    ("bug", "defect", "fault"),
    ("error", "failure", "problem"),
    ("issue", "ticket", "problem"),
    ("task", "job", "piece of work"),
    ("file", "document"),
    ("folder", "directory"),
    ("picture", "image", "photo"),
    ("code", "source", "program"),
    ("function", "routine", "method"),
    ("changelog", "release notes", "list of changes"),
    ("docs", "documentation", "manual"),
    ("meeting", "call", "appointment"),
    ("customer", "client", "user"),
    ("boss", "manager", "supervisor"),
    ("colleague", "coworker", "teammate"),
    ("company", "firm", "business"),
    ("password", "credentials", "secret"),
    ("permission", "access", "right"),
    ("database", "data store"),
    ("table", "grid", "spreadsheet"),
    ("chart", "graph", "diagram"),
    ("invoice", "bill"),
    ("price", "cost", "rate"),
    ("money", "funds", "cash"),
    ("budget", "allowance", "spending limit"),
    ("deadline", "due date", "time limit"),
    ("server", "host", "machine"),
    ("website", "site", "web page"),
    ("branch", "line of work"),
    ("version", "edition"),
    ("question", "query"),
    ("result", "outcome"),
    ("rule", "guideline", "policy"),
    ("step", "stage"),
    ("example", "sample"),
    ("message", "note"),
    ("email", "mail", "letter"),
    ("plan", "roadmap", "outline"),
    ("big", "large", "huge"),
    ("small", "little", "minor"),
    ("fast", "quick"),
    ("slow", "sluggish"),
    ("new", "fresh", "recent"),
    ("old", "former", "stale"),
    ("broken", "failing", "defective"),
    ("important", "critical", "key"),
    ("urgent", "pressing"),
    ("wrong", "incorrect", "off"),
    ("whole", "entire", "complete"),
    ("many", "a lot of", "several"),
)


def _synonym_table(groups: tuple[tuple[str, ...], ...]) -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for word in group:
            table.setdefault(word, tuple(other for other in group if other != word))
    return table


_VERB_SYNONYMS = _synonym_table(VERBS)
_WORD_SYNONYMS = _synonym_table(OTHER_WORDS)
_GERUND_SYNONYMS: dict[str, tuple[str, ...]] = {}
_DOUBLES_CONSONANT = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")


def is_imperative(word: str) -> bool:
    """Whether these one or two lower-case words can start an imperative request."""
    return word in _VERB_SYNONYMS


def find_synonyms(word: str, *, as_order: bool) -> tuple[str, ...]:
    """Synonyms of a lower-case word in the same form; verbs have them only in imperative position."""
    if as_order and word in _VERB_SYNONYMS:
        return _VERB_SYNONYMS[word]
    if word in _WORD_SYNONYMS:
        return _WORD_SYNONYMS[word]
    if word.endswith("s") and word[:-1] in _WORD_SYNONYMS:
        return tuple(_plural(other) for other in _WORD_SYNONYMS[word[:-1]])
    return _GERUND_SYNONYMS.get(word, ())


def _gerund(verb: str) -> str:
    first, space, rest = verb.partition(" ")
    if _DOUBLES_CONSONANT.fullmatch(first):
        first += first[-1]
    elif first.endswith("e") and not first.endswith("ee"):
        first = first[:-1]
    return f"{first}ing{space}{rest}"


def _plural(noun: str) -> str:
    if noun.endswith("s") and not noun.endswith("ss"):
        return noun
    if noun.endswith(("ss", "x", "ch", "sh")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"


_GERUND_SYNONYMS.update({_gerund(verb): tuple(map(_gerund, others)) for verb, others in _VERB_SYNONYMS.items()})
