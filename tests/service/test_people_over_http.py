"""Collections and people over HTTP: enrol, search, rename, remove, and not this person."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from sphereface2 import Recognizer
from sphereface2.galleries import drop_collection, open_gallery
from sphereface2.galleries.gallery import BrokenGalleryError, Gallery
from sphereface2.service.errors import ApiError
from sphereface2.service.service import Collections
from sphereface2.service.settings import Settings
from tests.galleries.engines import ENGINES
from tests.service.conftest import Start, caller, code, in_base64, running

Pictures = dict[str, bytes]
PEOPLE = "/v1/collections/default/people"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the service keeps people."""
    return tmp_path_factory.mktemp("gallery") / "people"


@pytest.fixture(scope="module")
def service(start: Start, folder: Path) -> httpx.Client:
    return start(gallery=str(folder))


@pytest.fixture
def people(service: httpx.Client) -> Iterator[httpx.Client]:
    """A service with an empty gallery."""
    yield service
    for name in service.get("/v1/collections").json()["collections"]:
        service.delete(f"/v1/collections/{name}")  # the default one is made again, empty


def enrol(client: httpx.Client, name: str, *photos: bytes, **headers: str) -> httpx.Response:
    return client.post(
        PEOPLE,
        files=[("photos", photo) for photo in photos],
        data={"name": name, "allow": "all"},
        headers={key.replace("_", "-"): value for key, value in headers.items()},
    )


def test_somebody_enrolled_is_found_and_removed(
    people: httpx.Client, pictures: Pictures, place: Path, folder: Path
) -> None:
    for name, photo in (("Ann", "a"), ("Bob", "b"), ("Carl", "c")):
        done = enrol(people, name, pictures[photo])
        assert done.status_code == 201, done.text
        assert done.json()["added"] == 1
    found = people.post("/v1/identify", files={"photo": pictures["b"]}).json()
    assert found["person"] == "Bob"
    # The same as the recognizer itself says, of the same gallery.
    recognizer = Recognizer(place / "model")
    gallery = recognizer.open_gallery(folder)
    expected = recognizer.identify(place / "b.png", gallery).to_mapping()
    gallery.close()
    assert found["words"] == expected["words"]
    assert found["rule"] == expected["rule"]
    assert [each["person"] for each in found["candidates"]] == [
        each["person"] for each in expected["candidates"]
    ]
    first = found["candidates"][0]
    assert first["false_alarms"]["interval"]["high"] > first["false_accepts"]["interval"]["high"]
    verified = people.post(f"{PEOPLE}/Bob/verify", files={"photo": pictures["b"]}).json()
    assert (verified["accepted"], verified["person"]) == (True, "Bob")
    assert people.delete(f"{PEOPLE}/Bob").json() == {"photos": 1}
    again = people.delete(f"{PEOPLE}/Bob")
    assert (again.status_code, code(again)) == (404, "unknown_person")
    listed = people.get(PEOPLE).json()
    assert [each["name"] for each in listed["people"]] == ["Ann", "Carl"]


@pytest.mark.parametrize("engine", ["postgresql", "qdrant-edge"])
def test_people_may_be_kept_by_any_engine(
    engine: str, place: Path, pictures: Pictures, tmp_path: Path
) -> None:
    with ENGINES[engine](tmp_path) as url:
        settings = Settings(model=place / "model", gallery=url)
        for again in (False, True):  # the second server finds what the first has kept
            with running(settings) as address, caller(address) as client:
                if not again:
                    assert enrol(client, "Ann", pictures["a"]).status_code == 201
                    assert enrol(client, "Bob", pictures["b"]).status_code == 201
                found = client.post("/v1/identify", files={"photo": pictures["b"]}).json()
                assert found["person"] == "Bob"
                if again:
                    assert client.delete(f"{PEOPLE}/Bob").json() == {"photos": 1}
                    gone = client.post(f"{PEOPLE}/Bob/verify", files={"photo": pictures["b"]})
                    assert (gone.status_code, code(gone)) == (404, "unknown_person")


def test_people_are_listed_by_pages_and_searched(people: httpx.Client, pictures: Pictures) -> None:
    for name in ("Anna", "Annette", "Bob"):
        enrol(people, name, pictures["a"])
    first = people.get(PEOPLE, params={"limit": 2}).json()
    assert [each["name"] for each in first["people"]] == ["Anna", "Annette"]
    assert (first["total"], first["next"]) == (3, "Annette")
    last = people.get(PEOPLE, params={"limit": 2, "after": first["next"]}).json()
    assert ([each["name"] for each in last["people"]], last["next"]) == (["Bob"], None)
    found = people.get(PEOPLE, params={"search": "ann"}).json()
    assert found["total"] == 2


