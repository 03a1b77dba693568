"""HTTP routes for the knowledge of the service's project: items, their digest, and harvesting from sessions."""

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

Result = TypeVar("Result")


class KnowledgeSource(msgspec.Struct, frozen=True):
    """Message `number` of a session, and its author."""

    session_id: str
    number: int
    origin: Literal["user", "model", "tool"]


class KnowledgeItem(msgspec.Struct, frozen=True):
    """`held_back` is the reason why the item is not in the digest, empty if it is; days are YYYY-MM-DD."""

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
    """In page order; `items_total` counts all items of the requested category, or of all categories."""

    on: bool
    categories: tuple[CategoryCount, ...]
    items: tuple[KnowledgeItem, ...]
    items_total: int


class DigestReply(msgspec.Struct, frozen=True):
    """`pending` describes a newer digest: than the one the session uses, else than the one on disk."""

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
    """The digest differs from `first_byte` on; `invalidated_tokens` of it miss the cache in a new session."""

    first_byte: int
    bytes_before: int
    bytes_after: int
    items: int
    invalidated_tokens: int


class HarvestReply(msgspec.Struct, frozen=True):
    """What the harvest did, or without `apply` would do; `model_tokens` is the input a model would need for it."""

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
    """Fields that are not sent stay unchanged."""

    item_id: str
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)] | None = None
    done: bool | None = None
    approved: bool | None = None
    status: Status | None = None
    superseded_by: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")] | None = None


class HarvestOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing is written without `apply`. A session without activity for `quiet_hours` counts as ended."""

    apply: bool = False
    quiet_hours: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 24.0


class DigestQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session_id: str | None = None


async def list_items(context: Service, request: ItemListing) -> KnowledgeReply:
    def read(folder: KnowledgeFolder) -> KnowledgeReply:
        items = items_in(folder)
        selected = [item for item in items if request.category in (None, item.category)]
        page = selected[request.skip : request.skip + request.limit]
        return KnowledgeReply(_is_on(folder), _counts(items), tuple(map(_item_view, page)), len(selected))

    return await _run_in_folder(context, read)


async def show_item(context: Service, request: OneItem) -> KnowledgeItem:
    return await _run_in_folder(context, lambda folder: _item_view(_require_item(folder, request.item_id)))


async def edit_item(context: Service, request: ItemEdit) -> KnowledgeItem:
    def edit(folder: KnowledgeFolder) -> KnowledgeItem:
        before = _require_item(folder, request.item_id)
        fields = ("text", "done", "approved", "status", "superseded_by")
        changes = {name: value for name in fields if (value := getattr(request, name)) is not None}
        if request.text is not None:
            changes["text"] = _check_text(request.text)
        replace_item(folder, msgspec.structs.replace(before, **changes))
        return _item_view(_require_item(folder, request.item_id))

    return await _run_in_folder(context, edit)


async def delete_item(context: Service, request: OneItem) -> Removed:
    def remove(folder: KnowledgeFolder) -> Removed:
        _require_item(folder, request.item_id)
        remove_item(folder, request.item_id)
        return Removed(request.item_id)

    return await _run_in_folder(context, remove)


async def harvest(context: Service, request: HarvestOrder) -> HarvestReply:
    def run(folder: KnowledgeFolder) -> HarvestReply:
        sessions = list(
            spoken_in(
                context.log,
                at=context.clock(),
                workspace=context.workspace,
                simulated=context.simulated,
                quiet_seconds=request.quiet_hours * HOUR_SECONDS,
                known=read_journal(folder).seen,
            )
        )
        plan = plan_harvest(folder, sessions)
        outcome = apply_harvest(folder, sessions, project=project_files(context.workspace)) if request.apply else None
        return _harvest_reply(plan, outcome)

    return await _run_in_folder(context, run)


async def show_digest(context: Service, request: DigestQuestion) -> DigestReply:
    def read(folder: KnowledgeFolder) -> DigestReply:
        on = _is_on(folder)
        text = read_text(folder.read(DIGEST) or b"") if on else ""
        if request.session_id is None:
            current = make_digest(all_items(read_pages(folder))) if on else Digest("")
            pending = change(text, current.text).items
        else:
            pending = change(_pinned_digest(context, request.session_id), text).items
        raw = text.encode()
        digest = Digest(text, sum(line.startswith("- ") for line in text.split("\n")))
        return DigestReply(
            on=on,
            exists=bool(text),
            text=text,
            size_bytes=len(raw),
            items=digest.items,
            sha256=digest.sha256,
            session_id=request.session_id,
            pending_items=pending,
            pending=pending_words(pending),
        )

    return await _run_in_folder(context, read)


async def _run_in_folder(context: Service, work: Callable[[KnowledgeFolder], Result]) -> Result:
    if context.workspace is None:
        raise RefusedError(409, "no_workspace", "the service was not started in a project folder")
    folder = knowledge_folder(context.workspace, context.workspace)
    try:
        return await asyncio.to_thread(work, folder)
    except UserError as error:
        raise RefusedError(409, "knowledge_in_use", str(error)) from error


def _require_item(folder: KnowledgeFolder, item_id: str) -> Item:
    item = item_named(folder, item_id)
    if item is None:
        raise not_found("item", item_id)
    return item


def _check_text(text: str) -> str:
    if holds_secret(text):
        raise RefusedError(422, "holds_secret", "the text looks like it contains a credential; it was not saved")
    normalized = as_told(text)
    if not normalized:
        raise RefusedError(422, "invalid_body", "the text is empty", details={"field": "text"})
    return normalized


def _is_on(folder: KnowledgeFolder) -> bool:
    return folder.read(DISABLED) is None


def _pinned_digest(context: Service, session_id: str) -> str:
    text: str | None = None
    for event in context.log.read(session_id):
        if isinstance(event.payload, EpochOpened):
            text = next((part.text for part in event.payload.system if part.layer == LAYER), "")
    if text is None:
        raise not_found("session", session_id)
    return text


def _counts(items: Sequence[Item]) -> tuple[CategoryCount, ...]:
    counts: dict[Category, list[int]] = {}
    for item in items:
        total_and_excluded = counts.setdefault(item.category, [0, 0])
        total_and_excluded[0] += 1
        total_and_excluded[1] += bool(item.held_back)
    return tuple(CategoryCount(category, total, excluded) for category, (total, excluded) in counts.items())


def _item_view(item: Item) -> KnowledgeItem:
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
        sources=tuple(KnowledgeSource(source.session, source.number, source.origin) for source in item.sources),
        approved=item.approved,
        edited=item.edited,
        flagged=item.flagged,
        held_back=item.held_back,
    )


def _harvest_reply(plan: HarvestPlan, outcome: Outcome | None) -> HarvestReply:
    digest_change = None
    if outcome is not None:
        diff = outcome.change
        # About four bytes per token; this is an estimate for people.
        tokens = diff.bytes_changed // 4
        digest_change = DigestChange(diff.first_byte, diff.bytes_before, diff.bytes_after, diff.items, tokens)
    return HarvestReply(
        applied=outcome is not None,
        sessions=tuple(
            HarvestedSession(source.session, source.said_bytes, len(source.found.items), source.found.secrets)
            for source in plan.sources
        ),
        known_sessions=plan.known,
        new_items=plan.new_items,
        merged_items=plan.merged_items,
        secrets=plan.secrets,
        model_tokens=plan.model_tokens,
        digest_change=digest_change,
    )


_ITEM = "/api/knowledge/items/{item_id}"

# All of these can quote conversations, so they need the scope that may see prompts.
ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/api/knowledge",
        list_items,
        request=ItemListing,
        reply=KnowledgeReply,
        rule="admin",
        summary="The project's knowledge items.",
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
        summary="Edit or approve an item; edits by a person take precedence over harvested text.",
        refusals=(404, 409),
    ),
    route(
        "DELETE",
        _ITEM,
        delete_item,
        request=OneItem,
        reply=Removed,
        rule="admin",
        summary="Remove an item; later harvests do not add it again.",
        refusals=(404, 409),
    ),
    route(
        "POST",
        "/api/knowledge/harvest",
        harvest,
        request=HarvestOrder,
        reply=HarvestReply,
        rule="admin",
        summary="What ended sessions would add to the knowledge; with `apply` it is added.",
        refusals=(409,),
    ),
    route(
        "GET",
        "/api/knowledge/digest",
        show_digest,
        request=DigestQuestion,
        reply=DigestReply,
        rule="admin",
        summary="The digest that new sessions get, and whether a session uses an older one.",
        refusals=(404, 409),
    ),
)
