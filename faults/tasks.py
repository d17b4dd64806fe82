"""The tasks that faults are put into: each as small as it can be, and what its result is.

A task is a command in a copy of the materials, a command that resumes it, and digests of what must
be equal to the last bit however often it was disturbed:

materials = make_materials(Path("/tmp/materials"))   # once; some seconds
lay_out(materials, Path("/tmp/trial"))
run(TASKS["train"], Path("/tmp/trial"))
TASKS["train"].result(Path("/tmp/trial"))            # name -> SHA-256
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Result = dict[str, str]

PEOPLE = ("Ada", "Ben", "Cem", "Dora")
PATIENCE = 600
"""Seconds that a request may take: on a busy machine a service is slow, and nothing is lost."""
PRINTED = "printed.txt"
"""What a command printed on stdout, in the folder of its trial."""

# Grey noise of a few people and a network of some thousand weights; a checkpoint at every step.
RECIPE = """
data: {name: folder, path: noise}
backbone: {name: sfnet4, width: 4, input_size: 16, embedding_dim: 8, batch_norm: true}
head: {name: sphereface2-c}
training:
  {steps: 2, batch_size: 8, workers: 0, evaluate_every: 100, checkpoint_every: 100,
   checkpoint_every_steps: 1, log_every: 1}
optimizer: {learning_rate: 0.01}
schedule: {name: constant}
evaluation: {sets: [{name: pairs, path: pairs.txt}]}
device: cpu
"""
# What differs between two undisturbed runs: times, and what is computed from them.
_VOLATILE = {"seconds", "time", "added", "images_per_second", "data_wait", "folder", "command"}


@dataclass(frozen=True)
class Task:
    """A command in a folder with the materials; the folder is the working directory.

    command: the words after `sphereface2`
    result: digests, by name, of what the task leaves in its folder once it is complete
    again: the words that resume it, given the folder; if None the same command
    talk: for a service, what a client asks of it, given its address and the folder; it may be
        repeated after a failure
    """

    name: str
    command: tuple[str, ...]
    result: Callable[[Path], Result]
    again: Callable[[Path], tuple[str, ...]] | None = None
    talk: Callable[[str, Path], None] | None = None

    def resume(self, folder: Path) -> tuple[str, ...]:
        """The words after `sphereface2` that continue what was disturbed."""
        return self.command if self.again is None else self.again(folder)


# -- materials -------------------------------------------------------------------------------------


def make_materials(folder: Path) -> Path:
    """Images, a model, a gallery and a run of one step: all that any of the tasks needs."""
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_noise(folder)
    _write_faces(folder)
    _write_model(folder / "model")
    for words in (
        ("train", "tiny.yaml", "training.steps=1", "--output", "begun"),
        _enroll("gallery"),
    ):
        done = call(words, folder)
        if done.returncode:
            raise RuntimeError(f"the materials cannot be made: {done.stderr}")
    (folder / PRINTED).unlink()
    (folder / "complete").touch()
    return folder


def lay_out(materials: Path, folder: Path) -> Path:
    """A folder for one trial; what was there goes."""
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(materials, folder)


def write_noise(folder: Path) -> None:
    import cv2

    generator = np.random.default_rng(0)
    images = [f"person{person}/{number}.png" for person in range(4) for number in range(4)]
    for name in images:
        path = folder / "noise" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), generator.integers(0, 255, (16, 16, 3), dtype=np.uint8))
    lines = [
        f"noise/{a} noise/{b} {int(a[:7] == b[:7])}"
        for index, a in enumerate(images)
        for b in (images[index - index % 4 + (index + 1) % 4], images[index - 4])
    ]
    (folder / "pairs.txt").write_text("\n".join(lines) + "\n")
    (folder / "tiny.yaml").write_text(RECIPE)


def _write_faces(folder: Path) -> None:
    """Rendered people: aligned crops in crops/PERSON, and photos with a face in photos/PERSON."""
    import cv2

    from sphereface2.data.sources.synthetic import SyntheticFaces

    faces = SyntheticFaces(people=len(PEOPLE), images_per_person=2, seed=3)
    for index, person in enumerate(PEOPLE):
        for kind in ("crops", "photos"):
            (folder / kind / person).mkdir(parents=True)
        for number in range(2):
            crop = faces[2 * index + number][0][..., ::-1]
            cv2.imwrite(str(folder / "crops" / person / f"{number}.png"), crop)
        photo = np.full((180, 200, 3), 120, np.uint8)
        photo[30:142, 40:152] = crop
        cv2.imwrite(str(folder / "photos" / person / "0.png"), photo)


def _write_model(folder: Path) -> None:
    """A network with random weights, and a calibration that fits it about."""
    from sphereface2.backbones import build_backbone
    from sphereface2.data.transforms import Preprocessing
    from sphereface2.evaluation.calibration import calibrate
    from sphereface2.evaluation.pair_scores import PairScores
    from sphereface2.models.folder import save_model, store_calibration, weights_digest

    options = {"width": 4, "input_size": 48, "embedding_dim": 16}
    save_model(
        folder,
        build_backbone("sfnet4", seed=0, **options),
        name="sfnet4",
        options=options,
        preprocessing=Preprocessing(input_size=48),
    )
    generator = np.random.default_rng(0)
    means, noise = np.repeat([0.97, 0.6], [500, 4000]), generator.normal(size=4500)
    known = PairScores(
        name="known",
        scores=np.clip(means + 0.05 * noise, -1, 1),
        pairs=np.arange(9000).reshape(-1, 2),
        same=np.arange(4500) < 500,
        folds=np.arange(4500) % 10,
        sources=np.full(4500, "known"),
        positions=np.arange(4500),
    )
    found = calibrate(known, model=weights_digest(folder), replicates=0)
    store_calibration(folder, found.to_mapping())


# -- running ---------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The environment of every command: one thread, the same hashes, no colours, no bars."""
    plain = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "COLUMNS": "100", "TERM": "dumb"}
    return {**os.environ, **plain}


