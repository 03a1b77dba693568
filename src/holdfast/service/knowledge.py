"""What is known of the project that the service was started in: items, their digest, and the harvest of sessions."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from holdfast.errors import UserError
from holdfast.events.payloads import EpochOpened
from holdfast.knowledge.digest import Digest, change, make_digest, pending_words
from holdfast.knowledge.folder import DIGEST, DISABLED, KnowledgeFolder, knowledge_folder
from holdfast.knowledge.harvest import HarvestPlan, Outcome, apply_harvest, plan_harvest, read_pages
from holdfast.knowledge.items import Category, Item, Status, as_told
from holdfast.knowledge.journal import read_journal
from holdfast.knowledge.pages import all_items
from holdfast.knowledge.screening import holds_secret
from holdfast.knowledge.shelf import item_named, items_in, remove_item, replace_item
from holdfast.runtime.knowing import LAYER, project_files, spoken_in
from holdfast.service.failures import RefusedError, not_found
from holdfast.service.routes import Route, route
from holdfast.service.service import Service
from holdfast.sources.text import read_text

ITEMS_LISTED_MAX = 1_000
TEXT_CHARACTERS_MAX = 4_000
HOUR_SECONDS = 3_600

Answered = TypeVar("Answered")


class KnowledgeSource(msgspec.Struct, frozen=True):
    """Message `number` of a session, and who spoke there."""

    session_id: str
    number: int
    origin: Literal["user", "model", "tool"]


class KnowledgeItem(msgspec.Struct, frozen=True):
    """`held_back` is why it is not in the digest, and empty where nothing keeps it out; days are YYYY-MM-DD."""

    id: str
    category: Category
    text: str
    done: bool
    status: Status
    superseded_by: str
    scope: str
    first_seen: str
    last_seen: str
    sources: tuple[KnowledgeSource, ...]
    approved: bool
    edited: bool
    flagged: str
    held_back: str


class CategoryCount(msgspec.Struct, frozen=True):
    category: Category
    items: int
    held_back: int


class KnowledgeReply(msgspec.Struct, frozen=True):
    """In the order of the pages; `items_total` are there, of the category that was asked for if one was."""

    on: bool
    categories: tuple[CategoryCount, ...]
    items: tuple[KnowledgeItem, ...]
    items_total: int


class DigestReply(msgspec.Struct, frozen=True):
    """`pending` says that a newer one waits: for the session that was asked about, else that the pages have changed."""

    on: bool
    exists: bool
    text: str
    size_bytes: int
    items: int
    sha256: str
    session_id: str | None
    pending_items: int
    pending: str


class HarvestedSession(msgspec.Struct, frozen=True):
    session_id: str
    said_bytes: int
    items: int
    secrets: int


class DigestChange(msgspec.Struct, frozen=True):
    """From `first_byte` on the digest is another one; so many tokens of it are written anew by a new session."""

    first_byte: int
    bytes_before: int
    bytes_after: int
    items: int
    invalidated_tokens: int


class HarvestReply(msgspec.Struct, frozen=True):
    """What was done, or without `apply` what would be; `model_tokens` is what a model would read, were it asked."""

    applied: bool
    sessions: tuple[HarvestedSession, ...]
    known_sessions: int
    new_items: int
    merged_items: int
    secrets: int
    model_tokens: int
    digest_change: DigestChange | None


class Removed(msgspec.Struct, frozen=True):
    removed: str


class ItemListing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    category: Category | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=ITEMS_LISTED_MAX)] = 200
    skip: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0


class OneItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    item_id: str


class ItemEdit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is not named stays as it is."""

    item_id: str
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)] | None = None
    done: bool | None = None
    approved: bool | None = None
    status: Status | None = None
    superseded_by: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")] | None = None


class HarvestOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing is written unless `apply` is said. A session that was quiet for so long is over, too."""

    apply: bool = False
    quiet_hours: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 24.0


class DigestQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session_id: str | None = None


async def list_items(service: Service, request: ItemListing) -> KnowledgeReply:
    def read(folder: KnowledgeFolder) -> KnowledgeReply:
        items = items_in(folder)
        chosen = [one for one in items if request.category in (None, one.category)]
        shown = chosen[request.skip : request.skip + request.limit]
        return KnowledgeReply(_is_on(folder), _counts(items), tuple(map(_told, shown)), len(chosen))

    return await _answered(service, read)


async def show_item(service: Service, request: OneItem) -> KnowledgeItem:
    return await _answered(service, lambda folder: _told(_known(folder, request.item_id)))


async def edit_item(service: Service, request: ItemEdit) -> KnowledgeItem:
    def edit(folder: KnowledgeFolder) -> KnowledgeItem:
        before = _known(folder, request.item_id)
        said = ("text", "done", "approved", "status", "superseded_by")
        changes = {name: value for name in said if (value := getattr(request, name)) is not None}
        if request.text is not None:
            changes["text"] = _sound(request.text)
        replace_item(folder, msgspec.structs.replace(before, **changes))
        return _told(_known(folder, request.item_id))

    return await _answered(service, edit)


async def delete_item(service: Service, request: OneItem) -> Removed:
    def remove(folder: KnowledgeFolder) -> Removed:
        _known(folder, request.item_id)
        remove_item(folder, request.item_id)
        return Removed(request.item_id)

    return await _answered(service, remove)


async def harvest(service: Service, request: HarvestOrder) -> HarvestReply:
    def run(folder: KnowledgeFolder) -> HarvestReply:
        sessions = list(
            spoken_in(
                service.log,
                at=service.clock(),
                workspace=service.workspace,
                simulated=service.simulated,
                quiet_seconds=request.quiet_hours * HOUR_SECONDS,
                known=read_journal(folder).seen,
            )
        )
        plan = plan_harvest(folder, sessions)
        done = apply_harvest(folder, sessions, project=project_files(service.workspace)) if request.apply else None
        return _harvested(plan, done)

    return await _answered(service, run)


async def show_digest(service: Service, request: DigestQuestion) -> DigestReply:
    def read(folder: KnowledgeFolder) -> DigestReply:
        on = _is_on(folder)
        text = read_text(folder.read(DIGEST) or b"") if on else ""
        if request.session_id is None:
            now = make_digest(all_items(read_pages(folder))) if on else Digest("")
            waiting = change(text, now.text).items
        else:
            waiting = change(_pinned(service, request.session_id), text).items
        raw = text.encode()
        shown = Digest(text, sum(line.startswith("- ") for line in text.split("\n")))
        return DigestReply(
            on=on,
            exists=bool(text),
            text=text,
            size_bytes=len(raw),
            items=shown.items,
            sha256=shown.sha256,
            session_id=request.session_id,
            pending_items=waiting,
            pending=pending_words(waiting),
        )

    return await _answered(service, read)


async def _answered(service: Service, work: Callable[[KnowledgeFolder], Answered]) -> Answered:
    if service.workspace is None:
        raise RefusedError(409, "no_workspace", "the service was not started in a project")
    folder = knowledge_folder(service.workspace, service.workspace)
    try:
        return await asyncio.to_thread(work, folder)
    except UserError as error:
        raise RefusedError(409, "knowledge_in_use", str(error)) from error


def _known(folder: KnowledgeFolder, wanted: str) -> Item:
    item = item_named(folder, wanted)
    if item is None:
        raise not_found("item", wanted)
    return item


def _sound(text: str) -> str:
    if holds_secret(text):
        raise RefusedError(422, "holds_secret", "the text looks as if it held a credential, and is not kept")
    told = as_told(text)
    if not told:
        raise RefusedError(422, "invalid_body", "the text says nothing", details={"field": "text"})
    return told


def _is_on(folder: KnowledgeFolder) -> bool:
    return folder.read(DISABLED) is None


def _pinned(service: Service, session_id: str) -> str:
    text: str | None = None
    for event in service.log.read(session_id):
        if isinstance(event.payload, EpochOpened):
            text = next((one.text for one in event.payload.system if one.layer == LAYER), "")
    if text is None:
        raise not_found("session", session_id)
    return text


def _counts(items: Sequence[Item]) -> tuple[CategoryCount, ...]:
    counts: dict[Category, list[int]] = {}
    for item in items:
        both = counts.setdefault(item.category, [0, 0])
        both[0] += 1
        both[1] += bool(item.held_back)
    return tuple(CategoryCount(category, whole, held) for category, (whole, held) in counts.items())


def _told(item: Item) -> KnowledgeItem:
    return KnowledgeItem(
        id=item.id,
        category=item.category,
        text=item.text,
        done=item.done,
        status=item.status,
        superseded_by=item.superseded_by,
        scope=item.scope,
        first_seen=item.first_seen,
        last_seen=item.last_seen,
        sources=tuple(KnowledgeSource(one.session, one.number, one.origin) for one in item.sources),
        approved=item.approved,
        edited=item.edited,
        flagged=item.flagged,
        held_back=item.held_back,
    )


def _harvested(plan: HarvestPlan, done: Outcome | None) -> HarvestReply:
    change_made = None
    if done is not None:
        it = done.change
        tokens = it.bytes_changed // 4
        change_made = DigestChange(it.first_byte, it.bytes_before, it.bytes_after, it.items, tokens)
    return HarvestReply(
        applied=done is not None,
        sessions=tuple(
            HarvestedSession(one.session, one.said_bytes, len(one.found.items), one.found.secrets)
            for one in plan.sources
        ),
        known_sessions=plan.known,
        new_items=plan.new_items,
        merged_items=plan.merged_items,
        secrets=plan.secrets,
        model_tokens=plan.model_tokens,
        digest_change=change_made,
    )


_ITEM = "/api/knowledge/items/{item_id}"

# Whatever quotes what was said needs the scope that may see prompts.
ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/api/knowledge",
        list_items,
        request=ItemListing,
        reply=KnowledgeReply,
        rule="admin",
        summary="What is known of the project, item by item.",
        refusals=(409,),
    ),
    route(
        "GET",
        _ITEM,
        show_item,
        request=OneItem,
        reply=KnowledgeItem,
        rule="admin",
        summary="One item, with its sources.",
        refusals=(404, 409),
    ),
    route(
        "PUT",
        _ITEM,
        edit_item,
        request=ItemEdit,
        reply=KnowledgeItem,
        rule="admin",
        summary="Change an item, or approve of it; what a person says wins over what is harvested.",
        refusals=(404, 409),
    ),
    route(
        "DELETE",
        _ITEM,
        delete_item,
        request=OneItem,
        reply=Removed,
        rule="admin",
        summary="Remove an item; no harvest brings it back.",
        refusals=(404, 409),
    ),
    route(
        "POST",
        "/api/knowledge/harvest",
        harvest,
        request=HarvestOrder,
        reply=HarvestReply,
        rule="admin",
        summary="What sessions that are over would add to what is known; with `apply` it is added.",
        refusals=(409,),
    ),
    route(
        "GET",
        "/api/knowledge/digest",
        show_digest,
        request=DigestQuestion,
        reply=DigestReply,
        rule="admin",
        summary="What new sessions are told, and whether a newer digest waits for a session.",
        refusals=(404, 409),
    ),
)
