"""Whatever a caller sends: a 4xx with a code, never a stack trace, and the next request works."""

import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from sphereface2.service.server import Http
from tests.recognition.test_photos import large_png
from tests.service.conftest import Start, code, in_base64

Pictures = dict[str, bytes]


@pytest.fixture(autouse=True)
def _next_request_works(client: httpx.Client, pictures: Pictures) -> Iterator[None]:
    yield
    assert client.post("/v1/embed", files={"photos": pictures["a"]}).status_code == 200


def test_pictures_that_cannot_be_used(client: httpx.Client, pictures: Pictures) -> None:
    bad = {
        "no_face": pictures["wall"],
        "unreadable_photo": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        "too_many_pixels": large_png(),
    }
    for wanted, photo in bad.items():
        for path, field in (("/v1/embed", "photos"), ("/v1/verify", "person")):
            files = [(field, photo)] + ([("photo", pictures["a"])] if field == "person" else [])
            refused = client.post(path, files=files)
            assert (refused.status_code, code(refused)) == (422, wanted), path
    for photo in (b"", b"\xff\xd8\xff", pictures["a"][:1000], bytes(1000)):
        refused = client.post("/v1/embed", files={"photos": photo})
        assert (refused.status_code, code(refused)) == (422, "unreadable_photo")
    several = client.post("/v1/embed", files={"photos": pictures["two"]}, data={"choose": "only"})
    assert (several.status_code, code(several)) == (422, "several_faces")


def test_many_faces_in_a_photo(start: Start, rendered: list[NDArray[np.uint8]]) -> None:
    crowd = np.full((300, 720, 3), 120, np.uint8)
    for row in range(2):
        for column in range(5):
            top, left = 20 + 140 * row, 10 + 140 * column
            crowd[top : top + 112, left : left + 112] = rendered[(row + column) % 6]
    photo = cv2.imencode(".png", crowd[..., ::-1])[1].tobytes()
    few = start(max_faces=5)
    for path, field in (("/v1/detect", "photo"), ("/v1/embed", "photos")):
        refused = few.post(path, files={field: photo})
        assert (refused.status_code, code(refused)) == (422, "several_faces")


def test_a_large_upload_is_refused_while_it_arrives(client: httpx.Client) -> None:
    refused = client.post("/v1/embed", files={"photos": bytes(25_000_000)})
    assert (refused.status_code, code(refused)) == (413, "too_large")

    def endless() -> Iterator[bytes]:
        for _ in range(250):
            yield bytes(100_000)

    headers = {"content-type": "application/json"}
    refused = client.post("/v1/embed", content=endless(), headers=headers)  # without a length
    assert (refused.status_code, code(refused)) == (413, "too_large")


def test_an_upload_that_announces_too_much_is_refused_at_once(client: httpx.Client) -> None:
    link = http.client.HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)
    link.putrequest("POST", "/v1/embed")
    link.putheader("Content-Length", str(10**12))
    link.putheader("Content-Type", "application/json")
    link.endheaders()
    answer = link.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read())["error"]["code"] == "too_large"
    link.close()


@pytest.mark.parametrize(
    ("body", "kind", "status", "wanted"),
    [
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"{}", "", 415, "unsupported_media_type"),
        (b"{", "application/json", 422, "invalid"),
        (b"[]", "application/json", 422, "invalid"),
        (b"null", "application/json", 422, "invalid"),
        (b"\xff\xfe", "application/json", 422, "invalid"),
        (b"[" * 100_000, "application/json", 422, "invalid"),
        (b'{"photos": "\\ud800"}', "application/json", 422, "invalid"),
        (b'{"photos": ["!!"]}', "application/json", 422, "invalid"),
        (b'{"photos": [1]}', "application/json", 422, "invalid"),
        (b'{"photos": []}', "application/json", 422, "invalid"),
        (b'{"photo": ""}', "application/json", 422, "invalid"),
        (b"--x", "multipart/form-data", 400, "bad_form"),
        (b"nothing", "multipart/form-data; boundary=x", 400, "bad_form"),
        (b"--x\r\n\r\nhm\r\n--x--", "multipart/form-data; boundary=x", 400, "bad_form"),
        (b"", "multipart/form-data; boundary=x", 422, "invalid"),
    ],
)
def test_bodies_that_cannot_be_read(
    client: httpx.Client, body: bytes, kind: str, status: int, wanted: str
) -> None:
    refused = client.post("/v1/embed", content=body, headers={"content-type": kind})
    assert code(refused) == wanted, refused.text
    assert refused.status_code == status


