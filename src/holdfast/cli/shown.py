"""Makes error messages that quote untrusted text safe to print."""


def visible(message: str) -> str:
    """Replace control characters by U+FFFD: they could move the cursor or colour the rest of the screen."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in message)
