"""The public data sets: found in a folder by their names, and named by the recipes."""

from pathlib import Path

import pytest

from sphereface2.config.loading import recipes
from sphereface2.config.schema import load_config
from sphereface2.data import public_sets as datasets
from sphereface2.data.public_sets import (
    KNOWN_DATA,
    PAIR_SET_TITLES,
    TrainingData,
    find_datasets,
    known_data_of,
)


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


BINS = [f"{name}.bin" for name in PAIR_SET_TITLES]

PLACES = [
    ("vggface2", "vggface2/n000002/0001_01.jpg", "folder", "vggface2"),
    ("vggface2", "VGG-Face2/train/n000002/0001_01.jpg", "folder", "VGG-Face2/train"),
    ("vggface2", "train/VGGFace2_112x112/n000002/0001_01.jpg", "folder", "train/VGGFace2_112x112"),
    ("vggface2", "vggface2.rec", "recordio", "vggface2.rec"),
    ("vggface2", "faces_vgg_112x112/train.rec", "recordio", "faces_vgg_112x112/train.rec"),
    ("vggface2", "vggface2/train-0.parquet", "parquet", "vggface2"),
    ("ms1mv3", "ms1m-retinaface-t1/train.rec", "recordio", "ms1m-retinaface-t1/train.rec"),
    ("ms1mv2", "faces_emore/train.rec", "recordio", "faces_emore/train.rec"),
    ("webface12m", "WebFace12M/train.rec", "recordio", "WebFace12M/train.rec"),
    ("webface4m", "WebFace4M/a.rec", "recordio", "WebFace4M/a.rec"),
]


@pytest.mark.parametrize(("key", "file", "source", "place"), PLACES, ids=lambda value: str(value))
def test_training_sets_by_the_names_they_are_known_by(
    key: str, file: str, source: str, place: str, tmp_path: Path
) -> None:
    touch(tmp_path, file)
    assert find_datasets(tmp_path).training == {key: TrainingData(source, tmp_path / place)}


def test_a_rec_goes_before_a_folder_and_an_empty_folder_is_none(tmp_path: Path) -> None:
    touch(tmp_path, "vggface2/n1/1.jpg", "vgg2/train.rec")
    (tmp_path / "ms1mv3").mkdir()
    found = find_datasets(tmp_path).training
    assert found == {"vggface2": TrainingData("recordio", tmp_path / "vgg2/train.rec")}


@pytest.mark.parametrize("folder", ["", "val/", "ms1mv3/"])
def test_verification_sets_in_the_folder_in_val_or_beside_a_rec(
    folder: str, tmp_path: Path
) -> None:
    touch(tmp_path, "ms1mv3/train.rec", *(f"{folder}{name}" for name in BINS))
    found = find_datasets(tmp_path).sets
    assert found == {name: tmp_path / f"{folder}{name}.bin" for name in PAIR_SET_TITLES}


def test_roots_of_the_protocols(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "IJB_release/IJBB/meta/ijbb_face_tid_mid.txt",
        "IJBC/meta/ijbc_face_tid_mid.txt",
        "MegaFace/templatelists/facescrub_features_list.json",
    )
    assert find_datasets(tmp_path).protocols == {
        "ijb-b": tmp_path / "IJB_release/IJBB",
        "ijb-c": tmp_path / "IJBC",
        "megaface": tmp_path / "MegaFace",
    }


def test_the_overrides_make_a_config(tmp_path: Path) -> None:
    root = tmp_path / "my: data [2] # ü"
    touch(root, "vggface2.rec", *BINS)
    overrides = find_datasets(root).overrides("vggface2")
    config = load_config("vggface2-sfnet64", [*overrides, "data.on_bad_image=skip"])
    assert config.data.name == "recordio"
    assert config.data.options == {"path": str(root / "vggface2.rec"), "on_bad_image": "skip"}
    assert [choice.options for choice in config.evaluation.sets] == [
        {"path": str(root / f"{name}.bin"), "title": title}
        for name, title in PAIR_SET_TITLES.items()
    ]


def test_a_folder_has_one_path_wherever_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    touch(root, "vggface2.rec", *BINS)
    (tmp_path / "link").symlink_to(root)
    expected = find_datasets(root).overrides("vggface2")
    monkeypatch.chdir(tmp_path)
    for spelling in ("data", "./data/", "data/../data", "link"):
        assert find_datasets(spelling).overrides("vggface2") == expected


def test_without_all_sets_those_that_are_there_will_do(tmp_path: Path) -> None:
    touch(tmp_path, "vggface2/n1/1.jpg", "lfw.bin")
    found = find_datasets(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"AgeDB-30 \(agedb_30\.bin"):
        found.overrides("vggface2")
    config = load_config("vggface2-sfnet20", found.overrides("vggface2", all_sets=False))
    assert len(config.evaluation.sets) == 1
    (tmp_path / "lfw.bin").unlink()
    (only,) = find_datasets(tmp_path).overrides("vggface2", all_sets=False)
    assert only.startswith("data={")


def test_what_is_missing_is_one_sentence_with_the_nearest_name(tmp_path: Path) -> None:
    touch(tmp_path, "vgface2/n1/1.jpg", "val/lfw.bin", "calfv.bin")
    found = find_datasets(tmp_path)
    assert found.missing("lfw") is None
    assert found.missing("vggface2", "lfw", "calfw", "ijb-c") == (
        f"{tmp_path} and {tmp_path / 'val'} lacks VGGFace2 (vggface2/, vggface2.rec or "
        "faces_vgg_112x112/train.rec; is it 'vgface2'?), CA-LFW (calfw.bin; is it 'calfv.bin'?), "
        "IJB-C (IJBC/meta/ijbc_face_tid_mid.txt); see docs/data.md"
    )
    with pytest.raises(ValueError, match="did you mean 'vggface2'"):
        found.require("vgface2")


def test_no_such_folder(tmp_path: Path) -> None:
    (tmp_path / "faces").mkdir()
    with pytest.raises(FileNotFoundError, match="does not exist; did you mean 'faces'"):
        find_datasets(tmp_path / "face")


def test_every_known_set_can_be_found() -> None:
    assert set(datasets._NAMES) == set(KNOWN_DATA)
    assert set(KNOWN_DATA) <= set(datasets._LOOKED_FOR)


def test_every_recipe_that_waits_for_data_names_its_sets_or_is_for_ones_own() -> None:
    own = {"own-faces", "fine-tune", "large-margin", "real-faces", "real-faces-long"}
    for recipe in recipes():
        waits = "data.path" in recipe.summary
        assert bool(known_data_of(recipe.name)) == (waits and recipe.name not in own)
        assert set(known_data_of(recipe.name)) <= set(KNOWN_DATA)


def test_the_set_that_a_recipe_is_made_for_comes_first() -> None:
    for recipe in recipes():
        known = known_data_of(recipe.name)
        assert not known or KNOWN_DATA[known[0]].title.lower() in recipe.summary.lower()
