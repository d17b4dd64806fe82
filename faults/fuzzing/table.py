"""All parsers of the package by name; the module that feeds one is imported when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from faults.fuzzing.parser import Parser


@dataclass(frozen=True)
class Entry:
    """A parser in the table.

    room: the module of this package that knows how to feed it
    reads: the files it is for, in words
    share: of the inputs of a campaign, in relation to the others; slow parsers get less
    """

    room: str
    reads: str
    share: float


TABLE: dict[str, Entry] = {
    "recordio": Entry("data_files", ".rec, .idx, names of people", 2),
    "image-list": Entry("data_files", "lists of training images", 2),
    "parquet": Entry("data_files", ".parquet", 0.5),
    "picture": Entry("data_files", "JPEG, PNG, BMP, WebP, GIF, TIFF, HEIC", 2),
    "png": Entry("data_files", "PNG with sound checksums", 0.5),
    "bin": Entry("data_files", ".bin verification sets (pickle)", 2),
    "pairs": Entry("data_files", "lists of pairs, LFW's and ours", 2),
    "ijb": Entry("data_files", "IJB-B and IJB-C lists", 0.5),
    "megaface": Entry("data_files", "MegaFace lists and noise lists", 0.5),
    "tinyface": Entry("data_files", "TinyFace names", 0.5),
    "groups": Entry("data_files", "RFW lists and group tables", 0.5),
    "npy": Entry("data_files", "embeddings in .npy", 1),
    "npz": Entry("data_files", "embeddings in .npz", 1),
    "npz-members": Entry("data_files", ".npz around damaged arrays", 1),
    "feature": Entry("data_files", "MegaFace feature files", 1),
    "config": Entry("run_files", "YAML configs and overrides", 1),
    "grid": Entry("run_files", "grids and seeds of a sweep", 1),
    "model-folder": Entry("model_files", "config.json, model.safetensors, calibration", 1),
    "weights": Entry("model_files", ".pt, .pth, .safetensors of others", 1),
    "tensor-names": Entry("model_files", "weights by any names and shapes", 0.3),
    "pt": Entry("model_files", "embeddings in .pt", 1),
    "pt-members": Entry("model_files", ".pt around a damaged pickle", 1),
    "onnx": Entry("model_files", "what an ONNX file says of itself", 2),
    "onnx-import": Entry("model_files", "ONNX import, run on test images", 0.2),
    "openvino": Entry("model_files", "OpenVINO .xml and .bin", 0.02),
    "checkpoint": Entry("model_files", "checkpoint.json and the index of tensors", 0.5),
    "run-folder": Entry("run_files", "metrics, changes and notes of a run", 1),
    "scores": Entry("run_files", "scores.npz", 1),
    "result": Entry("run_files", "result.json", 1),
    "gallery": Entry("gallery_files", "people.sqlite, embeddings.f32, crops.bin", 0.2),
    "gallery-rows": Entry("gallery_files", "a sound database with any values", 0.2),
    "group": Entry("gallery_files", "faces, journal and names of group", 0.5),
    "keys": Entry("gallery_files", "API keys of the service", 1),
    "request": Entry("requests", "requests to the service, JSON and forms", 0.2),
    "request-photo": Entry("requests", "photos and options in sound requests", 0.2),
}


def load(name: str) -> Parser:
    """How to feed a parser."""
    found: dict[str, Parser] = import_module(f"faults.fuzzing.{TABLE[name].room}").PARSERS
    return found[name]
