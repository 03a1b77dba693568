"""What looks like a credential does not leave, what does not is left alone, and no text takes long."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.secret_examples import SECRETS

from holdfast.redaction import REDACTION_MASK, SHORT_TEXT_CHARS, redact_secrets, redact_values

INNOCUOUS = (
    "ask-me task-force-operations risk-assessment-2026-q1 disk-usage-1234567890",
    "sk-fading-circle sk-estimator-doc-link the key word is sk-1 .sk-toggleable__content",
    "npm_config_registry npm_lifecycle_event hf_hub_download hf_transfer ghp_pages gho_st",
    "ASIAPACIFIC AKIA asia-southeast1 AIza xox- glpat- eyJ eyJhbGciOiJIUzI1NiJ9",
    "Bearer authentication is required; send a key as `Authorization: Bearer KEY`",
    "the password is long; password reset; a secret ballot; api_key; access tokens expire",
    "def login(user: str, password: str, api_key: str | None = None) -> None:",
    "Client(password=password, api_key=self._api_key, secret=settings.secret)",
    "secret = get_secret(); api_key = os.environ['KEY']; password == other; api_key: Optional[str]",
    "password=${DB_PASSWORD} password=$DB_PASSWORD password=<your password> password=",
    "http://localhost:8080/a?mail=ann@example.org https://example.org:443/@scope git@github.com:a/b.git",
    "-----BEGIN PUBLIC KEY----- -----BEGIN CERTIFICATE----- PRIVATE KEY",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 3fa85f64-5717-4562-b3fc-2c963f66afa6",
    "max_tokens: 200000 > 64000, cache_read_tokens=4096 token: 5 tokens",
)
HOSTILE = (
    *(
        "password",
        "password=",
        "password ",
        'password="',
        'password=\\"\\',
        "password:|||",
        "secret=a(",
        "a-",
        "1",
        " ",
    ),
    *("://x", "://a:b", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----END ", "eyJaaaaaaaaaa-", "eyJaaaa."),
    *("sk-", "sk-aaaaaaa ", "sk-ant-", "bearer ", "Bearer aaaaaaa", "ghp_", "hf_0123456789abcdef_", "glpat-", "xoxb-"),
    *(" ", ":/:", "npm_", "AKIA", "AQ.", "ya29.", "authorization: basic ", "k_live_", "github_pat_"),
)

words = st.text(st.sampled_from("abc xyz.,\n(äñ)"), max_size=40)
fragments = st.lists(st.sampled_from([*SECRETS.values(), *HOSTILE, "a", "0", "-", "@", "'", '"', "\n"]), max_size=6)


@given(words, st.sampled_from(sorted(SECRETS)), words)
def test_a_credential_is_masked_at_any_position(before: str, name: str, after: str) -> None:
    shown = redact_secrets(f"{before} {SECRETS[name]} {after}")
    assert SECRETS[name] not in shown
    assert REDACTION_MASK in shown
    assert shown.startswith(before)
    assert shown.endswith(after) or name == "PEM that is cut off"


@pytest.mark.parametrize("text", INNOCUOUS)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact_secrets(text) == text


@given(fragments.map("".join))
def test_what_is_masked_stays_as_it_is(text: str) -> None:
    assert redact_secrets(redact_secrets(text)) == redact_secrets(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Bearer abc.def given", "Bearer [redacted] given"),
        ("Authorization: Bearer abcdefgh1234", "Authorization: Bearer [redacted]"),
        ("authorization: basic dXNlcjpwYXNz", "authorization: basic [redacted]"),
        ("postgresql://ann:s3@cret@db/x", "postgresql://[redacted]@db/x"),
        ("redis://:s3cret@db", "redis://[redacted]@db"),
        ("DB_PASSWORD=hunter2 next", "DB_PASSWORD=[redacted] next"),
        (f"{'LONG_' * 20}PASSWORD=hunter2 next", f"{'LONG_' * 20}PASSWORD=[redacted] next"),
        # Quotes stay, so that JSON remains JSON.
        ('{"api_key": "abc def", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        (r'{"api_key": "a\"b", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        (r'{"text": "{\"api_key\": \"abc def\"}"}', r'{"text": "{\"api_key\": \"[redacted]\"}"}'),
        ("secret: 'a b', more", "secret: '[redacted]', more"),
        ("api_key: str = 'abc'", "api_key: str = '[redacted]'"),
        ("x-api-key: hunter2", "x-api-key: [redacted]"),
        ("password=$ecret1", "password=[redacted]"),
        ('api_key="cut off', 'api_key="[redacted]'),
    ],
)
def test_a_value_is_masked_by_its_name_and_place(text: str, shown: str) -> None:
    assert redact_secrets(text) == shown


@pytest.mark.parametrize("fragment", HOSTILE)
def test_a_megabyte_takes_no_longer_than_it_must(fragment: str) -> None:
    text = (fragment * (1_000_000 // len(fragment) + 1))[:1_000_000]
    started = time.process_time()
    redact_secrets(text + "(")
    # 0.3 s for the slowest; what is quadratic takes hours.
    assert time.process_time() - started < 5


def test_every_string_of_a_document_is_masked_and_nothing_else() -> None:
    document = {"sk-ant-api03-0123456789": [1, None, ("sk-ant-api03-0123456789", {"a": "b"})]}
    assert redact_values(document) == {"sk-ant-api03-0123456789": [1, None, [REDACTION_MASK, {"a": "b"}]]}


@given(st.text(max_size=40), st.sampled_from(HOSTILE), st.text(max_size=40))
def test_a_short_text_is_masked_like_a_long_one(before: str, fragment: str, after: str) -> None:
    text, long = before + fragment[:20] + after, " " * SHORT_TEXT_CHARS
    assert long + redact_secrets(text) == redact_secrets(long + text)
