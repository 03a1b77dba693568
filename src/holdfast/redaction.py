"""Masks credentials in text that leaves the process: errors, logs, telemetry, knowledge, diffs and reports.

This is the only list of secret patterns. Each scans a text of any length in linear time: a search inside a token is
bounded, or it always succeeds, so that no character is read again from a later start.
"""

import functools
import re

REDACTION_MASK = "[redacted]"

# Names such as sk-fading-circle look like keys; a key has a digit early on, or is longer than a word or a name.
_RANDOM = r"(?:(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{8,}|[A-Za-z0-9]{16}[A-Za-z0-9_-]*|[A-Za-z0-9_-]{40,})"

_FORMATS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("PRIVATE KEY",), r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"),
    # Our own keys and Hugging Face's.
    (("hf_",), r"\bhf_(?:[0-9a-f]{16}_[0-9a-f]{8,}|[A-Za-z0-9]{30,})"),
    # Anthropic, OpenAI, OpenRouter and the many that imitate them; then Stripe, Groq, xAI and Perplexity.
    (("sk-",), rf"\bsk-(?:(?:ant|proj|or|svcacct|admin)-[A-Za-z0-9_-]{{6,}}|{_RANDOM})"),
    (("k_live_", "k_test_", "whsec_", "gsk_"), r"\b(?:[rsp]k_(?:live|test)|whsec|gsk)_[A-Za-z0-9]{8,}"),
    (("xai-", "pplx-"), r"\b(?:xai|pplx)-[A-Za-z0-9]{20,}"),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), rf"\b(?:gh[pousr]|github_pat)_{_RANDOM}"),
    (("glpat-",), r"\bglpat-[A-Za-z0-9_.-]{16,}"),
    (("npm_",), r"\bnpm_[A-Za-z0-9]{30,}"),
    (("xox",), r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    # Google's API keys of both forms and its OAuth tokens; AWS key ids.
    (("AIza", "AQ.", "ya29."), r"\b(?:AIza[A-Za-z0-9_-]{12,}|(?:AQ|ya29)\.[A-Za-z0-9_-]{20,})"),
    (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    # JWTs and JWEs: eyJ is {" in base64. Not after a hyphen, so that a run with many eyJ is read once.
    (("eyJ",), r"(?<![\w-])eyJ[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]{4,}){1,4}"),
    # "Bearer authentication" is prose: a token has a digit or inner punctuation, or is long.
    (
        ("earer ", "EARER "),
        r"(?i:(?<=\bbearer ))(?:(?=[A-Za-z/-]{0,60}(?:[0-9_~+=]|\.[A-Za-z0-9]))[\w.~+/=-]{6,}|[\w.~+/=-]{24,})",
    ),
    (("uthorization",), r"(?i:(?<=authorization: basic )|(?<=authorization: token ))[\w.~+/=-]{6,}"),
    # User and password in a URL, up to the last @ of its host part. One slash: a path drops the other. Our own errors
    # show the form of an address as USER:PASSWORD@.
    ((":/",), r"(?:(?<=:/)|(?<=://))(?!/|USER:PASSWORD@)[^\s/:@?#\"'<>]*:[^\s/?#\"'<>]+(?=@)"),
)
"""Literals, one of which is in every text that the pattern matches, and the pattern."""

# Values that a program or a document assigns to such a name without giving a secret away: types, constants, variables,
# calls, and the name itself (`password=password`, `api_key=self._api_key`).
_NOT_A_VALUE = r"""
    (?! = | \$\{?(?-i:[A-Z_]) | [\w.]{1,80}[(\[] | (?:\w{1,40}\.){0,4} _? (?P=name) \b
      | (?: str|string|int|number|bool|boolean|bytes|Any|Optional|None|null|nil|undefined|true|false ) (?![\w.-]) )
"""
_NAME = r"(?: pass(?:word|wd|phrase) | secret | api[_-]?key | access[_-]?token )"
_ASSIGNMENT = rf"""(?ix)
    (?P<name> {_NAME} [\w-]{{0,40}} ) \\?["']? \s{{0,3}} (?: :[\w.\[\]|\ ]{{1,40}}= | [=:] ) \s{{0,3}}
    (?: (?P<open> \\?["'] ) (?: (?!(?P=open)) (?: \\. | [^\n\\] ) )++ (?P<close> (?P=open) )?
      | {_NOT_A_VALUE} (?P<bare> [^\s"',;`<>(){{}}\[\]]++ ) )
"""


SHORT_TEXT_CHARS = 100
"""Up to this length one search for all literals is faster than a look for each; most strings of a report are short."""


def redact_secrets(text: str) -> str:
    """The text with everything that looks like a credential replaced by a mask; quotes around it stay."""
    if len(text) <= SHORT_TEXT_CHARS and _compile_literals().search(text) is None:
        return text
    for literals, pattern in _FORMATS:
        # Looking for a literal is a hundred times faster than a search, and a pattern compiles when it is needed.
        if any(literal in text for literal in literals):
            text = re.sub(pattern, REDACTION_MASK, text)
    return re.sub(_ASSIGNMENT, _mask_value, text) if "=" in text or ":" in text else text


@functools.cache
def _compile_literals() -> re.Pattern[str]:
    literals = (literal for literals, _ in _FORMATS for literal in literals)
    return re.compile("|".join((*map(re.escape, literals), "[=:]")))


def redact_values(value: object) -> object:
    """A JSON value with every string in it redacted; the names of members stay."""
    match value:
        case str():
            return redact_secrets(value)
        case dict():
            return {name: redact_values(member) for name, member in value.items()}
        case list() | tuple():
            return [redact_values(member) for member in value]
        case _:
            return value


def _mask_value(match: re.Match[str]) -> str:
    start = match.start("bare") if match["bare"] is not None else match.end("open")
    return f"{match.string[match.start() : start]}{REDACTION_MASK}{match['close'] or ''}"
