"""Parquet files: ours, Hugging Face's, and others with large row groups."""

import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sphereface2.data.sources import SOURCES
from sphereface2.data.sources.parquet import ParquetImages, ParquetWriter
from sphereface2.registry import build
from tests.data.test_recordio import BODIES

NAMES = ["anna/1.png", "anna/2.png", "ben/1.png", "ben/b.png", "zoë/1.png", "zoë/2.png"]


def write(path: Path, *, rows_per_group: int = 4) -> Path:
    with ParquetWriter(path, rows_per_group=rows_per_group) as writer:
        for number, (name, body) in enumerate(zip(NAMES, BODIES, strict=True)):
            writer.write(body, label=number // 2, person=name.split("/")[0], name=name)
    return path


def foreign(path: Path, columns: dict[str, Any], *, metadata: dict[str, str] | None = None) -> Path:
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def stored(source: ParquetImages) -> list[bytes]:
    return [bytes(source.encoded(index)) for index in range(len(source))]


@pytest.mark.parametrize("rows_per_group", [1, 4, 64])
def test_what_is_written_is_read_back(tmp_path: Path, rows_per_group: int) -> None:
    source = ParquetImages(path=str(write(tmp_path / "a.parquet", rows_per_group=rows_per_group)))
    assert source.people == ["anna", "ben", "zoë"]
    assert source.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert stored(source) == BODIES
    assert [source.name(index) for index in range(6)] == NAMES
    assert source.location(5) == f"{tmp_path / 'a.parquet'}, row 5"
    assert [source[index][0][0, 0, 0] for index in range(6)] == [0, 5, 10, 15, 20, 25]
    source.prepare(workers=2)
    assert source.bad == ()
    assert source.notes == ()


def test_row_groups_are_small_and_not_compressed(tmp_path: Path) -> None:
    metadata = pq.read_metadata(write(tmp_path / "a.parquet"))
    assert [metadata.row_group(group).num_rows for group in range(2)] == [4, 2]
    column = metadata.row_group(0).column(0)
    assert column.path_in_schema == "image.bytes"
    assert column.compression == "UNCOMPRESSED"
    assert column.statistics is None
    features = json.loads(pq.read_schema(tmp_path / "a.parquet").metadata[b"huggingface"])
    assert features["info"]["features"]["image"] == {"_type": "Image"}


@pytest.mark.parametrize(
    ("column", "values", "people"),
    [
        ("label", [4, 4, 9, -1, 9, 2], ["2", "4", "9"]),
        ("label", ["b", "b", "c", "-1", "c", "a"], ["a", "b", "c"]),
        ("person", ["b", "b", "c", "-1", "c", "a"], ["a", "b", "c"]),
        ("name", ["10", "10", "11", "-1", "11", "9"], ["9", "10", "11"]),
    ],
)
@pytest.mark.parametrize("form", ["binary", "large", "struct"])
def test_files_of_others(
    tmp_path: Path, column: str, values: list[Any], people: list[str], form: str
) -> None:
    images: Any = {
        "binary": pa.array(BODIES, pa.binary()),
        "large": pa.array(BODIES, pa.large_binary()),
        "struct": pa.array([{"bytes": body, "path": None} for body in BODIES]),
    }[form]
    path = foreign(tmp_path / "a.parquet", {"age": [1] * 6, "image": images, column: values})
    source = ParquetImages(path=str(path))
    assert source.people == people
    assert source.labels.tolist() == [1, 1, 2, -1, 2, 0]
    assert stored(source) == BODIES
    assert source.name(0) == f"{people[1]}/00000000.png"


def test_hugging_faces_names_of_classes(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"names": ["anna", "ben", "zoë"]}}}}
    path = foreign(
        tmp_path / "a.parquet",
        {"image": BODIES[:3], "label": [0, 2, 2]},
        metadata={"huggingface": json.dumps(features)},
    )
    source = ParquetImages(path=str(path))
    assert source.people == ["anna", "zoë"]
    assert source.notes == (
        "the labels 0 to 2 leave out 1 of them; the 2 people found are numbered from 0",
    )


def test_the_files_of_a_folder_are_one_source(tmp_path: Path) -> None:
    foreign(tmp_path / "b.parquet", {"image": BODIES[3:], "label": [9, 1, 4]})
    foreign(tmp_path / "a.parquet", {"image": BODIES[:3], "label": [4, 4, 1]})
    source = ParquetImages(path=str(tmp_path))
    assert stored(source) == BODIES
    assert source.labels.tolist() == [1, 1, 0, 2, 0, 1]
    assert source.location(4) == f"{tmp_path / 'b.parquet'}, row 1"


