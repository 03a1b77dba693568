"""Masks credentials in text that leaves the process, recognised by the formats in which they are issued."""

import re

REDACTION_MASK = "[redacted]"

_FORMATS = (
    # Private keys in PEM, our own service keys, OpenAI and Anthropic, GitHub, Google, AWS, Slack, JWTs, bearer tokens,
    # and passwords in URLs.
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\bhf_[0-9a-f]{16}_[0-9a-f]{64}\b",
    r"\bsk-[A-Za-z0-9_-]{8,}",
    r"\b(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,}",
    r"\bAIza[0-9A-Za-z_-]{30,}",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*",
    r"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}",
    r"(?<=://)[^\s/:@]{1,200}:[^\s/@]{1,200}(?=@)",
)
# A secret of any format, if it is assigned to a telling name.
_ASSIGNMENT = re.compile(
    r"""(?ix) ( (?:password|passwd|secret|api[_-]?key|access[_-]?token) [\w-]{0,40}
    ["']? \s{0,3} [=:] \s{0,3} )
    ( "[^"\n]{1,400}" | '[^'\n]{1,400}' | [^\s"',;}{)(\]\[]{1,400} )"""
)
_CREDENTIAL = re.compile("|".join(f"(?:{pattern})" for pattern in _FORMATS))


def redact_secrets(text: str) -> str:
    """The text with everything that looks like a credential replaced by a mask."""
    return _ASSIGNMENT.sub(lambda match: f"{match[1]}{REDACTION_MASK}", _CREDENTIAL.sub(REDACTION_MASK, text))
