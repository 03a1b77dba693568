"""How the files of the page are asked for: the page at `/`, all others below `/dashboard/`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from holdfast.service.dashboard.files import HEADERS, PAGE, PREFIX, page_files


def page_routes() -> list[HttpRoute]:
    """Open to everybody who may reach the service: they hold nothing that is not in the package."""
    there = page_files()

    async def send(request: Request) -> Response:
        found = there.get(request.path_params.get("name", PAGE))
        if found is None:
            return Response("there is no such file\n", status_code=404, media_type="text/plain", headers=HEADERS)
        headers = {**HEADERS, "content-type": found.content_type, "etag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, headers=headers)

    return [HttpRoute("/", send, methods=["GET"]), HttpRoute(PREFIX + "{name:path}", send, methods=["GET"])]
