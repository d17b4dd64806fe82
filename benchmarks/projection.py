"""From counted bytes and barriers to 8 and 64 GPUs, with every assumption on the table.

This is arithmetic, not a measurement: no GPU has run it.
"""

from collections.abc import Sequence

from benchmarks.workers import Measured

# Assumptions, of the order of today's data-centre GPUs.
PRODUCT_FLOPS = 150e12  # half-precision products, sustained, a GPU
CLASSES, DIM, ROWS_PER_RANK = 1_000_000, 512, 128
LINKS = {8: (200e9, 20e-6), 64: (25e9, 60e-6)}  # ranks: bytes/s a GPU sends, seconds a barrier
PRODUCTS = {"sphereface2-c": 3, "cosface": 4}  # a softmax head computes the logits twice


def project(measured: Sequence[Measured]) -> str:
    """A table of step times for the heads that were measured on two ranks."""
    lines = [
        "",
        f"Projection to GPUs: {CLASSES:,} classes, {DIM}-D, {ROWS_PER_RANK} images each; assumed:",
        f"{PRODUCT_FLOPS / 1e12:.0f} TFLOP/s in products, elementwise work hidden, "
        + ", ".join(
            f"{n} GPUs: {rate / 1e9:.0f} GB/s and {wait * 1e6:.0f} µs a barrier"
            for n, (rate, wait) in LINKS.items()
        ),
        f"{'':16}{'GPUs':>6}{'barriers':>10}{'MB sent':>9}{'products':>11}"
        f"{'exchange':>10}{'images/s':>11}",
    ]
    for row in measured:
        for ranks, (rate, wait) in LINKS.items():
            batch = ROWS_PER_RANK * ranks
            # A ring's bytes grow with the batch and with (N-1)/N; measured on 2 ranks.
            sent = row.sent_bytes * (batch / row.batch) * ((1 - 1 / ranks) / 0.5)
            work = PRODUCTS[row.name] * 2 * batch * DIM * CLASSES / ranks / PRODUCT_FLOPS
            exchange = sent / rate + row.barriers * wait
            lines.append(
                f"{row.name:16}{ranks:6}{row.barriers:10.0f}{sent / 1e6:9.1f}"
                f"{work * 1e3:8.2f} ms{exchange * 1e3:7.2f} ms{batch / (work + exchange):11,.0f}"
            )
    return "\n".join(lines)
