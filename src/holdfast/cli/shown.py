"""How an error is shown that may name what others wrote."""


def visible(message: str) -> str:
    """Without what would move the cursor, or colour the rest of the screen."""
    return "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in message)
