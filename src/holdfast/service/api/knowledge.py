"""HTTP routes for the knowledge of the service's project: items, their digest, and harvesting from sessions."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from holdfast.errors import UserError
from holdfast.events.payloads.session import EpochOpened
from holdfast.knowledge.digest import (
    DigestDiff,
    KnowledgeDigest,
    build_digest,
    compare_digests,
    describe_pending_digest,
)
from holdfast.knowledge.folder import DIGEST_FILE, DISABLED_FILE, KnowledgeFolder, open_knowledge_folder
from holdfast.knowledge.harvest import HarvestPlan, HarvestResult, apply_harvest, plan_harvest, read_pages
from holdfast.knowledge.item_edits import find_item, list_knowledge_items, remove_item, replace_item
from holdfast.knowledge.items import Category, Item, ItemStatus, sanitize_item_text
from holdfast.knowledge.journal import read_ledger
from holdfast.knowledge.pages import list_page_items
from holdfast.knowledge.screening import contains_secret
from holdfast.runtime.knowledge import KNOWLEDGE_LAYER, finished_sessions, project_lookup
from holdfast.service.context import AppContext
from holdfast.service.http.routes import ApiError, Route, copy_fields, json_route, make_not_found_error
from holdfast.sources.files import decode_text

ITEMS_LISTED_MAX = 1_000
TEXT_CHARACTERS_MAX = 4_000
HOUR_SECONDS = 3_600
Result = TypeVar("Result")
_ITEM = "/api/knowledge/items/{item_id}"


class KnowledgeSource(msgspec.Struct, frozen=True):
    """Message `number` of a session, and its author."""

    session_id: str
    number: int
    origin: Literal["user", "model", "tool"]


class KnowledgeItem(msgspec.Struct, frozen=True):
    """`exclusion_reason` is the reason why the item is not in the digest, empty if it is; days are YYYY-MM-DD."""

    id: str
    category: Category
    text: str
    done: bool
    status: ItemStatus
    superseded_by: str
    scope: str
    first_seen: str
    last_seen: str
    sources: tuple[KnowledgeSource, ...]
    approved: bool
    edited: bool
    flagged: str
    exclusion_reason: str


class CategoryCount(msgspec.Struct, frozen=True):
    category: Category
    items: int
    excluded: int


class KnowledgeResponse(msgspec.Struct, frozen=True):
    """In page order; `items_total` counts all items of the requested category, or of all categories."""

    enabled: bool
    categories: tuple[CategoryCount, ...]
    items: tuple[KnowledgeItem, ...]
    items_total: int


class DigestResponse(msgspec.Struct, frozen=True):
    """`pending` describes a newer digest: than the one the session uses, else than the one on disk."""

    enabled: bool
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
    message_bytes: int
    items: int
    secrets: int


class DigestChange(msgspec.Struct, frozen=True):
    """The digest differs from `first_byte` on; `invalidated_tokens` of it miss the cache in a new session."""

    first_byte: int
    bytes_before: int
    bytes_after: int
    items: int
    invalidated_tokens: int


class HarvestResponse(msgspec.Struct, frozen=True):
    """What the harvest did, or without `apply` would do; `model_tokens` is the input a model would need for it."""

    applied: bool
    sessions: tuple[HarvestedSession, ...]
    harvested_before: int
    new_items: int
    merged_items: int
    secrets: int
    model_tokens: int
    digest_change: DigestChange | None


class RemovedItem(msgspec.Struct, frozen=True):
    removed: str


class ItemsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    category: Category | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=ITEMS_LISTED_MAX)] = 200
    skip: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 0


class ItemRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    item_id: str


class EditItemRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields that are not sent stay unchanged."""

    item_id: str
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)] | None = None
    done: bool | None = None
    approved: bool | None = None
    status: ItemStatus | None = None
    superseded_by: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")] | None = None


class HarvestRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing is written without `apply`. A session without activity for `quiet_hours` counts as ended."""

    apply: bool = False
    quiet_hours: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 24.0


class DigestRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session_id: str | None = None


def list_items(context: AppContext, request: ItemsRequest) -> KnowledgeResponse:
    """The project's knowledge items."""

    def read(folder: KnowledgeFolder) -> KnowledgeResponse:
        items = list_knowledge_items(folder)
        selected = [item for item in items if request.category in (None, item.category)]
        page = selected[request.skip : request.skip + request.limit]
        return KnowledgeResponse(_is_on(folder), _counts(items), tuple(map(_item_view, page)), len(selected))

    return run_in_folder(context, read)


def get_item(context: AppContext, request: ItemRequest) -> KnowledgeItem:
    """One item, with its sources."""
    return run_in_folder(context, lambda folder: _item_view(_require_item(folder, request.item_id)))


def edit_item(context: AppContext, request: EditItemRequest) -> KnowledgeItem:
    """Edit or approve an item; edits by a person take precedence over harvested text."""

    def edit(folder: KnowledgeFolder) -> KnowledgeItem:
        before = _require_item(folder, request.item_id)
        item = msgspec.structs.replace(
            before,
            text=before.text if request.text is None else _check_text(request.text),
            is_done=before.is_done if request.done is None else request.done,
            is_approved=before.is_approved if request.approved is None else request.approved,
            status=request.status or before.status,
            superseded_by=request.superseded_by or before.superseded_by,
        )
        replace_item(folder, item)
        return _item_view(_require_item(folder, request.item_id))

    return run_in_folder(context, edit)


