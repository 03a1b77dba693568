"""Routes of the dashboard: the page at `/`, all other files below `/dashboard/`."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from holdfast.service.dashboard.files import HEADERS, PAGE, PREFIX, page_files


def page_routes() -> list[HttpRoute]:
    """Accessible without a key: the files contain nothing that is not in the package."""
    static_files = page_files()

    async def send(request: Request) -> Response:
        file = static_files.get(request.path_params.get("name", PAGE))
        if file is None:
            return Response("no such file\n", status_code=404, media_type="text/plain", headers=HEADERS)
        headers = {**HEADERS, "content-type": file.content_type, "etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers)

    return [HttpRoute("/", send, methods=["GET"]), HttpRoute(PREFIX + "{name:path}", send, methods=["GET"])]
