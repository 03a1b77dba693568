"""All routes, in matching order."""

from holdfast.service import sample
from holdfast.service.api import (
    analytics,
    breaks,
    cache,
    gateway,
    health,
    keys,
    knowledge,
    knowledge_pending,
    overview,
    session_list,
    skills,
)
from holdfast.service.api import sessions as session_routes
from holdfast.service.api.instructions import agents, agents_view, explore
from holdfast.service.auth import cookies
from holdfast.service.http.routes import Route
from holdfast.service.live import sse

ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *cookies.ROUTES,
    *sse.ROUTES,
    *cache.ROUTES,
    *session_list.ROUTES,
    *session_routes.ROUTES,
    *gateway.ROUTES,
    *keys.ROUTES,
    *overview.ROUTES,
    *analytics.ROUTES,
    *breaks.ROUTES,
    *skills.ROUTES,
    *knowledge_pending.ROUTES,
    *knowledge.ROUTES,
    *sample.ROUTES,
    *agents_view.ROUTES,
    *explore.ROUTES,
    *agents.ROUTES,
)
