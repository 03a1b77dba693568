"""All routes, in matching order."""

from holdfast.service import (
    analytics_routes,
    broken_calls,
    caching,
    forwarded,
    health,
    instruction_exploring,
    instruction_pages,
    instructions,
    knowledge,
    knowledge_pending,
    session_routes,
    signing_in,
    skill_library,
    streaming,
    trying,
)
from holdfast.service.routes import Route

ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *signing_in.ROUTES,
    *streaming.ROUTES,
    *caching.ROUTES,
    *session_routes.ROUTES,
    *forwarded.ROUTES,
    *analytics_routes.ROUTES,
    *broken_calls.ROUTES,
    *skill_library.ROUTES,
    *knowledge_pending.ROUTES,
    *knowledge.ROUTES,
    *trying.ROUTES,
    *instruction_pages.ROUTES,
    *instruction_exploring.ROUTES,
    *instructions.ROUTES,
)
