"""ONNX files are looked at before they are run: facts against onnx itself, hostile ones refused."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from sphereface2.data.transforms import Preprocessing
from sphereface2.models import onnx_graph, runtimes
from sphereface2.models.onnx_graph import look_at_onnx
from sphereface2.models.runtimes import embedding_width
from sphereface2.models.runtimes import onnx_graph as open_graph
from tests.models.onnx_files import FLATTEN, PROJECT, SIDE, WIDTH, build, save, weight


def test_the_facts_are_those_of_onnx(tmp_path: Path) -> None:
    model = build(outputs=("y", "flat"))
    helper.set_model_props(model, {"a": "1", "b": "ü"})
    # Exporters of old list weights among the inputs.
    listed = helper.make_tensor_value_info("w", TensorProto.FLOAT, [3 * SIDE * SIDE, WIDTH])
    model.graph.input.append(listed)
    facts = look_at_onnx(save(tmp_path / "m.onnx", model))
    assert facts.inputs == {"x": (None, 3, SIDE, SIDE)}
    assert list(facts.outputs) == ["y", "flat"]
    assert facts.metadata == {"a": "1", "b": "ü"}


def external() -> Any:
    outside = weight()
    outside.ClearField("raw_data")
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="../../etc/passwd")
    return build(weights=[outside])


def external_within_constant() -> Any:
    held = external().graph.initializer[0]
    return build([helper.make_node("Constant", [], ["w"], value=held), FLATTEN, PROJECT], [])


def looping() -> Any:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, [])],
    )  # fmt: skip
    return build([helper.make_node("Loop", ["", ""], [], body=body), FLATTEN, PROJECT])


def foreign() -> Any:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.evil", 1)]
    node = helper.make_node("Open", ["x"], ["q"], domain="com.evil")
    return build([node, FLATTEN, PROJECT], opset_imports=opsets)


def with_function() -> Any:
    inner = helper.make_node("Identity", ["a"], ["b"])
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "F", ["a"], ["b"], [inner], opsets)
    return build(functions=[function])


def huge() -> Any:
    """Two gigabytes that are claimed, and not there."""
    empty = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3 * SIDE * SIDE, 700_000])
    return build(weights=[empty])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (external, r"another file \('../../etc/passwd'\); save it as one file"),
        (external_within_constant, r"another file"),
        (looping, "operator Loop holds a graph of its own, which may never end"),
        (foreign, "operator Open is of the domain com.evil"),
        (with_function, "functions of its own"),
        (huge, "tensor w claims 537,600,000 numbers, but has 0 bytes"),
    ],
)
def test_hostile_files_are_refused_in_a_sentence(
    tmp_path: Path, make: Callable[[], Any], why: str
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(make().SerializeToString())
    with pytest.raises(ValueError, match=why) as caught:
        look_at_onnx(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_onnx_is_refused(tmp_path: Path) -> None:
    whole = build().SerializeToString()
    generator = np.random.default_rng(0)
    for number, content in enumerate(
        [b"GIF89a", b"\x00" * 50, whole[: len(whole) // 2], b"\x3a\xff\xff\xff\xff\x0f", b"{}"]
    ):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not an ONNX model, or is damaged"):
            look_at_onnx(path)
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(ValueError, match="is empty"):
        look_at_onnx(tmp_path / "empty.onnx")
    # Wherever a byte is changed, the answer is facts or a sentence, never another error.
    path = tmp_path / "changed.onnx"
    for _ in range(300):
        changed = bytearray(whole)
        changed[generator.integers(len(whole))] = generator.integers(256)
        path.write_bytes(changed)
        with suppress(ValueError):
            look_at_onnx(path)


def test_a_file_too_large_for_the_format_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "m.onnx")
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="an ONNX file has at most 1,000"):
        look_at_onnx(path)


def grown(nodes: list[Any], values: dict[str, Any]) -> Any:
    """The network plus the sum of something that grows while it runs."""
    weights = [weight(), *(numpy_helper.from_array(value, name) for name, value in values.items())]
    first = [FLATTEN, helper.make_node("MatMul", ["flat", "w"], ["m"])]
    total = helper.make_node("ReduceSum", ["big"], ["r"], keepdims=0)
    return build([*first, *nodes, total, helper.make_node("Add", ["m", "r"], ["y"])], weights)


def test_a_network_that_takes_all_memory_is_stopped(tmp_path: Path) -> None:
    """Ten gigabytes from a file of a few hundred kilobytes."""
    long = np.ones((50_000, 1), np.float32)
    outer = [helper.make_node("MatMul", ["a", "b"], ["big"])]
    filled = [helper.make_node("ConstantOfShape", ["size"], ["big"])]
    for number, model in enumerate(
        [
            grown(outer, {"a": long, "b": long.T.copy()}),
            grown(filled, {"size": np.array([2_500_000_000])}),
        ]
    ):
        path = save(tmp_path / f"{number}.onnx", model)
        with pytest.raises(ValueError, match="it takes more than 4 GB of memory"):
            open_graph(path)(np.zeros((1, 3, SIDE, SIDE), np.float32))


def test_unknown_operators_are_a_sentence(tmp_path: Path) -> None:
    model = build([helper.make_node("Sphere", ["x"], ["s"]), FLATTEN, PROJECT])
    with pytest.raises(ValueError, match=r"cannot be run by ONNX Runtime: .*Sphere"):
        open_graph(save(tmp_path / "m.onnx", model))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (build(shape=("n", SIDE, SIDE, 3)), r"\(any, 16, 16, 3\), not \(B, 3, S, S\)"),
        (build(outputs=("y", "flat")), "has no output 'z' .it has y, flat."),
    ],
)
def test_graphs_that_do_not_embed_are_refused(tmp_path: Path, model: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        open_graph(save(tmp_path / "m.onnx", model), output="z")


def test_the_test_images_find_what_is_not_an_embedding(tmp_path: Path) -> None:
    preprocessing = Preprocessing(SIDE)
    zero = numpy_helper.from_array(np.zeros((3 * SIDE * SIDE, WIDTH), np.float32), "w")
    broken = numpy_helper.from_array(np.full((3 * SIDE * SIDE, WIDTH), np.nan, np.float32), "w")
    single = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
    for model, why in (
        (build(weights=[zero]), "the same embedding for every image"),
        (build(weights=[broken]), "not finite"),
        (build([single], []), r"output of the shape \(\) for 1 images"),
    ):
        graph = open_graph(save(tmp_path / "m.onnx", model))
        with pytest.raises(ValueError, match=why):
            embedding_width(graph, preprocessing)
    fixed = open_graph(save(tmp_path / "one.onnx", build(shape=(1, 3, SIDE, SIDE))))
    assert embedding_width(fixed, preprocessing) == (WIDTH, 1)
    free = open_graph(save(tmp_path / "any.onnx"))
    assert embedding_width(free, preprocessing) == (WIDTH, runtimes.AT_ONCE)