def test_memory_is_bounded_and_the_user_is_reported(tmp_path: Path) -> None:
    count = 300
    pq.write_table(
        pa.table({"image": [bytes(1000)] * count, "label": [0] * count}),
        tmp_path / "a.parquet",
        row_group_size=150,
        use_dictionary=False,
    )
    source = ParquetImages(path=str(tmp_path / "a.parquet"), memory_gb=200_000 / 2**30)
    assert source.notes == (
        "the images (0.0 GB) do not fit into data.memory_gb=0.000186265, and each is read with the "
        "150 others of its row group; 'sphereface2 convert' to .rec or Parquet makes this quick",
    )
    assert all(len(source.encoded(index)) == 1000 for index in range(count))
    assert list(source._held) == [1]
    roomy = ParquetImages(path=str(tmp_path / "a.parquet"))
    assert roomy.notes == ()
    assert all(len(roomy.encoded(index)) == 1000 for index in range(count))
    assert list(roomy._held) == [0, 1]


def test_threads_and_copies_read_the_same(tmp_path: Path) -> None:
    source = ParquetImages(path=str(write(tmp_path / "a.parquet", rows_per_group=2)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: bytes(source.encoded(index % 6)), range(200)))
    assert found == [BODIES[index % 6] for index in range(200)]
    copy = pickle.dumps(source)
    assert BODIES[1] not in copy
    assert stored(pickle.loads(copy)) == BODIES


def test_an_unfinished_file_is_removed(tmp_path: Path) -> None:
    def interrupted() -> None:
        with ParquetWriter(tmp_path / "a.parquet") as writer:
            writer.write(BODIES[0], label=0, person="a", name="a/1.png")
            assert (tmp_path / "a.parquet.part").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    foreign(path, {"picture": BODIES, "label": [0] * 6})
    with pytest.raises(ValueError, match=r"a.parquet has the columns picture, label; expected 'im"):
        ParquetImages(path=str(path))
    foreign(path, {"image": ["a.jpg"], "label": [0]})
    with pytest.raises(ValueError, match=r"expected 'image' with encoded images"):
        ParquetImages(path=str(path))
    foreign(path, {"image": BODIES[:2], "label": [0.5, 1.0]})
    with pytest.raises(ValueError, match=r"'label' \(whole numbers or names\)"):
        ParquetImages(path=str(path))
    foreign(path, {"image": BODIES[:2], "label": pa.array([0, None])})
    with pytest.raises(ValueError, match=r"a.parquet: 1 rows have no label"):
        ParquetImages(path=str(path))
    for labels, message in (
        (
            pa.array([3, (1 << 64) - 1], pa.uint64()),
            r"row 1: the label 18446744073709551615 is abo",
        ),
        (pa.array([3, -4]), r"a.parquet, row 1: the label is -4; labels start from 0"),
        (pa.array(["3", "-4"]), r"a.parquet, row 1: the label is -4; labels start from 0"),
    ):
        foreign(path, {"image": BODIES[:2], "label": labels})
        with pytest.raises(ValueError, match=message):
            ParquetImages(path=str(path))
    foreign(path, {"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})
    with pytest.raises(ValueError, match=r"a.parquet holds no images: it has no rows"):
        ParquetImages(path=str(path))
    path.write_bytes(write(tmp_path / "b.parquet").read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"a.parquet is not a Parquet file, or cut short; copy it"):
        ParquetImages(path=str(path))
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*none\.parquet"):
        ParquetImages(path=str(tmp_path / "none.parquet"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no .parquet files in .*empty"):
        ParquetImages(path=str(tmp_path / "empty"))


def test_a_missing_image_is_an_empty_one(tmp_path: Path) -> None:
    path = foreign(tmp_path / "a.parquet", {"image": [BODIES[0], None], "label": [0, 0]})
    with pytest.raises(ValueError, match=r"1 of the 2 images .*a.parquet, row 1 \(it is empty\)"):
        ParquetImages(path=str(path)).prepare()


def test_without_pyarrow_the_install_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"pip install 'pyarrow>=[\d.]+'$"):
        build("data", SOURCES, "parquet", path=str(path))
