"""Text that looks like a credential is masked, and other text is unchanged."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.types.redaction import REDACTION_MASK, redact_secrets

CREDENTIALS = (
    "hf_0123456789abcdef_" + "0123456789abcdef" * 4,
    "sk-ant-api03-AbCdEf_123456",
    "sk-proj-0123456789",
    "ghp_0123456789abcdefghijABCDEFGHIJ",
    "AIza" + "Sy_0123456789abcdefghijklmnopqrst",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-1234567890-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
)

words = st.text(st.sampled_from("abc xyz.,\n(äñ)"), max_size=40)


@given(words, st.sampled_from(CREDENTIALS), words)
def test_a_credential_is_masked_at_any_position(before: str, credential: str, after: str) -> None:
    redacted = redact_secrets(f"{before} {credential} {after}")
    assert credential not in redacted
    assert REDACTION_MASK in redacted
    assert redacted.startswith(before)


@given(words)
def test_text_without_a_credential_is_unchanged(text: str) -> None:
    assert redact_secrets(text) == text


@given(st.text(max_size=200))
def test_masked_text_remains_unchanged(text: str) -> None:
    assert redact_secrets(redact_secrets(text)) == redact_secrets(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abcdefgh1234", f"Authorization: Bearer {REDACTION_MASK}"),
        ("postgresql://ann:s3cret@db/x", f"postgresql://{REDACTION_MASK}@db/x"),
        ("DB_PASSWORD=hunter2 next", f"DB_PASSWORD={REDACTION_MASK} next"),
        ('{"api_key": "abc def"}', '{"api_key": ' + REDACTION_MASK + "}"),
        (f"{'LONG_' * 20}PASSWORD=hunter2 next", f"{'LONG_' * 20}PASSWORD={REDACTION_MASK} next"),
        ("secret: 'a b', more", f"secret: {REDACTION_MASK}, more"),
        ("the password is long", "the password is long"),
        ("ask-me", "ask-me"),
        ("task-force-operations", "task-force-operations"),
    ],
)
def test_named_secrets_are_masked_and_mentions_of_them_are_not(text: str, expected: str) -> None:
    assert redact_secrets(text) == expected


@pytest.mark.parametrize("text", ["password" * 20_000, "a-" * 80_000, "://x" * 40_000, "-----BEGIN " * 15_000])
def test_no_text_takes_long(text: str) -> None:
    started = time.process_time()
    redact_secrets(text)
    assert time.process_time() - started < 5
