"""How fast a model embeds at work: torch, ONNX Runtime and OpenVINO, in float32 and in 8 bits.

    python -m benchmarks.serving MODEL CROPS [--rounds 30]

MODEL is a torch model folder or run, or the name of a backbone (with fresh weights, at 112×112);
CROPS are aligned crops, whose values show the ranges for 8 bits. All forms take turns, batch by
batch, so that they share the machine's good and bad moments; the median counts. Mirror images are
left out. The last columns say how far the embeddings of the crops agree with torch's.

A virtual machine may advertise instructions that it cannot run, and OpenVINO ends by "Illegal
instruction": ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI in the environment keeps it from using them.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from sphereface2.backbones import BACKBONES, build_backbone
from sphereface2.data.transforms import Preprocessing, resize
from sphereface2.models.embedder import BatchEmbedder
from sphereface2.models.export import agreement, export_graph
from sphereface2.models.folder import find_model, load_model, save_model
from sphereface2.runs.export import spread_images
from sphereface2.workers import usable_cores

BATCHES = (1, 16)
FORMS = ("onnx", "openvino")


def main() -> None:
    arguments = _arguments()
    try:
        images = spread_images(arguments.crops)
        with TemporaryDirectory() as place:
            embedders = _embedders(arguments.model, images, Path(place))
            _report(embedders, images, rounds=arguments.rounds)
    except (ValueError, OSError) as error:
        print(f"serving: {error}", file=sys.stderr)
        sys.exit(2)


def _embedders(word: str, images: list[NDArray[np.uint8]], place: Path) -> dict[str, BatchEmbedder]:
    folder = place / "torch"
    if word in BACKBONES:
        network = build_backbone(word, seed=0)
        save_model(
            folder,
            network,
            name=word,
            options={},
            preprocessing=Preprocessing(network.input_size),
        )
    else:
        folder = find_model(word)
    folders = {"torch": folder}
    for form in FORMS:
        for name, ranges in ((form, None), (f"{form} int8", images)):
            folders[name] = place / name
            export_graph(folder, folders[name], to=form, int8=ranges)
    return {name: load_model(each).embedder(flip=False) for name, each in folders.items()}


def _report(
    embedders: dict[str, BatchEmbedder], images: list[NDArray[np.uint8]], *, rounds: int
) -> None:
    import torch

    torch.set_num_threads(usable_cores())
    print(f"{usable_cores()} threads, median of {rounds} rounds in turn, images/s (ms per batch)\n")
    print(f"{'':14}" + "".join(f"{f'batch {size}':>20}" for size in BATCHES) + "    lowest cosine")
    seconds = {size: _in_turn(embedders, images, size, rounds) for size in BATCHES}
    for name, embedder in embedders.items():
        line = f"{name:14}"
        for size in BATCHES:
            spent = seconds[size][name]
            line += f"{size / spent:12.1f} ({1000 * spent:5.1f})"
        found = agreement(embedders["torch"], embedder, images)
        print(f"{line}    {found.lowest_cosine:.7f}")


def _in_turn(
    embedders: dict[str, BatchEmbedder], images: list[NDArray[np.uint8]], size: int, rounds: int
) -> dict[str, float]:
    """The median seconds of each on a batch of this size."""
    spent: dict[str, list[float]] = {name: [] for name in embedders}
    side = next(iter(embedders.values())).input_size
    batch = np.stack([resize(image, side) for image in (images * size)[:size]])
    with ExitStack() as stack:
        runs = {name: stack.enter_context(each.running()) for name, each in embedders.items()}
        for turn in range(rounds + 3):
            for name, run in runs.items():
                start = time.perf_counter()
                run(batch)
                if turn >= 3:  # the first ones set things up
                    spent[name].append(time.perf_counter() - start)
    return {name: median(each) for name, each in spent.items()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="a model folder or run, or the name of a backbone")
    parser.add_argument("crops", type=Path, help="aligned crops in folders, or a list")
    parser.add_argument("--rounds", type=int, default=30)
    return parser.parse_args()


if __name__ == "__main__":
    main()
