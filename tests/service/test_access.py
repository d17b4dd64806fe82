"""API keys, their rights, and how often a caller may come."""

import hashlib
from pathlib import Path

import httpx
import pytest

from sphereface2.service.keys import VARIABLE, Key, RateLimit, find_key, read_keys
from tests.service.conftest import Start, code

READ, WRITE = "r" * 20, "w" * 20
Pictures = dict[str, bytes]


@pytest.fixture(scope="module")
def keys() -> tuple[Key, ...]:
    return tuple(
        Key(name, writes, hashlib.sha256(secret.encode()).digest())
        for name, writes, secret in (("camera", False, READ), ("office", True, WRITE))
    )


@pytest.fixture(scope="module")
def locked(
    start: Start, keys: tuple[Key, ...], tmp_path_factory: pytest.TempPathFactory
) -> httpx.Client:
    return start(keys, gallery=str(tmp_path_factory.mktemp("people") / "people"))


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_without_a_right_key_nothing_is_reported(locked: httpx.Client, pictures: Pictures) -> None:
    for path in ("/v1/models", "/v1/settings", "/v1/calibration", "/v1/collections", "/metrics"):
        refused = locked.get(path)
        assert (refused.status_code, code(refused)) == (401, "missing_key"), path
        assert refused.headers["www-authenticate"] == "Bearer"
        for wrong in ("x", READ + "x", READ[:-1], "x" * 10_000):
            refused = locked.get(path, headers=bearer(wrong))
            assert (refused.status_code, code(refused)) == (401, "wrong_key")
    refused = locked.post("/v1/embed", files={"photos": pictures["a"]})
    assert (refused.status_code, code(refused)) == (401, "missing_key")
    odd = locked.get("/v1/models", headers={b"Authorization": b"Bearer \xff\xfe\xe4" + b"x" * 20})
    assert odd.status_code == 401
    assert locked.get("/v1/health").status_code == 200
    assert locked.get("/").status_code == 200


def test_a_key_that_reads_does_not_write(locked: httpx.Client, pictures: Pictures) -> None:
    people = "/v1/collections/default/people"
    enrol = {"files": {"photos": pictures["a"]}, "data": {"name": "Ann", "allow": "all"}}
    writes = [
        ("POST", people, enrol),
        ("PUT", "/v1/collections/staff", {}),
        ("DELETE", "/v1/collections/default", {}),
        ("PATCH", f"{people}/Ann", {"json": {"name": "Eve"}}),
        ("DELETE", f"{people}/Ann", {}),
        ("DELETE", "/v1/collections/default/photos/x", {}),
        ("POST", "/v1/feedback", {"files": {"photo": pictures["a"]}}),
        ("DELETE", "/v1/feedback/x", {}),
    ]
    for method, path, options in writes:
        refused = locked.request(method, path, headers=bearer(READ), **options)  # type: ignore[arg-type]
        assert (refused.status_code, code(refused)) == (403, "read_only_key"), path
    done = locked.post(people, headers={"X-API-Key": WRITE}, **enrol)  # type: ignore[arg-type]
    assert done.status_code == 201
    asked = {"photo": pictures["a"]}
    found = locked.post("/v1/identify", headers=bearer(READ), files=asked)
    assert found.json()["person"] == "Ann"
    # With keys, other names of the host are in order.
    named = locked.get("/v1/models", headers={**bearer(READ), "host": "faces.example"})
    assert named.status_code == 200


def test_every_route_that_changes_something_needs_a_key_that_writes(locked: httpx.Client) -> None:
    paths = locked.get("/v1/openapi.json").json()["paths"]
    reading = {"/v1/detect", "/v1/embed", "/v1/verify", "/v1/identify"}
    assert reading < set(paths)
    refusing = 0
    for path, methods in paths.items():
        for method in set(methods) & {"post", "put", "patch", "delete"}:
            refused = locked.request(method, path, headers=bearer(READ))
            if path in reading or path.endswith("/verify"):
                assert refused.status_code != 403, path
            else:
                assert code(refused) == "read_only_key", (method, path)
                refusing += 1
    assert refusing > 5


def test_a_caller_that_comes_too_often_waits(start: Start, keys: tuple[Key, ...]) -> None:
    client = start(keys, rate=0.001, burst=3)  # which no machine is too slow for
    answers = [client.get("/v1/models", headers=bearer(READ)) for _ in range(5)]
    assert [each.status_code for each in answers[:3]] == [200] * 3
    assert code(answers[-1]) == "rate_limited"
    assert 500 <= int(answers[-1].headers["retry-after"]) <= 1000
    # Others are not held up, wrong keys are counted by their address, health is not counted.
    assert client.get("/v1/models", headers=bearer(WRITE)).status_code == 200
    guesses = [client.get("/v1/models", headers=bearer("x" * 20)) for _ in range(5)]
    assert guesses[-1].status_code == 429
    assert all(client.get("/v1/health").status_code == 200 for _ in range(10))


def test_the_limit_fills_up_again() -> None:
    now = [0.0]
    limit = RateLimit(2.0, 4, clock=lambda: now[0])
    assert [limit.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert limit.take("b") == 0
    now[0] = 0.25
    assert limit.take("a") == pytest.approx(0.25)
    now[0] = 0.5
    assert (limit.take("a"), limit.take("a")) == (0, 0.5)
    now[0] = 100.0
    assert [limit.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert RateLimit(0, 1).take("a") == 0


def test_keys_come_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(WRITE.encode()).hexdigest()
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\ncamera read {READ}\noffice  write  sha256:{digest}\n")
    monkeypatch.setenv(VARIABLE, "third read " + "t" * 16)
    keys = read_keys(file)
    assert [(key.name, key.writes) for key in keys] == [
        ("third", False),
        ("camera", False),
        ("office", True),
    ]
    found = find_key(keys, WRITE)
    assert found is not None
    assert found.name == "office"
    assert find_key(keys, WRITE + " ") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("camera read", "line 1 of .* is not an API key"),
        ("camera red " + READ, "did you mean 'read'"),
        ("camera read short", "at least 16 characters"),
        ("# none", "holds no key"),
        (f"a read {READ}\na write {WRITE}", "two API keys have the name 'a'"),
    ],
)
def test_a_faulty_key_file_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ValueError, match=why) as error:
        read_keys(file)
    assert READ not in str(error.value)
