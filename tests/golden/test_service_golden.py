"""The OpenAPI document of the service matches its golden file: a change that clients would notice shows here."""

from pathlib import Path

import msgspec
from tests.support.goldens import check_golden

from holdfast.service.http.openapi import make_openapi
from holdfast.service.route_table import ROUTES

HERE = Path(__file__).parent


def test_openapi_document_matches_the_golden_file() -> None:
    shown = msgspec.json.format(msgspec.json.encode(make_openapi(ROUTES), order="sorted"))
    check_golden(HERE / "service" / "openapi.json", shown + b"\n")
