"""What every gallery does, over all engines."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from sphereface2.galleries import drop_collection, list_collections, open_gallery
from sphereface2.galleries.gallery import MAX_NAME, Embeddings, Gallery, Hit, NewPhoto
from tests.galleries.engines import DIM, MODEL, photo, unit, without_index


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def naive(people: dict[str, list[NewPhoto]], query: Embeddings, count: int) -> list[str]:
    best = {
        name: max(float(each.embedding @ query) for each in photos)
        for name, photos in people.items()
        if photos
    }
    return sorted(best, key=lambda name: -best[name])[:count]


def test_what_is_added_is_there_after_opening_again(
    url: str, gallery: Gallery, rng: np.random.Generator
) -> None:
    first, second = photo(rng, source="a.jpg"), photo(rng, crop=0)
    ids = gallery.add("Ann", [first, second], metadata={"age": 7})
    other = gallery.add("Bob", [photo(rng)])
    assert gallery.count() == (2, 3)
    gallery.close()
    again = open_gallery(url, model=MODEL, dim=DIM)
    assert (again.name, again.model, again.dim) == ("default", MODEL, DIM)
    assert [(each.name, each.photos, each.metadata) for each in again.people()] == [
        ("Ann", 2, {"age": 7}),
        ("Bob", 1, {}),
    ]
    assert again.person("Ann").photos == 2
    kept = again.photos("Ann")
    assert [(each.id, each.person, each.source) for each in kept] == [
        (ids[0], "Ann", "a.jpg"),
        (ids[1], "Ann", ""),
    ]
    assert kept[0].facts == {"blur": 0.5}
    assert datetime.fromisoformat(kept[0].added).utcoffset() is not None
    assert [each.id for each in again.photos()] == ids + other
    np.testing.assert_array_equal(
        again.embeddings([ids[1], ids[0]]), [second.embedding, first.embedding]
    )
    assert again.embeddings([]).shape == (0, DIM)
    assert [again.crop(each) for each in ids] == [first.crop, b""]
    again.close()


def test_a_search_finds_the_people_that_a_loop_finds(
    gallery: Gallery, rng: np.random.Generator
) -> None:
    people = {
        f"person {number}": [photo(rng) for _ in range(1 + number % 4)] for number in range(40)
    }
    ids = {
        id_: each
        for name, photos in people.items()
        for id_, each in zip(gallery.add(name, photos), photos, strict=True)
    }
    gallery.add("nobody now", [photo(rng)])
    gallery.remove_photos([each.id for each in gallery.photos("nobody now")])
    queries = unit(rng, 9)
    for count in (1, 5, 100):
        found = gallery.search(queries, count)
        for query, hits in zip(queries, found, strict=True):
            assert [hit.person for hit in hits] == naive(people, query, count)
            for hit in hits:
                assert hit.score == pytest.approx(float(ids[hit.photo].embedding @ query), abs=1e-5)
                assert hit.person in people
    assert gallery.search(queries[:0]) == []


def test_an_empty_gallery_finds_nobody(gallery: Gallery, rng: np.random.Generator) -> None:
    assert gallery.search(unit(rng, 2), 3) == [[], []]
    assert (gallery.people(), gallery.photos(), gallery.count()) == ([], [], (0, 0))
    assert list(gallery.blocks()) == []
    assert gallery.negatives() == []


def test_blocks_give_all(gallery: Gallery, rng: np.random.Generator) -> None:
    photos = [photo(rng) for _ in range(7)]
    ids = gallery.add("Ann", photos[:3]) + gallery.add("Bob", photos[3:])
    blocks = list(gallery.blocks(3))
    assert [len(each) for each, _ in blocks] == [3, 3, 1]
    found = dict(zip(sum((each for each, _ in blocks), []), np.concatenate([e for _, e in blocks])))  # noqa: B905, RUF017
    assert found.keys() == set(ids)
    for id_, each in zip(ids, photos, strict=True):
        np.testing.assert_array_equal(found[id_], each.embedding)


def test_removed_people_and_photos_are_gone(gallery: Gallery, rng: np.random.Generator) -> None:
    ann, bob = gallery.add("Ann", [photo(rng), photo(rng)]), gallery.add("Bob", [photo(rng)])
    gallery.add_negative("Ann", unit(rng))
    kept = gallery.add_negative("Bob", unit(rng))
    assert gallery.remove("Ann") == 2
    assert [each.name for each in gallery.people()] == ["Bob"]
    assert [hit.person for hit in gallery.search(unit(rng, 1), 9)[0]] == ["Bob"]
    for ask in (gallery.crop, lambda each: gallery.embeddings([each])):
        with pytest.raises(ValueError, match=f"no photo '{ann[0]}'"):
            ask(ann[0])
    with pytest.raises(ValueError, match="nobody in this gallery is called 'Ann'"):
        gallery.negatives("Ann")
    assert [each.id for each in gallery.negatives("Bob")] == [kept]
    assert gallery.remove_photos(bob + bob) == 1
    assert gallery.person("Bob").photos == 0
    assert gallery.count() == (1, 0)
    new = photo(rng)
    (id_,) = gallery.add("Cy", [new])  # in the places that became free
    np.testing.assert_array_equal(gallery.embeddings([id_]), [new.embedding])
    assert gallery.crop(id_) == new.crop
    assert [hit.person for hit in gallery.search(new.embedding[None], 9)[0]] == ["Cy"]


@without_index
def test_all_photos_or_none_are_removed(gallery: Gallery, rng: np.random.Generator) -> None:
    ids = gallery.add("Ann", [photo(rng)])
    with pytest.raises(ValueError, match="no photo 'x'"):
        gallery.remove_photos([*ids, "x"])
    assert gallery.count() == (1, 1)


def test_people_are_renamed_and_described(gallery: Gallery, rng: np.random.Generator) -> None:
    ids = gallery.add("Ann", [photo(rng)], metadata={"a": 1})
    gallery.add("Bob", [photo(rng)])
    gallery.add_negative("Ann", unit(rng))
    gallery.rename("Ann", "  Zoë ")
    assert [each.name for each in gallery.people()] == ["Bob", "Zoë"]
    assert [each.person for each in gallery.photos()] == ["Zoë", "Bob"]
    assert [each.person for each in gallery.negatives("Zoe\u0308")] == ["Zoë"]
    hit = gallery.search(gallery.embeddings(ids))[0][0]
    assert (hit.person, hit.photo) == ("Zoë", ids[0])
    gallery.rename("Zoë", "Zoë")
    with pytest.raises(ValueError, match="already called 'Bob'"):
        gallery.rename("Zoë", "Bob")
    gallery.describe("Zoë", {"b": [1, None, "ü"]})
    assert gallery.person("Zoë").metadata == {"b": [1, None, "ü"]}
    gallery.add("Zoë", [photo(rng)])
    assert gallery.person("Zoë").metadata == {"b": [1, None, "ü"]}
    gallery.add("Zoë", [photo(rng)], metadata={})
    assert gallery.person("Zoë").metadata == {}


@without_index
def test_negatives_are_of_a_person_or_strangers(gallery: Gallery, rng: np.random.Generator) -> None:
    gallery.add("Ann", [photo(rng)])
    first, second, stranger = unit(rng, 3)
    ids = [gallery.add_negative("Ann", each, source="x.jpg") for each in (first, second)]
    alone = gallery.add_negative(None, stranger)
    assert [(each.id, each.person, each.source) for each in gallery.negatives("Ann")] == [
        (ids[0], "Ann", "x.jpg"),
        (ids[1], "Ann", "x.jpg"),
    ]
    (found,) = gallery.negatives()
    assert (found.id, found.person) == (alone, None)
    np.testing.assert_array_equal(found.embedding, stranger)
    assert [hit.person for hit in gallery.search(stranger[None], 5)[0]] == ["Ann"]
    assert gallery.count() == (1, 1)
    gallery.remove_negative(ids[0])
    assert [each.id for each in gallery.negatives("Ann")] == [ids[1]]
    with pytest.raises(ValueError, match=f"no negative '{ids[0]}'"):
        gallery.remove_negative(ids[0])


@without_index
def test_a_key_counts_once(gallery: Gallery, rng: np.random.Generator) -> None:
    ids = gallery.add("Ann", [photo(rng), photo(rng)], key="k1")
    assert gallery.add("Ann", [photo(rng)], key="k1") == ids
    negative = gallery.add_negative("Ann", unit(rng), key="k2")
    assert gallery.add_negative("Ann", unit(rng), key="k2") == negative
    assert gallery.count() == (1, 2)
    assert len(gallery.negatives("Ann")) == 1
    for _ in range(2):
        gallery.rename("Ann", "Bob", key="k3")
        gallery.describe("Bob", {"a": 1}, key="k4")
        gallery.remove_negative(negative, key="k5")
        assert gallery.remove_photos(ids[:1], key="k6") == 1
        assert gallery.remove("Bob", key="k7") == 1
        with pytest.raises(ValueError, match="key 'k7' was used for another request"):
            gallery.add("Ann", [photo(rng)], key="k7")
    assert gallery.count() == (0, 0)


@without_index
def test_a_key_of_a_request_that_failed_is_free(gallery: Gallery, rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="nobody"):
        gallery.remove("Ann", key="k")
    gallery.add("Ann", [photo(rng)])
    assert gallery.remove("Ann", key="k") == 1


@without_index
def test_unknown_people_are_refused_with_the_nearest_name(
    gallery: Gallery, rng: np.random.Generator
) -> None:
    gallery.add("Gisela", [photo(rng)])
    asks: list[Callable[[], object]] = [
        lambda: gallery.remove("Gisella"),
        lambda: gallery.rename("Gisella", "x"),
        lambda: gallery.describe("Gisella", {}),
        lambda: gallery.person("Gisella"),
        lambda: gallery.photos("Gisella"),
        lambda: gallery.negatives("Gisella"),
        lambda: gallery.add_negative("Gisella", unit(rng)),
    ]
    for ask in asks:
        with pytest.raises(ValueError, match="called 'Gisella'; did you mean 'Gisela'"):
            ask()


@without_index
def test_any_name_is_only_a_name(gallery: Gallery, rng: np.random.Generator) -> None:
    gallery.add("Ann", [photo(rng)])
    for name in (
        "Robert'); DROP TABLE person;--",
        "' OR 1=1 --",
        '"; DELETE FROM photo; "',
        "../../etc/passwd",
        "%s %(name)s {0} $1 ?",
        "名前 😀",
        "x" * MAX_NAME,
        "NULL",
        "a\u202eb",
    ):
        new = photo(rng, source=name)
        gallery.add(name, [new], metadata={name: name}, key=name)
        assert gallery.person(name).metadata == {name: name}
        assert gallery.search(new.embedding[None])[0][0].person == name
        assert gallery.photos(name)[0].source == name
        gallery.rename(name, f"{name[:-1]}2")
        assert gallery.remove(f"{name[:-1]}2") == 1
        assert gallery.count() == (1, 1)


@without_index
def test_what_cannot_be_kept_is_refused_in_a_sentence_and_changes_nothing(
    gallery: Gallery, rng: np.random.Generator
) -> None:
    gallery.add("Ann", [photo(rng)])
    good = photo(rng)
    wrong: list[tuple[str, list[NewPhoto], dict[str, Any], str]] = [
        ("x" * 10_000, [good], {}, "has 10,000 characters; at most 200"),
        (" ", [good], {}, "must not be empty"),
        ("a\nb", [good], {}, "control characters"),
        ("a\0b", [good], {}, "control characters"),
        ("Bob", [], {}, "no photo to add"),
        ("Bob", [good, NewPhoto(unit(rng)[:-1])], {}, "photo 2 has an embedding of shape"),
        ("Bob", [NewPhoto(2 * unit(rng))], {}, "of length 1"),
        ("Bob", [NewPhoto(np.full(DIM, np.nan, np.float32))], {}, "finite"),
        ("Bob", [NewPhoto(unit(rng), facts={"x": {1, 2}})], {}, "facts must be plain JSON"),
        ("Bob", [good], {"x": float("nan")}, "metadata must be plain JSON"),
        ("Bob", [good], {"x": "y" * 70_000}, "at most 65,536"),
        ("Bob", [NewPhoto(unit(rng), bytes(17 << 20))], {}, "crop of photo 1"),
    ]
    for name, photos, metadata, sentence in wrong:
        with pytest.raises(ValueError, match=sentence) as raised:
            gallery.add(name, photos, metadata=metadata)
        assert "\n" not in str(raised.value)
    queries = [unit(rng), unit(rng, 2)[:, :-1], np.full((1, DIM), np.inf, np.float32)]
    for query in queries:
        with pytest.raises(ValueError, match="queries"):
            gallery.search(query)
    with pytest.raises(ValueError, match="at least 1 person"):
        gallery.search(unit(rng, 1), 0)
    with pytest.raises(ValueError, match="of length 1"):
        gallery.add_negative("Ann", 3 * unit(rng))
    assert gallery.count() == (1, 1)
    assert gallery.negatives("Ann") == []


@without_index
def test_a_source_of_any_bytes_is_kept_as_text(gallery: Gallery, rng: np.random.Generator) -> None:
    gallery.add("Ann", [photo(rng, source="a\udcff\0'b.jpg")])
    assert gallery.photos()[0].source == "a\\xff'b.jpg"


def test_collections_are_apart(url: str, gallery: Gallery, rng: np.random.Generator) -> None:
    gallery.add("Ann", [photo(rng)], key="k")
    other = open_gallery(url, collection="staff", model="f" * 64, dim=DIM, create=True)
    other.add("Bob", [photo(rng)], key="k")
    assert [each.name for each in other.people()] == ["Bob"]
    assert [hit.person for hit in other.search(unit(rng, 1), 5)[0]] == ["Bob"]
    assert list_collections(url) == ["default", "staff"]
    other.close()
    with pytest.raises(FileNotFoundError, match=r"no collection 'staf'; did you mean 'staff'"):
        open_gallery(url, collection="staf")
    with pytest.raises(FileNotFoundError, match="no collection 'staf'"):
        drop_collection(url, "staf")
    drop_collection(url, "staff")
    assert list_collections(url) == ["default"]
    assert gallery.count() == (1, 1)
    again = open_gallery(url, collection="staff", model="e" * 64, dim=3, create=True)
    assert (again.count(), again.dim, again.search(np.eye(3, dtype=np.float32))) == (
        (0, 0),
        3,
        [[], [], []],
    )
    again.close()


@without_index
def test_another_model_is_refused(url: str, gallery: Gallery) -> None:
    with pytest.raises(ValueError, match=r"another model \(0123456789ab, not eeee"):
        open_gallery(url, model="e" * 64)
    with pytest.raises(ValueError, match=r"another model \(0123456789ab, not eeee"):
        open_gallery(url, model="e" * 64, dim=DIM, create=True)
    with pytest.raises(ValueError, match="16 values, not 8"):
        open_gallery(url, model=MODEL, dim=8)
    with pytest.raises(ValueError, match="is new: say the model"):
        open_gallery(url, collection="new", create=True)


@without_index
def test_a_collection_has_a_harmless_name(url: str) -> None:
    refused = "a collection's name has up to 40 lower-case"
    wrong = ["", "../x", "a/b", ".hidden", "x" * 41, "a b", "a;drop", "-a", "a\n", "Ünï", "con."]
    for name in wrong:
        with pytest.raises(ValueError, match=refused):
            open_gallery(url, collection=name, model=MODEL, dim=DIM, create=True)
        with pytest.raises(ValueError, match=refused):
            drop_collection(url, name)


def test_two_open_at_once_see_each_other(
    url: str, gallery: Gallery, rng: np.random.Generator
) -> None:
    other = open_gallery(url)
    first = photo(rng)
    gallery.add("Ann", [first])
    assert other.search(first.embedding[None])[0][0].person == "Ann"
    second = photo(rng)
    other.add("Bob", [second])
    assert gallery.search(second.embedding[None])[0][0].person == "Bob"
    other.remove("Ann")
    assert [hit.person for hit in gallery.search(first.embedding[None], 5)[0]] == ["Bob"]
    other.close()


def test_random_requests_do_what_they_do_to_a_dict(
    url: str, gallery: Gallery, rng: np.random.Generator
) -> None:
    model: dict[str, dict[str, NewPhoto]] = {}
    described: dict[str, dict[str, int]] = {}
    for step in range(30 if "edge" in url else 60):  # whose removals rewrite segments
        name = f"person {rng.integers(8)}"
        choice = rng.integers(8)
        if choice <= 3:
            new = [photo(rng, crop=int(rng.integers(400))) for _ in range(rng.integers(1, 4))]
            ids = gallery.add(name, new, key=str(step))
            model.setdefault(name, {}).update(zip(ids, new, strict=True))
            described.setdefault(name, {})
        elif choice == 4 and name in model:
            assert gallery.remove(name) == len(model.pop(name))
            del described[name]
        elif choice == 5 and model.get(name):
            gone = rng.choice(list(model[name]), size=1).tolist()
            assert gallery.remove_photos(gone) == 1
            del model[name][gone[0]]
        elif choice == 6 and name in model and (to := f"person {rng.integers(9)}") not in model:
            gallery.rename(name, to)
            model[to], described[to] = model.pop(name), described.pop(name)
        elif choice == 7 and name in model:
            described[name] = {"step": step}
            gallery.describe(name, described[name])
        if step % 20 == 19:
            gallery.close()
            gallery = open_gallery(url, model=MODEL)
        if step % 5 == 0:
            query = unit(rng)
            hits = gallery.search(query[None], 4)[0]
            expected = naive({who: list(has.values()) for who, has in model.items()}, query, 4)
            assert [hit.person for hit in hits] == expected
            assert all(hit.photo in model[hit.person] for hit in hits)
    assert {each.name: each.metadata for each in gallery.people()} == described
    assert {each.name: each.photos for each in gallery.people()} == {
        name: len(has) for name, has in model.items()
    }
    for name, has in model.items():
        assert {each.id for each in gallery.photos(name)} == set(has)
        for id_, each in has.items():
            assert gallery.crop(id_) == each.crop
            np.testing.assert_array_equal(gallery.embeddings([id_]), [each.embedding])
    gallery.close()


@without_index
def test_what_it_returns_is_plain(gallery: Gallery, rng: np.random.Generator) -> None:
    ids = gallery.add("Ann", [photo(rng)])
    (hit,) = gallery.search(unit(rng, 1))[0]
    assert type(hit) is Hit
    assert type(hit.score) is float
    json.dumps([ids, hit.person, hit.photo, hit.score, gallery.count()])
    assert gallery.embeddings(ids).dtype == np.float32


@without_index
def test_closed_is_closed(gallery: Gallery) -> None:
    gallery.close()
    gallery.close()
    with pytest.raises(ValueError, match="closed"):
        gallery.count()
