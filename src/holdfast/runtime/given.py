"""What a caller may give in several shapes: a message, a store; and what is said where it cannot be taken."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.canonical.blocks import Base64Source, Block, FileSource, Image, Text, UrlSource
from holdfast.catalog.lookup import shipped_models
from holdfast.catalog.overrides import with_overrides
from holdfast.errors import UserError
from holdfast.events.log import Log
from holdfast.runtime.compose import config_of
from holdfast.runtime.options import Options
from holdfast.stores.open import open_store

UNDER_WAY = (
    "a turn is under way in this session; wait for it, or use a second session "
    "(a stream that was left early is under way until it is closed: put it into contextlib.aclosing)"
)


def content_of(message: str | Block | Sequence[Block]) -> tuple[Block, ...]:
    if isinstance(message, str):
        return (Text(message),)
    content = tuple(message) if isinstance(message, list | tuple) else (message,)
    if strange := [one.text for one in content if isinstance(one, Text) and not isinstance(one.text, str)]:
        raise UserError(f"the text of a message must be text, not {type(strange[0]).__name__}")
    for image in (one for one in content if isinstance(one, Image)):
        _check_source(image.source)
    if isinstance(message, Text | Image | list | tuple):
        return content
    raise UserError(f"a message is text or a list of text and images, not {type(message).__name__}")


def _check_source(source: object) -> None:
    match source:
        case Base64Source(media_type=str(), data=str()) | UrlSource(url=str()) | FileSource(file_id=str()):
            return
        case _:
            raise UserError(
                "an image is made of Base64Source(media_type, data) with its bytes as base64 text, "
                f"UrlSource(url) or FileSource(file_id); this one is made of {type(source).__name__}, or not of text"
            )


def not_open(closed_id: str | None) -> UserError:
    """Why nothing can be said in a session: it was closed, under this id, or never entered."""
    if closed_id is None:
        return UserError("the session is not open: use it as `async with Session.create(...) as session`")
    return UserError(f"the session is not open any more: go on with it as `Session.resume({closed_id!r}, ...)`")


def no_session(log: Log, session_id: str) -> UserError:
    known = [row.id for row in log.sessions(limit=3)]
    newest = f"; the newest are {', '.join(known)}" if known else "; the store holds no session yet"
    return UserError(f"there is no session {session_id!r}{newest} (`holdfast sessions list` shows all)")


def open_log(options: Options) -> tuple[Log, bool]:
    """The store to use, and whether it is ours to close."""
    store = options.get("store")
    if store is not None and not isinstance(store, str | Path):
        return store, False
    config = config_of(options)
    address = config.db_path if store is None else str(store)
    return open_store(address, models=with_overrides(shipped_models(), config.models)), True
