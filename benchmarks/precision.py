"""What half-precision products cost a head in accuracy: loss and gradients against float64.

    ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 python -m benchmarks.precision   # a table in Markdown

Products in bf16 or fp16, margins in float32, as `precision=bf16` trains; the same head in float64
is the truth. Errors are relative: of the loss, and of the gradients of embeddings and class weights
as whole vectors. The largest of all proxy heads is shown, and which head has it. Setting
ONEDNN_MAX_CPU_ISA is for machines that report bf16 instructions and refuse to run them.
"""

import argparse

import torch
from torch import Tensor

from sphereface2.heads import HEADS, build_head
from sphereface2.heads.proxy import ProxyHead

BATCH, DIM = 32, 128
PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def step(name: str, classes: int, *, dtype: torch.dtype, half: torch.dtype | None) -> list[Tensor]:
    """Loss and gradients of the same head and batch in a precision, as float64."""
    torch.manual_seed(0)
    head = build_head(name, DIM, classes)
    assert isinstance(head, ProxyHead)
    labels = torch.randint(0, classes, (BATCH,))
    # A cosine of about 0.66 with the target.
    own = head.weight.detach()[labels].reshape(BATCH, -1, DIM)[:, 0]
    rows = torch.nn.functional.normalize(own) + 0.1 * torch.randn(BATCH, DIM)
    head.to(dtype)
    inputs = rows.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=half, enabled=half is not None):
        loss = head(inputs, labels)
    torch.autograd.backward(loss)
    assert inputs.grad is not None
    weight = head.weight.grad if head.weight.grad is not None else torch.zeros(1)
    return [tensor.detach().double() for tensor in (loss, inputs.grad, weight)]


def errors(found: list[Tensor], truth: list[Tensor]) -> list[float]:
    """The relative error of each as a whole."""
    return [
        float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b).clamp_min(1e-300))
        for a, b in zip(found, truth, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--classes", type=int, nargs="*", default=[10, 1_000, 10_000, 100_000])
    classes = parser.parse_args().classes
    heads = [name for name in HEADS if isinstance(build_head(name, 4, 4), ProxyHead)]
    print("| classes | products | loss | gradient of embeddings | gradient of class weights |")
    print("| --- | --- | --- | --- | --- |")
    for count in classes:
        truth = {n: step(n, count, dtype=torch.float64, half=None) for n in heads}
        for precision, half in PRECISIONS.items():
            worst: list[tuple[float, str]] = [(0.0, "")] * 3
            for name in heads:
                found = errors(step(name, count, dtype=torch.float32, half=half), truth[name])
                worst = [max(w, (e, name)) for w, e in zip(worst, found, strict=True)]
            cells = " | ".join(f"{error:.1e} ({name})" for error, name in worst)
            print(f"| {count:,} | {precision} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