def test_the_gate_gives_its_reasons(people: httpx.Client, pictures: Pictures) -> None:
    files = [("photos", pictures["a"]), ("photos", pictures["wall"])]
    done = people.post(PEOPLE, files=files, data={"name": "Ann", "limits": "blurred=0.001"})
    assert done.status_code == 201, done.text
    taken, refused = done.json()["photos"]
    assert (taken["accepted"], refused["accepted"]) == (True, False)
    assert [each["code"] for each in refused["reasons"]] == ["no_face"]
    none = people.post(PEOPLE, files={"photos": pictures["two"]}, data={"name": "Bob"})
    assert (none.status_code, code(none)) == (422, "not_enrolled")
    (photo,) = none.json()["error"]["details"]["photos"]
    assert "several_faces" in [each["code"] for each in photo["reasons"]]
    wrong = people.post(
        PEOPLE, files={"photos": pictures["a"]}, data={"name": "Bob", "allow": "blured"}
    )
    assert (wrong.status_code, code(wrong)) == (422, "invalid")
    assert "blurred" in wrong.json()["error"]["message"]
    assert people.get(PEOPLE).json()["total"] == 1


def test_a_person_is_shown_renamed_and_described(people: httpx.Client, pictures: Pictures) -> None:
    enrol(people, "Ann", pictures["a"], pictures["b"])
    enrol(people, "Bob", pictures["c"])
    body = {"name": "Anna", "metadata": {"team": "red"}}
    changed = people.patch(f"{PEOPLE}/Ann", json=body).json()
    assert (changed["name"], changed["metadata"]) == ("Anna", {"team": "red"})
    assert len(changed["photos"]) == 2
    taken = people.patch(f"{PEOPLE}/Anna", json={"name": "Bob"})
    assert (taken.status_code, code(taken)) == (409, "name_taken")
    shown = people.get(f"{PEOPLE}/Anna").json()
    crop = people.get(f"/v1/collections/default/photos/{shown['photos'][0]['id']}/crop")
    assert crop.headers["content-type"] == "image/png"
    assert crop.content.startswith(b"\x89PNG")
    gone = people.delete(f"/v1/collections/default/photos/{shown['photos'][0]['id']}")
    assert gone.json() == {"photos": 1}
    assert len(people.get(f"{PEOPLE}/Anna").json()["photos"]) == 1
    unknown = people.delete("/v1/collections/default/photos/nothing")
    assert (unknown.status_code, code(unknown)) == (404, "unknown_photo")


def test_a_form_describes_a_person_too(people: httpx.Client, pictures: Pictures) -> None:
    enrol(people, "Ann", pictures["a"])
    form = {"metadata": (None, json.dumps({"team": "blue"}))}
    assert people.patch(f"{PEOPLE}/Ann", files=form).json()["metadata"] == {"team": "blue"}
    wrong = people.patch(f"{PEOPLE}/Ann", files={"metadata": (None, "{")})
    assert (wrong.status_code, code(wrong)) == (422, "invalid")


def test_a_repeated_request_is_done_once(people: httpx.Client, pictures: Pictures) -> None:
    first = enrol(people, "Ann", pictures["a"], Idempotency_Key="k1").json()
    second = enrol(people, "Ann", pictures["a"], Idempotency_Key="k1").json()
    assert first["photos"][0]["id"] == second["photos"][0]["id"]
    assert people.get("/v1/collections/default").json()["photos"] == 1
    other = enrol(people, "Bob", pictures["b"], Idempotency_Key="k1")
    assert (other.status_code, code(other)) == (409, "key_reused")
    for _ in range(2):
        renamed = people.patch(
            f"{PEOPLE}/Ann", json={"name": "Anna"}, headers={"Idempotency-Key": "k2"}
        )
        assert renamed.json()["name"] == "Anna"
    for _ in range(2):
        removed = people.delete(f"{PEOPLE}/Anna", headers={"Idempotency-Key": "k3"})
        assert removed.json() == {"photos": 1}
    used = people.delete(f"{PEOPLE}/Anna", headers={"Idempotency-Key": "k2 rename"})
    assert (used.status_code, code(used)) == (422, "invalid")