def test_fields_that_cannot_be(client: httpx.Client, pictures: Pictures) -> None:
    photo = in_base64(pictures["a"])
    good = {"photo": photo, "person": [photo]}
    wrong: list[dict[str, Any]] = [
        {"false_accepts": 0},
        {"false_accepts": 1},
        {"false_accepts": -1},
        {"false_accepts": "often"},
        {"false_accepts": "1 in 0"},
        {"false_accepts": 1e-9},  # which the calibration cannot resolve
        {"prior": 2},
        {"prior": "1e400"},
        {"kind": "picture"},
        {"choose": "best"},
        {"more": 1},
        {"person": []},
        {"person": [photo] * 33},
        {"person": None},
    ]
    for change in wrong:
        refused = client.post("/v1/verify", json={**good, **change})
        assert refused.status_code == 422, change
        assert code(refused) in ("invalid", "too_many_photos")
        assert photo not in refused.text
    many = client.post("/v1/embed", files=[("photos", b"x")] * 60)
    assert (many.status_code, code(many)) == (400, "bad_form")
    twice = client.post("/v1/detect", files=[("photo", b"x")] * 2)
    assert (twice.status_code, code(twice)) == (400, "bad_form")
    assert code(client.post("/v1/detect?crops=perhaps", files={"photo": b"x"})) == "invalid"


PHOTO = in_base64(b"x" * 3_000)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "body must be a JSON object, not 0 bytes that cannot be read at line 1, column 0"),
        (
            b'{"photo": "x",\n}',
            "body must be a JSON object, not 16 bytes that cannot be read at line 2, column 1",
        ),
        (b"[1, 2]", "body must be a JSON object, not a list of 2"),
        (b"null", "body must be a JSON object, not null"),
        ({}, "photo must be given; the request has no field"),
        ({"kind": "crop", "phto": "x"}, "photo must be given; the request has kind, phto"),
        (
            {"phto": PHOTO, "photo": PHOTO},
            "phto is not a field of this request; did you mean 'photo'? (known: kind, choose, "
            "photo, collection, people, false_alarms, false_accepts, prior)",
        ),
        ({"photo": "!!"}, "photo must be a picture's bytes in base64, not '!!'"),
        (
            {"photo": [PHOTO]},
            "photo must be a picture: base64 in JSON, a file in a form, not a list of 1",
        ),
        ({"photo": None}, "photo must be a picture: base64 in JSON, a file in a form, not null"),
        ({"kind": "pohto"}, "kind must be 'auto', 'photo' or 'crop', not 'pohto'; did you mean "
         "'photo'?"),
        ({"choose": PHOTO}, "choose must be 'prominent', 'largest', 'central' or 'only', not a "
         "text of 4,000 characters"),
        ({"collection": 5}, "collection must be a text, not 5"),
        ({"collection": "x" * 201}, "collection must be a text of at most 200 characters, not a "
         "text of 201 characters"),
        ({"people": "many"}, "people must be a whole number, not 'many'"),
        ({"people": 1.5}, "people must be a whole number, not 1.5"),
        ({"people": 0}, "people must be at least 1, not 0"),
        ({"people": 101}, "people must be at most 100, not 101"),
        ({"prior": 0}, "prior must be above 0, not 0"),
        ({"prior": True}, "prior must be below 1, not true"),
        ({"prior": {"a": 1}}, "prior must be a number, not an object"),
        ({"false_alarms": "often"}, "false_alarms must be a rate between 0 and 1, such as 1e-4, "
         "0.01% or '1 in 10,000', not 'often'"),
        (dict.fromkeys(map(str, range(1001))), "body must be an object of kind, choose, photo, "
         "collection, people, false_alarms, false_accepts, prior, not of thousands of fields"),
    ],
)  # fmt: skip
def test_a_sentence_says_the_field_what_was_given_and_what_is_wanted(
    client: httpx.Client, body: Any, sentence: str
) -> None:
    if isinstance(body, dict):
        given = {} if "photo" in sentence else {"photo": PHOTO}
        body = json.dumps({**given, **body}).encode()
    head = {"content-type": "application/json"}
    refused = client.post("/v1/identify", content=body, headers=head)
    assert (refused.status_code, code(refused)) == (422, "invalid")
    error = refused.json()["error"]
    assert error["message"] == sentence
    (first, *_) = error["details"]["fields"]
    assert sentence == f"{first['field']} {first['message']}"
    assert PHOTO[:50] not in refused.text


