"""Devices and precisions: what is chosen, what is refused."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from sphereface2.training import devices
from sphereface2.training.devices import (
    choose_device,
    choose_precision,
    own_random_numbers,
    seed_random_numbers,
)

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


def pretend(monkeypatch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_auto_prefers_cuda_then_mps_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cuda=1, mps=True)
    assert choose_device("auto") == CUDA
    pretend(monkeypatch, mps=True)
    assert choose_device("auto") == MPS
    pretend(monkeypatch)
    assert choose_device("auto") == CPU


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    with pytest.raises(ValueError, match="device=cuda:1: this machine offers no CUDA device"):
        choose_device("cuda:1")
    with pytest.raises(ValueError, match="device=mps: this machine offers no MPS"):
        choose_device("mps")
    with pytest.raises(ValueError, match="got 'gpu'"):
        choose_device("gpu")
    pretend(monkeypatch, cuda=2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="device=cuda:2: this machine has 2 CUDA devices"):
        choose_device("cuda:2")


def test_precision_auto_is_bf16_only_on_cuda_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_it in (True, False):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation, has=has_it: has
        )
        assert choose_precision("auto", CUDA) is (torch.bfloat16 if has_it else None)
        assert choose_precision("fp16", CUDA) is torch.float16
        assert choose_precision("float32", CUDA) is None
    assert choose_precision("auto", CPU) is None
    assert choose_precision("auto", MPS) is None
    assert choose_precision("bf16", CPU) is torch.bfloat16
    with pytest.raises(ValueError, match="precision=bf16 is not available on the device 'cuda'"):
        choose_precision("bf16", CUDA)
    with pytest.raises(ValueError, match="precision=fp16 is not available on the device 'cpu'"):
        choose_precision("fp16", CPU)
    with pytest.raises(ValueError, match="precision=bf16 is not available on the device 'mps'"):
        choose_precision("bf16", MPS)


@pytest.mark.parametrize(
    ("bf16", "amx", "refused", "expected"),
    [
        (True, False, False, torch.bfloat16),
        (False, True, False, torch.bfloat16),
        (False, True, True, None),
        (False, False, False, None),
    ],
)
def test_precision_fast_is_bf16_on_a_cpu_that_runs_it(
    bf16: bool,
    amx: bool,
    refused: bool,
    expected: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(devices, "_bf16_is_refused", lambda: refused)
    assert choose_precision("fast", CPU) is expected
    assert choose_precision("auto", CPU) is None
    assert choose_precision("fast", MPS) is None
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert choose_precision("fast", CUDA) is torch.bfloat16


def test_random_numbers_are_a_function_of_the_seed_and_restored() -> None:
    before = torch.get_rng_state()
    drawn = []
    for numbers in [(1, 2), (1, 2), (2, 1), (1, 3)]:
        with own_random_numbers(CPU):
            seed_random_numbers(*numbers, device=torch.device("cpu"))
            drawn.append(torch.rand(4))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])


def test_bf16_on_a_cpu_works_or_is_refused_in_words() -> None:
    """In a process of its own: where the instructions are refused, a product would end it."""
    code = """
import torch
from sphereface2.training.devices import choose_precision
try:
    chosen = choose_precision("bf16", torch.device("cpu"))
except ValueError as error:
    assert "ONEDNN_MAX_CPU_ISA" in str(error)
else:
    square = torch.ones(128, 128, dtype=chosen)
    assert float((square @ square)[0, 0]) == 128
"""
    bare = {key: value for key, value in os.environ.items() if key != "ONEDNN_MAX_CPU_ISA"}
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


FREED = """
import resource
import torch
from sphereface2.training.devices import keep_freed_memory

def pages() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(10_000_000)  # 40 MB, some 10,000 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(min(pages() for _ in range(5)) > 9_000)
keep_freed_memory()
print(min(pages() for _ in range(20)) < 100)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.usefixtures("quick_processes")
def test_memory_that_was_freed_is_not_mapped_again() -> None:
    words = [sys.executable, "-c", FREED]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
