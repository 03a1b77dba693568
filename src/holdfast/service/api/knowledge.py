"""HTTP routes for the knowledge of the service's project: items, their digest, and harvesting from sessions."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from holdfast.errors import UserError
from holdfast.events.payloads.session import EpochOpened, SessionStarted
from holdfast.knowledge.digest import (
    DIGEST_BYTES_MAX,
    SHARED_DIGEST_BYTES_MAX,
    DigestDiff,
    KnowledgeDigest,
    build_digest,
    compare_digests,
    describe_pending_digest,
)
from holdfast.knowledge.folder import (
    DISABLED_FILE,
    KnowledgeFolder,
    claim_folder,
    list_users,
    open_knowledge_folder,
    open_shared_folder,
)
from holdfast.knowledge.harvest import HarvestPlan, HarvestResult, apply_harvest, plan_harvest
from holdfast.knowledge.items import Category, Item, ItemStatus, sanitize_item_text
from holdfast.knowledge.pages import list_page_items, read_pages
from holdfast.knowledge.review import (
    accept_item,
    find_item,
    list_knowledge_items,
    read_pending,
    reject_item,
    remove_item,
    replace_item,
    restore_item,
)
from holdfast.knowledge.screening import contains_secret
from holdfast.runtime.knowledge import (
    KNOWLEDGE_LAYER,
    digest_text,
    finished_sessions,
    group_by_user,
    known_sessions,
    project_lookup,
    read_source_lines,
)
from holdfast.service.context import AppContext
from holdfast.service.http.routes import ApiError, Route, copy_fields, json_route, make_not_found_error

ITEMS_LISTED_MAX = 1_000
TEXT_CHARACTERS_MAX = 4_000
HOUR_SECONDS = 3_600
_ITEM = "/api/knowledge/items/{item_id}"
ReviewAction = Literal["accept", "reject", "restore"]
User = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class KnowledgeSource(msgspec.Struct, frozen=True):
    """Message `number` of a session, and its author; `title` is that of the list of sessions."""

    session_id: str
    title: str
    number: int
    origin: Literal["user", "model", "tool"]


class KnowledgeItem(msgspec.Struct, frozen=True):
    """`exclusion_reason` is the reason why the item is not in the digest, empty if it is; days are YYYY-MM-DD.

    All users of the workspace receive a `shared` item, others only their own.
    """

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
    shared: bool


class CategoryCount(msgspec.Struct, frozen=True):
    category: Category
    items: int
    excluded: int


class KnowledgeResponse(msgspec.Struct, frozen=True):
    """In page order; `items_total` counts all items of the requested category, or of all categories.

    `users` are the end users with knowledge of their own, besides the service's user; `waiting` items need a review.
    """

    enabled: bool
    users: tuple[str, ...]
    waiting: int
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
    title: str
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


class SourceText(msgspec.Struct, frozen=True):
    """Lines of message `number` of a session, around the one that an item comes from; none if it is not stored."""

    session_id: str
    title: str
    number: int
    origin: Literal["user", "model", "tool"]
    lines: tuple[str, ...]


class PendingItem(msgspec.Struct, frozen=True):
    """`evidence` says what happened after its source; a `shareable` item comes from the project alone."""

    id: str
    category: Category
    text: str
    scope: str
    evidence: str
    flagged: str
    confident: bool
    shareable: bool
    sources: tuple[SourceText, ...]


class RestorableItem(msgspec.Struct, frozen=True):
    id: str
    category: Category
    text: str


class ReviewResponse(msgspec.Struct, frozen=True):
    """Oldest first; `set_aside` was rejected or removed and can be restored, newest first."""

    waiting: tuple[PendingItem, ...]
    waiting_total: int
    set_aside: tuple[RestorableItem, ...]


class ReviewedItem(msgspec.Struct, frozen=True):
    id: str
    text: str
    action: ReviewAction
    shared: bool


class HarvestResponse(msgspec.Struct, frozen=True):
    """What the harvest did, or without `apply` and `review` would do; `model_tokens` is what a model would read."""

    applied: bool
    accepted: int
    waiting: int
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
    user: User | None = None


class ItemRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    item_id: str
    user: User | None = None


class ReviewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=ITEMS_LISTED_MAX)] = 50
    user: User | None = None


class ReviewItemRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`share` gives an accepted item to all users; without it, only what comes from the project alone is shared.

    `restore` undoes: a rejected, removed or accepted item waits again.
    """

    item_id: str
    action: ReviewAction
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)] | None = None
    share: bool | None = None
    user: User | None = None


class EditItemRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields that are not sent stay unchanged."""

    item_id: str
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)] | None = None
    done: bool | None = None
    approved: bool | None = None
    status: ItemStatus | None = None
    superseded_by: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{12}$")] | None = None
    user: User | None = None


class HarvestRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `review` items wait for a person; with `apply` those that the rules are sure of go to the pages at once.

    With neither nothing is written. A session without activity for `quiet_hours` counts as ended.
    """

    apply: bool = False
    review: bool = False
    quiet_hours: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 24.0


class DigestRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session_id: str | None = None
    user: User | None = None


def list_items(context: AppContext, request: ItemsRequest) -> KnowledgeResponse:
    """A user's knowledge items in this project, then those that all users share."""
    workspace = require_workspace(context)
    own, shared = _folders(workspace, request.user)
    with translate_errors():
        rows = [(item, False) for item in list_knowledge_items(own)]
        rows += [(item, True) for item in list_knowledge_items(shared)]
        selected = [row for row in rows if request.category in (None, row[0].category)]
        page = selected[request.skip : request.skip + request.limit]
        return KnowledgeResponse(
            _is_on(workspace),
            list_users(workspace, workspace),
            len(read_pending(own).waiting),
            _counts([item for item, _ in rows]),
            _item_views(context, page),
            len(selected),
        )


def get_item(context: AppContext, request: ItemRequest) -> KnowledgeItem:
    """One item, with its sources."""
    with translate_errors():
        item, _, is_shared = _require_item(require_workspace(context), request.user, request.item_id)
    return _item_views(context, [(item, is_shared)])[0]


def edit_item(context: AppContext, request: EditItemRequest) -> KnowledgeItem:
    """Edit or approve an item; edits by a person take precedence over harvested text."""
    workspace = require_workspace(context)
    with translate_errors():
        before, folder, is_shared = _require_item(workspace, request.user, request.item_id)
        item = msgspec.structs.replace(
            before,
            text=before.text if request.text is None else _check_text(request.text),
            is_done=before.is_done if request.done is None else request.done,
            is_approved=before.is_approved if request.approved is None else request.approved,
            status=request.status or before.status,
            superseded_by=request.superseded_by or before.superseded_by,
        )
        replace_item(folder, item, is_shared=is_shared)
        after, _, _ = _require_item(workspace, request.user, request.item_id)
    return _item_views(context, [(after, is_shared)])[0]


def delete_item(context: AppContext, request: ItemRequest) -> RemovedItem:
    """Remove an item; later harvests do not add it again, and a review can restore it."""
    with translate_errors():
        _, folder, is_shared = _require_item(require_workspace(context), request.user, request.item_id)
        remove_item(folder, request.item_id, is_shared=is_shared)
    return RemovedItem(request.item_id)


def list_pending_items(context: AppContext, request: ReviewRequest) -> ReviewResponse:
    """Harvested items that wait for a person, each with the lines that it comes from."""
    own, _ = _folders(require_workspace(context), request.user)
    with translate_errors():
        pending = read_pending(own)
    return ReviewResponse(
        tuple(_pending_view(context, item) for item in pending.waiting[: request.limit]),
        len(pending.waiting),
        tuple(copy_fields(RestorableItem, item) for item in reversed(pending.set_aside)),
    )


