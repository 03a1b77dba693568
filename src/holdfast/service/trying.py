"""HTTP route that plays the sample sessions, if the service runs with a simulated provider."""

import msgspec

from holdfast.service.failures import RefusedError
from holdfast.service.routes import Nothing, Route, route
from holdfast.service.service import Service


class Playing(msgspec.Struct, frozen=True):
    playing: bool


async def play(context: Service, request: Nothing) -> Playing:
    if context.sample is None:
        raise RefusedError(409, "not_simulating", "start the service with `holdfast serve --simulate` to play a sample")
    context.sample.start()
    return Playing(context.sample.playing)


ROUTES: tuple[Route, ...] = (
    route(
        "POST",
        "/api/sample",
        play,
        request=Nothing,
        reply=Playing,
        rule="admin",
        summary="Play sample sessions against a simulated provider.",
        refusals=(409,),
    ),
)
