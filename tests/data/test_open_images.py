"""Which source a path stands for."""

from pathlib import Path

import pytest

from sphereface2.data.sources import open_images
from sphereface2.data.sources.folder import ImageFolder
from sphereface2.data.sources.image_list import ImageList
from sphereface2.data.sources.parquet import ParquetImages
from sphereface2.data.sources.recordio import RecordIO
from tests.data.test_folder import write_image
from tests.data.test_parquet import write
from tests.data.test_recordio import BODIES, LABELS, im2rec


def test_each_form_is_recognised(tmp_path: Path) -> None:
    write_image(tmp_path / "faces" / "anna" / "1.png")
    (tmp_path / "list.txt").write_text("faces/anna/1.png anna\n")
    (tmp_path / "own.lst").write_text("0\t3\tanna/1.png\n")
    for folder in ("set", "hub", "hub2/data"):
        (tmp_path / folder).mkdir(parents=True)
    im2rec(tmp_path / "set" / "train.rec", LABELS, BODIES)
    write(tmp_path / "hub" / "part-0.parquet")
    write(tmp_path / "hub2" / "data" / "part-0.parquet")
    for path, kind in {
        "faces": ImageFolder,
        "list.txt": ImageList,
        "set": RecordIO,
        "set/train.rec": RecordIO,
        "set/train.idx": RecordIO,
        "hub": ParquetImages,
        "hub2": ParquetImages,
        "hub/part-0.parquet": ParquetImages,
    }.items():
        source = open_images(tmp_path / path)
        assert type(source) is kind, path
        assert source.on_bad_image == "stop"
        source.on_bad_image = "skip"  # not all of them are readable
        source.prepare()
    own = open_images(tmp_path / "own.lst", root=tmp_path / "faces")
    assert own.people == ["3"]


def test_what_cannot_be_recognised_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file or folder .*none; give a folder with a"):
        open_images(tmp_path / "none")
    write_image(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png is a single image; give a folder"):
        open_images(tmp_path / "a.png")
    (tmp_path / "a.zip").touch()
    with pytest.raises(ValueError, match=r"a\.zip has the ending '\.zip', which says nothing"):
        open_images(tmp_path / "a.zip")
    with pytest.raises(ValueError, match=r"no images in the folders"):
        open_images(tmp_path)
    with pytest.raises(ValueError, match=r"root is for lists, and .* is not one; leave it out"):
        open_images(tmp_path, root=tmp_path)
    for name in ("b.rec", "c.rec"):
        im2rec(tmp_path / name, LABELS, BODIES)
    with pytest.raises(ValueError, match=r"holds several \.rec files; give one of b\.rec, c\.rec"):
        open_images(tmp_path)
    im2rec(tmp_path / "train.rec", LABELS, BODIES)
    assert open_images(tmp_path).path == tmp_path / "train.rec"