def call(
    words: Sequence[str],
    folder: Path,
    *,
    before: Sequence[str] = (),
    seconds: float = 3000,  # on a busy machine
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `sphereface2 WORDS` in a folder to its end; what it prints is also in PRINTED.

    before: a program that runs it, such as ("strace", "-f")
    """
    with (folder / PRINTED).open("w") as printed:
        done = subprocess.run(
            [*before, sys.executable, "-m", "sphereface2", *words],
            cwd=folder,
            env={**environment(), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    done.stdout = (folder / PRINTED).read_text(errors="replace")
    return done


def start_service(
    task: Task, folder: Path, variables: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[str], str]:
    """The process of a service that has said its address, and that address; "" if it ended."""
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sphereface2", *task.command],
            cwd=folder,
            env={**environment(), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def run(
    task: Task, folder: Path, *, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Do a task in a process of its own, with more variables in its environment."""
    if task.talk is None:
        return call(task.command, folder, variables=variables)
    process, address = start_service(task, folder, variables)
    try:
        if address:
            task.talk(address, folder)
    finally:
        process.terminate()
        process.wait(60)
    said = (folder / "log.txt").read_text(errors="replace")
    return subprocess.CompletedProcess(process.args, process.returncode, address, said)


# -- results ---------------------------------------------------------------------------------------


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _steady(value: Any) -> Any:
    """A JSON value without what differs between two undisturbed runs."""
    if isinstance(value, Mapping):
        return {key: _steady(each) for key, each in value.items() if key not in _VOLATILE}
    return [_steady(each) for each in value] if isinstance(value, list) else value


def _json_digest(value: Any, folder: Path) -> str:
    """Of a JSON value in which paths may begin with the folder of the trial."""
    text = json.dumps(_steady(value), sort_keys=True)
    return _digest(text.replace(str(folder.resolve()), "").encode())


def _json(path: Path, folder: Path) -> str:
    return _json_digest(json.loads(path.read_bytes()), folder)


def _files(folder: Path, *names: str) -> Result:
    """The digests of files, and of all files below folders."""
    found: Result = {}
    for name in names:
        path = folder / name
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        for each in below:
            if each.is_file():
                found[str(each.relative_to(folder))] = _digest(each.read_bytes())
    return found


def of_run(folder: Path, run: str) -> Result:
    """The model, the last checkpoint with every tensor, and the history of a run."""
    place, last = folder / run, folder / run / "checkpoints" / "last"
    facts = json.loads((last / "checkpoint.json").read_bytes())
    del facts["digest"]  # which has the time in it
    tensors = {name: _digest((last / name).read_bytes()) for name in facts.pop("files")}
    lines = map(json.loads, (place / "metrics.jsonl").read_text().splitlines())
    history = [line for line in lines if line["kind"] != "notice"]  # those are of each start
    return {
        **_files(folder, f"{run}/model/model.safetensors"),
        f"{run}/model/config.json": _json(place / "model" / "config.json", folder),
        f"{run}/checkpoint": _json_digest([facts, tensors], folder),
        f"{run}/metrics.jsonl": _json_digest(history, folder),
    }


def of_gallery(folder: Path, gallery: str) -> Result:
    """Who is in a gallery with which photos: their sources, crops and embeddings.

    Of the embeddings the first digits: the last bits depend on which photos a batch has, and a
    photo that was left out, and is added later, is in another one.
    """
    from sphereface2.galleries import open_gallery

    opened = open_gallery(str(folder / gallery))
    try:
        photos = opened.photos()
        rows = opened.embeddings([photo.id for photo in photos])
        facts = sorted(
            (photo.person, photo.source, _digest(opened.crop(photo.id)), np.round(row, 4).tolist())
            for photo, row in zip(photos, rows, strict=True)
        )
    finally:
        opened.close()
    return {gallery: _digest(json.dumps(facts).encode())}


def _of_sweep(folder: Path) -> Result:
    """The table, and every run by its margin: the names of runs depend on where the images are."""
    result = json.loads((folder / "sweep" / "result.json").read_bytes())
    found = {"result.json": _json_digest(result, folder)}
    for run in (folder / "sweep" / "runs").iterdir():
        margin = json.loads((run / "model" / "config.json").read_bytes())["extra"]["head"]["margin"]
        whole = of_run(folder, str(run.relative_to(folder)))
        found |= {f"{margin}/{name.rpartition('/')[2]}": digest for name, digest in whole.items()}
    return found


def _of_search(folder: Path) -> Result:
    return {PRINTED: _json(folder / PRINTED, folder), **of_gallery(folder, "gallery")}


def _of_crops(folder: Path) -> Result:
    journal = f"aligned{os.sep}.align"  # has times
    found = _files(folder, "aligned")
    return {name: digest for name, digest in found.items() if not name.startswith(journal)}


# -- the tasks -------------------------------------------------------------------------------------


def _enroll(gallery: str) -> tuple[str, ...]:
    words = ("enroll", "--folder", "crops", "--gallery", gallery, "--model", "model", "--crops")
    return (*words, "--allow", "all")


def _resume_training(folder: Path) -> tuple[str, ...]:
    if (folder / "run" / "config.yaml").exists():
        return ("resume", "run")
    return TASKS["train"].command


def _talk(address: str, folder: Path) -> None:
    """Enrol everybody, once however often it is asked for, and search for one of them."""
    from sphereface2.recognition.gate import Gate
    from sphereface2.service.client import Client

    with Client(address, retries=0, timeout=PATIENCE) as client:
        gallery = client.open_gallery()
        for person in PEOPLE:
            photos = sorted((folder / "crops" / person).iterdir())
            client.enroll(person, photos, gallery, gate=Gate.of(allow=["all"]))
        client.identify(folder / "crops" / "Ada" / "0.png", gallery)


_SWEEP = ("--seeds", "1", "--jobs", "1", "--output", "sweep")
TASKS = {
    task.name: task
    for task in (
        Task(
            "train",
            ("train", "tiny.yaml", "--output", "run"),
            lambda folder: of_run(folder, "run"),
            again=_resume_training,
        ),
        Task(
            "checkpoint",  # a run that has checkpoints, made longer: they are replaced
            ("resume", "begun", "training.steps=2"),
            lambda folder: of_run(folder, "begun"),
        ),
        Task(
            "convert",
            ("convert", "noise", "noise.rec"),
            lambda folder: _files(folder, "noise.rec", "noise.idx"),
        ),
        Task(
            "align",
            ("align", "photos", "aligned", "--workers", "1", "--format", "png"),
            _of_crops,
        ),
        Task(
            "extract",
            ("extract", "model", "crops", "crops.npy", "--workers", "1", "--batch-size", "2"),
            lambda folder: _files(folder, "crops.npy", "crops.txt", "crops.json"),
        ),
        Task(
            "sweep",
            ("sweep", "tiny.yaml", "head.margin=0.2,0.3", *_SWEEP),
            _of_sweep,
        ),
        Task("enrol", _enroll("new"), lambda folder: of_gallery(folder, "new")),
        Task(
            "search",
            ("identify", "crops/Ada/0.png", "--gallery", "gallery", "--model", "model", "--json"),
            _of_search,
        ),
        Task(
            "serve",
            ("serve", "model", "--gallery", "served", "--port", "0", "--deadline", str(PATIENCE)),
            lambda folder: of_gallery(folder, "served"),
            talk=_talk,
        ),
    )
}