@pytest.mark.parametrize("item", ["1", '""'])
def test_the_items_of_far_too_long_a_list_are_not_read(client: httpx.Client, item: str) -> None:
    body = f'{{"photos": [{",".join([item] * 1001)}]}}'.encode()
    refused = client.post("/v1/embed", content=body, headers={"content-type": "application/json"})
    assert (refused.status_code, code(refused)) == (422, "invalid")
    sentence = "photos must be a list of at most 1,000, not a list of 1,001"
    assert refused.json()["error"]["message"] == sentence
    assert len(refused.json()["error"]["details"]["fields"]) == 1


def test_forms_and_addresses_have_such_sentences_too(
    client: httpx.Client, pictures: Pictures
) -> None:
    people = "/v1/collections/default/people"
    photos = ("photos", pictures["a"])

    def said(answer: httpx.Response) -> str:
        assert (answer.status_code, code(answer)) == (422, "invalid")
        return str(answer.json()["error"]["message"])

    wrong = {"name": "Ann", "metadata": "{"}
    assert said(client.post(people, files=[photos], data=wrong)) == (
        "metadata must be a JSON object, not '{'"
    )
    listed = {"name": "Ann", "metadata": "[1]"}
    assert said(client.post(people, files=[photos], data=listed)) == (
        "metadata must be a JSON object, not a list of 1"
    )
    unread = [photos, ("name", b"\xff\xfe")]
    assert said(client.post(people, files=unread)) == "name must be a text, not 2 bytes"
    nameless = {"name": ""}
    assert said(client.post(people, files=[photos], data=nameless)) == (
        "name must be a text of 1 or more characters, not ''"
    )
    many = {"name": "Ann", "allow": ["all"] * 21}
    assert said(client.post(people, files=[photos], data=many)) == (
        "allow must be a list of at most 20, not a list of 21"
    )
    assert said(client.post("/v1/embed", json={"photos": []})) == (
        "photos must be a list of 1 or more, not a list of 0"
    )
    assert said(client.post("/v1/embed", json={"photos": [PHOTO, 1]})) == (
        "photos.1 must be a picture: base64 in JSON, a file in a form, not 1"
    )
    assert said(client.get(people, params={"limit": "some"})) == (
        "query.limit must be a whole number, not 'some'"
    )
    assert said(client.get(f"/v1/collections/{'x' * 201}")) == (
        "path.collection must be a text of at most 200 characters, not a text of 201 characters"
    )
    assert said(client.post("/v1/embed?crops=perhaps", files=[photos])) == (
        "query.crops must be true or false, not 'perhaps'"
    )
    two = client.post("/v1/embed", json={"photos": PHOTO, "kind": 1, "choose": "x" * 41}).json()
    assert two["error"]["details"]["fields"] == [
        {"field": "kind", "message": "must be 'auto', 'photo' or 'crop', not 1"},
        {
            "field": "choose",
            "message": "must be 'prominent', 'largest', 'central' or 'only', not a text of 41 "
            "characters",
        },
    ]
    long = client.post("/v1/embed", json={"photos": PHOTO, "y" * 10_000: 1})
    assert len(long.text) < 1_000


