"""Every route there is, in the order in which paths are looked at."""

from holdfast.service import analytics_routes, caching, health, instructions, streaming
from holdfast.service.routes import Route

ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *streaming.ROUTES,
    *caching.ROUTES,
    *analytics_routes.ROUTES,
    *instructions.ROUTES,
)
