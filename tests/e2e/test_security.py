"""Access is denied by default."""

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route

from bramley.api.context import ApiContext
from bramley.api.options import ApiOptions
from bramley.api.router import routers
from bramley.api.security import OPEN_ROUTES
from bramley.app.http import routes_app
from bramley.service.generate import Generator
from bramley.service.pool import Pool
from tests.e2e.field import case
from tests.support.server import Server, serving

M1 = case("M1")
KEY = M1["key"]


@pytest.fixture(scope="module")
def locked(script_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("from-a-file\n")
    with serving(script_model, "--api-key", KEY, "--api-key-file", keys, "--api-key", "another") as server:
        yield server


def routes() -> list[tuple[str, str]]:
    """Every method and path the application has, its documentation included."""
    context = ApiContext(Pool(()), Generator.__new__(Generator), ApiOptions(), 0)
    own = [route for router in routers(context) for route in router.routes]
    found = []
    for route in [*routes_app(context).routes, *own]:
        if isinstance(route, Route):
            path = route.path.replace("{model_id:path}", "a/b")
            found += [(method, path) for method in sorted(route.methods or ())]
    return found


def status_of_models(server: Server, headers: dict[str, str]) -> int:
    """With the standard library's client, which sends headers as they are: blanks, Latin-1 and all."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
    try:
        connection.request("GET", "/v1/models", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_route_but_the_listed_ones_asks_for_a_key(locked: Server) -> None:
    assert len(routes()) > 8
    with locked.http() as client:
        for method, path in [*routes(), ("GET", "/no/such/route"), ("DELETE", "/v1/models")]:
            response = client.request(method, path)
            if (None, path) in OPEN_ROUTES or (method, path) in OPEN_ROUTES:
                assert response.status_code != M1["status"], (method, path)
            else:
                assert response.status_code == M1["status"], (method, path)
                assert response.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    assert response.json()["error"]["code"] == "invalid_api_key"


def test_the_listed_routes_are_the_ones_the_field_case_names() -> None:
    assert {path for method, path in OPEN_ROUTES if method is None} - {"/metrics"} == set(M1["open"])
    assert {(m, p) for m, p in OPEN_ROUTES if m} == {("HEAD", "/"), ("HEAD", "/api/hello")}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"x-api-key": KEY},
        {"x-api-key": "another"},
        {"authorization": "Bearer from-a-file"},
        {"authorization": "Bearer ", "x-api-key": KEY},
    ],
    ids=str,
)
def test_a_right_key_opens_in_either_header(locked: Server, headers: dict[str, str]) -> None:
    assert status_of_models(locked, headers) == 200


@pytest.mark.parametrize("value", M1["bad"])
def test_a_malformed_or_wrong_key_is_refused(locked: Server, value: str) -> None:
    for name in ("authorization", "x-api-key"):
        if (name, value) != ("x-api-key", KEY):
            assert status_of_models(locked, {name: value}) == M1["status"], (name, value)


def test_an_empty_bearer_is_fine_when_no_key_is_set(script_server: Server) -> None:
    assert status_of_models(script_server, {"authorization": "Bearer "}) == 200


def test_keys_are_taken_from_the_environment_and_never_logged(script_model: Path) -> None:
    with serving(script_model, env={"BRAMLEY_API_KEY": "from-the-environment"}) as server, server.http() as client:
        assert client.get("/v1/models").status_code == 401
        wanted = {"authorization": "Bearer from-the-environment"}
        assert client.get("/v1/models", headers=wanted).status_code == 200
        assert "from-the-environment" not in server.log


def test_bytes_that_are_no_http_do_not_disturb_the_server(script_server: Server) -> None:
    host, port = script_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\xff\xfe\r\n\r\n")
        raw.recv(1000)
    with script_server.http() as client:
        assert client.get("/livez").status_code == 200