def delete_item(context: AppContext, request: ItemRequest) -> RemovedItem:
    """Remove an item; later harvests do not add it again."""

    def remove(folder: KnowledgeFolder) -> RemovedItem:
        _require_item(folder, request.item_id)
        remove_item(folder, request.item_id)
        return RemovedItem(request.item_id)

    return run_in_folder(context, remove)


def harvest_sessions(context: AppContext, request: HarvestRequest) -> HarvestResponse:
    """What ended sessions would add to the knowledge; with `apply` it is added."""

    def run(folder: KnowledgeFolder) -> HarvestResponse:
        sessions = list(
            finished_sessions(
                context.log,
                at=context.clock(),
                workspace=context.workspace,
                simulated=context.simulated,
                quiet_seconds=request.quiet_hours * HOUR_SECONDS,
                known=read_ledger(folder).harvested_sessions,
            )
        )
        plan = plan_harvest(folder, sessions)
        outcome = apply_harvest(folder, sessions, project=project_lookup(context.workspace)) if request.apply else None
        return _harvest_reply(plan, outcome)

    return run_in_folder(context, run)


def get_digest(context: AppContext, request: DigestRequest) -> DigestResponse:
    """The digest that new sessions get, and whether a session uses an older one."""

    def read(folder: KnowledgeFolder) -> DigestResponse:
        on = _is_on(folder)
        text = decode_text(folder.read(DIGEST_FILE) or b"") if on else ""
        if request.session_id is None:
            current = build_digest(list_page_items(read_pages(folder))) if on else KnowledgeDigest("")
            pending = compare_digests(text, current.text).items
        else:
            pending = compare_digests(_pinned_digest(context, request.session_id), text).items
        raw = text.encode()
        digest = KnowledgeDigest(text, sum(line.startswith("- ") for line in text.split("\n")))
        return DigestResponse(
            enabled=on,
            exists=bool(text),
            text=text,
            size_bytes=len(raw),
            items=digest.items,
            sha256=digest.sha256,
            session_id=request.session_id,
            pending_items=pending,
            pending=describe_pending_digest(pending),
        )

    return run_in_folder(context, read)


def run_in_folder(context: AppContext, work: Callable[[KnowledgeFolder], Result]) -> Result:
    if context.workspace is None:
        raise ApiError(409, "no_workspace", "the service was not started in a project folder")
    folder = open_knowledge_folder(context.workspace, context.workspace)
    try:
        return work(folder)
    except UserError as error:
        raise ApiError(409, "knowledge_in_use", str(error)) from error


def _require_item(folder: KnowledgeFolder, item_id: str) -> Item:
    item = find_item(folder, item_id)
    if item is None:
        raise make_not_found_error("item", item_id)
    return item


def _check_text(text: str) -> str:
    if contains_secret(text):
        raise ApiError(422, "holds_secret", "the text looks like it contains a credential; it was not saved")
    normalized = sanitize_item_text(text)
    if not normalized:
        raise ApiError(422, "invalid_body", "the text is empty", details={"field": "text"})
    return normalized


def _is_on(folder: KnowledgeFolder) -> bool:
    return folder.read(DISABLED_FILE) is None


def _pinned_digest(context: AppContext, session_id: str) -> str:
    text: str | None = None
    for event in context.log.read(session_id):
        if isinstance(event.payload, EpochOpened):
            text = next((part.text for part in event.payload.system if part.layer == KNOWLEDGE_LAYER), "")
    if text is None:
        raise make_not_found_error("session", session_id)
    return text


def _counts(items: Sequence[Item]) -> tuple[CategoryCount, ...]:
    counts: dict[Category, list[int]] = {}
    for item in items:
        total_and_excluded = counts.setdefault(item.category, [0, 0])
        total_and_excluded[0] += 1
        total_and_excluded[1] += bool(item.exclusion_reason)
    return tuple(CategoryCount(category, total, excluded) for category, (total, excluded) in counts.items())


def _item_view(item: Item) -> KnowledgeItem:
    return copy_fields(
        KnowledgeItem,
        item,
        done=item.is_done,
        sources=tuple(KnowledgeSource(source.session, source.number, source.origin) for source in item.sources),
        approved=item.is_approved,
        edited=item.is_edited,
    )


def make_digest_change(diff: DigestDiff) -> DigestChange:
    # About four bytes per token; this is an estimate for people.
    return copy_fields(DigestChange, diff, invalidated_tokens=diff.bytes_changed // 4)


def _harvest_reply(plan: HarvestPlan, outcome: HarvestResult | None) -> HarvestResponse:
    return copy_fields(
        HarvestResponse,
        plan,
        applied=outcome is not None,
        sessions=tuple(
            HarvestedSession(
                source.session, source.content_bytes, len(source.extracted.items), source.extracted.secrets
            )
            for source in plan.sources
        ),
        harvested_before=plan.unchanged,
        digest_change=make_digest_change(outcome.digest_change) if outcome else None,
    )


# All of these can quote conversations, so they need the scope that may see prompts.
ROUTES: tuple[Route, ...] = (
    json_route("GET", "/api/knowledge", list_items, rule="admin", error_statuses=(409,)),
    json_route("GET", _ITEM, get_item, rule="admin", error_statuses=(404, 409)),
    json_route("PUT", _ITEM, edit_item, rule="admin", error_statuses=(404, 409)),
    json_route("DELETE", _ITEM, delete_item, rule="admin", error_statuses=(404, 409)),
    json_route("POST", "/api/knowledge/harvest", harvest_sessions, rule="admin", error_statuses=(409,)),
    json_route("GET", "/api/knowledge/digest", get_digest, rule="admin", error_statuses=(404, 409)),
)