def test_not_this_person_and_back(people: httpx.Client, pictures: Pictures) -> None:
    enrol(people, "Annabel", pictures["a"])
    headers = {"Idempotency-Key": "n1"}
    said = [
        people.post(
            "/v1/feedback",
            files={"photo": pictures["b"]},
            data={"person": "Annabel"},
            headers=headers,
        )
        for _ in range(2)
    ]
    assert [each.status_code for each in said] == [201, 201]
    assert said[0].json()["id"] == said[1].json()["id"]
    stranger = people.post("/v1/feedback", json={"photo": in_base64(pictures["c"])}).json()
    assert stranger["person"] is None
    kept = people.get("/v1/feedback", params={"person": "Annabel"}).json()["feedback"]
    assert [each["id"] for each in kept] == [said[0].json()["id"]]
    found = people.post("/v1/identify", files={"photo": pictures["b"]}).json()
    assert found["candidates"][0]["objection"]["negatives"] == 2
    undone = people.delete(f"/v1/feedback/{kept[0]['id']}")
    assert undone.json()["dropped"] is True
    assert people.get("/v1/feedback", params={"person": "Annabel"}).json()["feedback"] == []
    gone = people.delete(f"/v1/feedback/{kept[0]['id']}")
    assert (gone.status_code, code(gone)) == (404, "unknown_feedback")
    nobody = people.post("/v1/feedback", files={"photo": pictures["b"]}, data={"person": "Anabel"})
    assert (nobody.status_code, code(nobody)) == (404, "unknown_person")
    assert "'Annabel'" in nobody.json()["error"]["message"]


def test_collections_are_apart(people: httpx.Client, pictures: Pictures) -> None:
    assert people.put("/v1/collections/staff").status_code == 201
    assert people.put("/v1/collections/staff").status_code == 200
    assert people.get("/v1/collections").json()["collections"] == ["default", "staff"]
    done = people.post(
        "/v1/collections/staff/people",
        files={"photos": pictures["a"]},
        data={"name": "Ann", "allow": "all"},
    )
    assert done.status_code == 201
    empty = people.post("/v1/identify", files={"photo": pictures["a"]})
    assert (empty.status_code, code(empty)) == (409, "nobody_enrolled")
    asked = {"collection": "staff"}
    found = people.post("/v1/identify", files={"photo": pictures["a"]}, data=asked)
    assert found.json()["person"] == "Ann"
    assert people.delete("/v1/collections/staff").json()["dropped"] is True
    assert people.delete("/v1/collections/staff").json()["dropped"] is False
    gone = people.post("/v1/identify", files={"photo": pictures["a"]}, data=asked)
    assert (gone.status_code, code(gone)) == (404, "unknown_collection")
    # A collection of the same name is another one.
    assert people.put("/v1/collections/staff").json()["people"] == 0


