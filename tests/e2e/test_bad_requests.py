"""Bad input gets a clear 400 that names the field, in the protocol's shape, and the server goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "bad_requests.json").read_text())
PYTHON_TEXT = ("Traceback", "pydantic", "NoneType", "Error(", "<class", "object at 0x")


def body_of(case: dict[str, Any]) -> str:
    if "body" in case:
        return str(case["body"])
    return '{"messages": [{"role": "user", "content": "A8-w"}], ' + str(case["with"]) + "}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["why"])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_input_is_a_400_that_names_the_field(script_server: Server, case: dict[str, Any], stream: bool) -> None:
    text = body_of(case)
    if stream and text.endswith("}") and '"stream' not in text:
        text = text[:-1] + (', "stream": true}' if len(text) > 2 else '"stream": true}')
    with script_server.http() as client:
        response = client.post("/v1/chat/completions", content=text)
    found = response.json()
    assert response.status_code == 400, found
    assert set(found["error"]) == {"message", "type", "param", "code"}
    assert (found["error"]["type"], found["error"]["param"]) == ("invalid_request_error", case["param"])
    assert found["detail"] == found["error"]["message"]
    assert not any(word in response.text for word in PYTHON_TEXT)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405)],
)
def test_unknown_routes_and_methods_answer_in_the_same_shape(
    script_server: Server, method: str, path: str, status: int
) -> None:
    with script_server.http() as client:
        response = client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["detail"]


def test_json_nested_without_end_is_a_400(script_server: Server) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    with script_server.http() as client:
        response = client.post("/v1/chat/completions", content=f'{{"messages": {deep}}}')
        assert response.status_code == 400
        assert client.get("/livez").status_code == 200


def test_an_unknown_field_is_logged_once_and_has_no_effect(script_server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "A8-w"}], "made_up_field": 1}
    with script_server.http() as client:
        for _ in range(3):
            assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert sum("made_up_field" in line for line in script_server.lines) == 1


def test_fields_without_effect_are_accepted(script_server: Server) -> None:
    body = {
        "messages": [{"role": "user", "content": "A8-w"}],
        **{"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "verbosity": "low"},
        **{"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "tools": [], "response_format": {"type": "text"}},
    }
    with script_server.http() as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_a_body_beyond_the_limit_is_a_413(script_server: Server) -> None:
    with script_server.http() as client:
        response = client.post("/v1/chat/completions", content=b"x" * (17 << 20))
    assert response.status_code == 413


def test_no_422_appears_in_the_openapi_document(script_server: Server) -> None:
    with script_server.http() as client:
        document = client.get("/openapi.json").json()
    assert "/v1/chat/completions" in document["paths"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert "422" not in operation["responses"], (method, path)