def review_item(context: AppContext, request: ReviewItemRequest) -> ReviewedItem:
    """Accept a waiting item, with another text if one is sent, or reject it; `restore` undoes either."""
    workspace = require_workspace(context)
    own, shared = _folders(workspace, request.user)
    text = _check_text(request.text) if request.text is not None else ""
    with translate_errors():
        waiting = next((item for item in read_pending(own).waiting if item.id == request.item_id), None)
        if request.action == "restore":
            item, is_shared = restore_item(own, request.item_id, shared=shared), False
        elif waiting is None:
            raise make_not_found_error("item", request.item_id)
        elif request.action == "reject":
            item, is_shared = reject_item(own, request.item_id), False
        else:
            is_shared = waiting.is_shareable if request.share is None else request.share
            target, project = shared if is_shared else None, project_lookup(workspace)
            item = accept_item(own, request.item_id, text=text, shared=target, project=project)
    return ReviewedItem(item.id, item.text, request.action, is_shared)


def harvest_sessions(context: AppContext, request: HarvestRequest) -> HarvestResponse:
    """What ended sessions would add to the knowledge of their users; with `review` or `apply` it is added."""
    workspace = require_workspace(context)
    with translate_errors():
        sessions = finished_sessions(
            context.log,
            at=context.clock(),
            workspace=workspace,
            simulated=context.simulated,
            quiet_seconds=request.quiet_hours * HOUR_SECONDS,
            known=known_sessions(workspace, workspace),
        )
        groups = group_by_user(sessions, workspace, workspace)
        plans = [plan_harvest(_folders(workspace, user)[0], ended) for user, ended in groups.items()]
        if not (request.apply or request.review):
            return _harvest_reply(context, plans, None)
        outcomes = [
            apply_harvest(
                claim_folder(workspace, workspace, user) if ended else _folders(workspace, user)[0],
                ended,
                accept="confident" if request.apply else "none",
                shared=_folders(workspace, user)[1],
                project=project_lookup(workspace),
            )
            for user, ended in groups.items()
        ]
        return _harvest_reply(context, plans, outcomes)


def get_digest(context: AppContext, request: DigestRequest) -> DigestResponse:
    """The digest that new sessions of a user get, and whether a session uses an older one."""
    workspace = require_workspace(context)
    with translate_errors():
        user = request.user if request.session_id is None else _session_user(context, request.session_id)
        text = digest_text(workspace, workspace, user=user)
        if request.session_id is None:
            pending = compare_digests(text, build_next_digest(workspace, user)).items
        else:
            pending = compare_digests(_pinned_digest(context, request.session_id), text).items
        digest = KnowledgeDigest(text, sum(line.startswith("- ") for line in text.split("\n")))
        return DigestResponse(
            enabled=_is_on(workspace),
            exists=bool(text),
            text=text,
            size_bytes=len(text.encode()),
            items=digest.items,
            sha256=digest.sha256,
            session_id=request.session_id,
            pending_items=pending,
            pending=describe_pending_digest(pending),
        )


def build_next_digest(workspace: Path, user: str | None) -> str:
    """The digest as the current pages make it."""

    def build(folder: KnowledgeFolder) -> str:
        is_shared = folder.path == open_shared_folder(workspace, workspace).path
        bytes_max = SHARED_DIGEST_BYTES_MAX if is_shared else DIGEST_BYTES_MAX
        return build_digest(list_page_items(read_pages(folder)), bytes_max=bytes_max).text

    return digest_text(workspace, workspace, user=user, read=build)


def require_workspace(context: AppContext) -> Path:
    if context.workspace is None:
        raise ApiError(409, "no_workspace", "the service was not started in a project folder")
    return context.workspace


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise ApiError(409, "knowledge_in_use", str(error)) from error


def _folders(workspace: Path, user: str | None) -> tuple[KnowledgeFolder, KnowledgeFolder]:
    """A user's own folder and the shared one."""
    own = open_knowledge_folder(workspace, workspace, user=user)
    return own, open_shared_folder(workspace, workspace)


def _require_item(workspace: Path, user: str | None, item_id: str) -> tuple[Item, KnowledgeFolder, bool]:
    """The item, its folder, and whether that is the shared one."""
    for folder, is_shared in zip(_folders(workspace, user), (False, True), strict=True):
        item = find_item(folder, item_id)
        if item is not None:
            return item, folder, is_shared
    raise make_not_found_error("item", item_id)


