"""A credential of each format that must not leave; none of them is real."""

LETTERS = "AbCdEfGhIjKlMnOpQrStUvWxYz"
DIGITS = "0123456789"

SECRETS = {
    "our own key": "hf_0123456789abcdef_" + "0123456789abcdef" * 4,
    "Hugging Face": "hf_" + LETTERS + "abcdefgh",
    "Anthropic": "sk-ant-api03-AbCdEf_123456",
    "Anthropic without digits": "sk-ant-very-secret",
    "OpenAI": "sk-" + "abcdefghijklmnop",
    "OpenAI project": "sk-proj-" + DIGITS,
    "Stripe": "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "Stripe restricted": "rk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "Groq": "gsk_" + LETTERS,
    "xAI": "xai-" + LETTERS,
    **{f"GitHub {kind}": f"gh{kind}_{DIGITS}abcdefghijABCDEFGHIJ" for kind in "pousr"},
    "GitHub fine-grained": "github_pat_" + "11ABCDEFG0abcdefghij_" + LETTERS * 2,
    "GitLab": "glpat-" + "AbCdEf-0123456789_xy",
    "npm": "npm_" + LETTERS + DIGITS,
    **{f"Slack {kind}": f"xox{kind}-1234567890-abcdef" for kind in "abp"},
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "AWS session": "ASIA" + "IOSFODNN7EXAMPLE",
    "Google": "AIza" + "Sy_0123456789abcdefghijklmnopqrst",
    "Google AQ": "AQ." + LETTERS,
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "bearer": "Bearer AbCd.EfGh-0123456789",
    "PEM": "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\ndef\n-----END RSA PRIVATE KEY-----",
    "PEM that is cut off": "-----BEGIN PRIVATE KEY-----\nMIIEabc\ndef",
    "database URL": "postgresql://ann:s3cret@db.example.org/x",
    "assignment": "DB_PASSWORD=hunter2",
}