def test_no_error_says_more_than_the_openapi(client: httpx.Client) -> None:
    found = client.get("/v1/openapi.json").json()
    assert "ValidationError" not in json.dumps(found)  # FastAPI's own form of a 422
    for methods in found["paths"].values():
        for route in methods.values():
            schema = route["responses"]["422"]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}


def test_a_request_id_goes_into_the_answer_only_if_it_is_harmless(client: httpx.Client) -> None:
    assert (
        client.get("/v1/health", headers={"x-request-id": "abc.1"}).headers["x-request-id"]
        == "abc.1"
    )
    for bad in ("a b", "x" * 65, "ä".encode("latin-1"), "<b>", '"'):
        given: Any = bad
        found = client.get("/v1/nothing", headers={"x-request-id": given})
        assert re.fullmatch("[0-9a-f]{32}", found.headers["x-request-id"])
        assert code(found) == "not_found"


def raw(client: httpx.Client, *parts: bytes, pause: float = 0.0) -> bytes:
    """What the server answers to some bytes, until it closes; a TimeoutError if it does not."""
    address = (str(client.base_url.host), int(client.base_url.port or 0))
    with socket.create_connection(address, timeout=30) as link:
        for part in parts:
            link.sendall(part)
            time.sleep(pause)
        answer = b""
        try:
            while some := link.recv(65_536):
                answer += some
        except ConnectionResetError:
            pass
        return answer


def test_what_is_not_http_and_headers_with_line_breaks(client: httpx.Client) -> None:
    for sent in (
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ):
        answer = raw(client, sent + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_request"
    injected = raw(
        client,
        b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"X-Request-ID: a%0d%0aSet-Cookie: x\r\n\r\n",
    )
    assert b"set-cookie" not in injected.lower()


def test_slow_heads_and_bodies_are_given_up(start: Start, pictures: Pictures) -> None:
    slow = start(header_timeout=0.5, body_timeout=0.5)
    assert Http.header_timeout == 0.5  # else it would be given up as well, after the usual time
    assert raw(slow, b"GET /v1/health HTTP/1.1\r\n") == b""  # closed, without an answer
    assert raw(slow, b"") == b""
    head = b"POST /v1/embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = raw(slow, head + b"Content-Length: 100\r\n\r\n{", b"}", pause=0.1)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"slow_upload" in answer
    assert slow.post("/v1/embed", files={"photos": pictures["a"]}).status_code == 200
    # A connection that is kept open may rest for longer than a head may take.
    assert slow.get("/v1/health").status_code == 200
    time.sleep(0.8)
    assert slow.get("/v1/health").status_code == 200


def test_pages_of_other_hosts_may_not_call(start: Start, pictures: Pictures) -> None:
    client = start(origins=("https://example.org",))
    files = {"photos": pictures["a"]}
    own = str(client.base_url).rstrip("/")
    assert client.post("/v1/embed", files=files, headers={"origin": own}).status_code == 200
    for origin in ("https://evil.example", "null", "http://localhost"):
        refused = client.post("/v1/embed", files=files, headers={"origin": origin})
        assert (refused.status_code, code(refused)) == (403, "cross_origin")
        assert "access-control-allow-origin" not in refused.headers
    allowed = {"origin": "https://example.org"}
    found = client.post("/v1/embed", files=files, headers=allowed)
    assert found.headers["access-control-allow-origin"] == "https://example.org"
    ask = {**allowed, "access-control-request-method": "POST"}
    assert client.options("/v1/embed", headers=ask).status_code == 204
    ask["origin"] = "https://evil.example"
    assert client.options("/v1/embed", headers=ask).status_code == 403


def test_a_name_that_leads_here_from_elsewhere_is_refused(client: httpx.Client) -> None:
    refused = client.get("/v1/models", headers={"host": "rebound.example:8000"})
    assert (refused.status_code, code(refused)) == (421, "unknown_host")
    assert client.get("/v1/models", headers={"host": "localhost:1"}).status_code == 200