NAMES = [
    "AC/DC",
    "../../etc/passwd",
    "'; DROP TABLE person; --",
    "<script>alert(1)</script>",
    "Zoë 名前 🙂",
    "a?b#c%20d",
    "x" * 200,
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_name(people: httpx.Client, pictures: Pictures, name: str) -> None:
    assert enrol(people, name, pictures["a"]).json()["person"] == name
    path = f"{PEOPLE}/{quote(name, safe='')}"
    assert people.get(path).json()["name"] == name
    assert people.post("/v1/identify", files={"photo": pictures["a"]}).json()["person"] == name
    assert people.delete(path).json() == {"photos": 1}


@pytest.mark.parametrize("name", ["", "   ", "x" * 10_000, "x" * 201, "a\nb", "a\0b"])
def test_what_cannot_be_a_name_is_refused(
    people: httpx.Client, pictures: Pictures, name: str
) -> None:
    body = {"name": name, "photos": [in_base64(pictures["a"])], "allow": ["all"]}
    refused = people.post(PEOPLE, json=body)
    assert (refused.status_code, code(refused)) == (422, "invalid")
    assert people.get(PEOPLE).json()["total"] == 0


@pytest.mark.parametrize("name", ["Staff", "..", "a%2fb", "x" * 41, "_", "a b"])
def test_what_cannot_be_a_collection_is_refused(people: httpx.Client, name: str) -> None:
    refused = people.put(f"/v1/collections/{quote(name)}")
    assert refused.status_code in (404, 405, 422)
    code(refused)
    assert people.get("/v1/collections").json()["collections"] == ["default"]


def test_a_collection_that_is_used_while_it_is_dropped_is_gone(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collections = Collections(str(tmp_path / "people"), Recognizer(place / "model"))

    def used_before(url: str, name: str) -> None:
        collections.use(name, lambda gallery: gallery.count())  # by another request
        drop_collection(url, name)

    monkeypatch.setattr("sphereface2.service.service.drop_collection", used_before)
    collections.create("staff")
    for name in ("default", "staff"):
        assert collections.drop(name)
    assert collections.use("default", lambda gallery: gallery.count()) == (0, 0)
    with pytest.raises(ApiError, match="there is no collection 'staff'"):
        collections.use("staff", lambda gallery: gallery.count())
    collections.close()


def test_a_collection_of_another_model_is_refused_by_its_code(place: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "people")
    recognizer = Recognizer(place / "model")
    open_gallery(url, collection="staff", model="e" * 64, dim=8, create=True).close()
    collections = Collections(url, recognizer)
    with pytest.raises(ApiError, match="'staff' holds embeddings of another model") as refused:
        collections.use("staff", lambda gallery: gallery.count())
    assert (refused.value.status, refused.value.code) == (409, "other_model")
    collections.close()


def test_without_a_gallery_nobody_is_kept(client: httpx.Client, pictures: Pictures) -> None:
    for answer in (client.get(PEOPLE), client.post("/v1/identify", files={"photo": pictures["a"]})):
        assert (answer.status_code, code(answer)) == (409, "no_gallery")


def test_a_gallery_that_fails_is_opened_again_and_then_a_503(place: Path, tmp_path: Path) -> None:
    collections = Collections(str(tmp_path / "people"), Recognizer(place / "model"))
    seen: list[Gallery] = []

    def replaced(gallery: Gallery) -> tuple[int, int]:
        seen.append(gallery)
        if len(seen) == 1:
            raise BrokenGalleryError(f"the gallery {tmp_path} was removed or replaced")
        return gallery.count()

    assert collections.use("default", replaced) == (0, 0)
    assert seen[0] is not seen[1]
    seen[0].close()

    def broken(gallery: Gallery) -> None:
        raise OSError(f"{tmp_path} cannot be written: disk full")

    with pytest.raises(ApiError) as error:
        collections.use("default", broken)
    assert (error.value.status, error.value.code) == (503, "gallery_unavailable")
    assert str(tmp_path) not in error.value.message

    def refused(gallery: Gallery) -> None:
        raise ValueError("nobody is called so")

    with pytest.raises(ValueError, match="nobody is called so"):
        collections.use("default", refused)
    collections.close()


def test_a_gallery_that_was_replaced_is_not_an_unknown_person(
    people: httpx.Client, pictures: Pictures, folder: Path, place: Path
) -> None:
    photo = enrol(people, "Ann", pictures["a"]).json()["photos"][0]["id"]
    kept = f"/v1/collections/default/photos/{photo}"
    asks: list[Callable[[], httpx.Response]] = [
        lambda: people.get(f"{PEOPLE}/Ann"),
        lambda: people.patch(f"{PEOPLE}/Ann", json={"name": "Anna"}),
        lambda: people.delete(f"{PEOPLE}/Ann"),
        lambda: people.get(f"{kept}/crop"),
        lambda: people.delete(kept),
        lambda: people.delete(f"/v1/feedback/{photo}"),
    ]
    for ask in asks:  # another process drops the collection and makes it again
        drop_collection(str(folder), "default")
        Recognizer(place / "model").open_gallery(folder, create=True).close()
        refused = ask()
        assert refused.status_code == 404
        assert code(refused).startswith("unknown_")
        assert "this gallery" in refused.json()["error"]["message"]  # the new one was asked
        assert str(folder) not in refused.text


def test_a_damaged_collection_is_a_503_without_its_place(
    people: httpx.Client, folder: Path
) -> None:
    (folder / "staff").mkdir()
    (folder / "staff" / "people.sqlite").write_bytes(bytes(100))
    path = "/v1/collections/staff"
    for refused in (people.get(path), people.put(path), people.delete(path)):
        assert (refused.status_code, code(refused)) == (503, "gallery_unavailable")
        assert str(folder) not in refused.text
    shutil.rmtree(folder / "staff")