def _check_text(text: str) -> str:
    if contains_secret(text):
        raise ApiError(422, "holds_secret", "the text looks like it contains a credential; it was not saved")
    normalized = sanitize_item_text(text)
    if not normalized:
        raise ApiError(422, "invalid_body", "the text is empty", details={"field": "text"})
    return normalized


def _is_on(workspace: Path) -> bool:
    return open_knowledge_folder(workspace, workspace).read(DISABLED_FILE) is None


def _session_user(context: AppContext, session_id: str) -> str | None:
    first = next(iter(context.log.read(session_id)), None)
    if first is None or not isinstance(first.payload, SessionStarted):
        raise make_not_found_error("session", session_id)
    return first.payload.user_id


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


def _pending_view(context: AppContext, item: Item) -> PendingItem:
    sources = read_source_lines(context.log, item)
    titles = context.find_titles(source.session_id for source in sources)
    return copy_fields(
        PendingItem,
        item,
        confident=item.is_confident,
        shareable=item.is_shareable,
        sources=tuple(copy_fields(SourceText, source, title=titles[source.session_id]) for source in sources),
    )


def _item_views(context: AppContext, rows: Sequence[tuple[Item, bool]]) -> tuple[KnowledgeItem, ...]:
    """Each item with whether it is shared."""
    titles = context.find_titles(source.session for item, _ in rows for source in item.sources)
    return tuple(
        copy_fields(
            KnowledgeItem,
            item,
            done=item.is_done,
            sources=tuple(
                KnowledgeSource(source.session, titles[source.session], source.number, source.origin)
                for source in item.sources
            ),
            approved=item.is_approved,
            edited=item.is_edited,
            shared=is_shared,
        )
        for item, is_shared in rows
    )


def make_digest_change(diff: DigestDiff) -> DigestChange:
    # About four bytes per token; this is an estimate for people.
    return copy_fields(DigestChange, diff, invalidated_tokens=diff.bytes_changed // 4)


def _harvest_reply(
    context: AppContext, plans: Sequence[HarvestPlan], outcomes: Sequence[HarvestResult] | None
) -> HarvestResponse:
    """Sums over all users; the digest is that of the service's own user, which comes first."""
    titles = context.find_titles(source.session for plan in plans for source in plan.sources)
    return HarvestResponse(
        applied=outcomes is not None,
        accepted=sum(outcome.accepted for outcome in outcomes or ()),
        waiting=sum(outcome.waiting for outcome in outcomes or ()),
        sessions=tuple(
            HarvestedSession(
                source.session,
                titles[source.session],
                source.content_bytes,
                len(source.extracted.items),
                source.extracted.secrets,
            )
            for plan in plans
            for source in plan.sources
        ),
        harvested_before=sum(plan.unchanged for plan in plans),
        new_items=sum(plan.new_items for plan in plans),
        merged_items=sum(plan.merged_items for plan in plans),
        secrets=sum(plan.secrets for plan in plans),
        model_tokens=sum(plan.model_tokens for plan in plans),
        digest_change=make_digest_change(outcomes[0].digest_change) if outcomes else None,
    )


# All of these can quote conversations, so they need the scope that may see prompts.
ROUTES: tuple[Route, ...] = (
    json_route("GET", "/api/knowledge", list_items, rule="admin", error_statuses=(409,)),
    json_route("GET", _ITEM, get_item, rule="admin", error_statuses=(404, 409)),
    json_route("PUT", _ITEM, edit_item, rule="admin", error_statuses=(404, 409)),
    json_route("DELETE", _ITEM, delete_item, rule="admin", error_statuses=(404, 409)),
    json_route("GET", "/api/knowledge/review", list_pending_items, rule="admin", error_statuses=(409,)),
    json_route("POST", "/api/knowledge/review/{item_id}", review_item, rule="admin", error_statuses=(404, 409)),
    json_route("POST", "/api/knowledge/harvest", harvest_sessions, rule="admin", error_statuses=(409,)),
    json_route("GET", "/api/knowledge/digest", get_digest, rule="admin", error_statuses=(404, 409)),
)
