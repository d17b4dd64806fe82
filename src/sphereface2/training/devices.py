"""Where a network computes: the device, its precision, and its random numbers."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np
import torch

from sphereface2.workers import survives


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is CUDA, or else MPS, or else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, got '{name}'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name}: this machine offers no CUDA device; use device=auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device={name}: this machine has {torch.cuda.device_count()} CUDA devices, "
            "numbered from cuda:0"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device=mps: this machine offers no MPS device; use device=auto")
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype | None:
    """The type that matrix products and convolutions run in; None leaves them as they are.

    "auto" is bf16 on a CUDA device that has it in hardware and float32 elsewhere; "fast" is bf16
    on a CPU that has it in hardware, too. bf16 may be asked for on any CPU, where it is often
    slower; fp16 needs CUDA, since its loss scaling does.
    """
    cuda_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if name in ("auto", "fast"):
        cpu_bf16 = name == "fast" and device.type == "cpu" and _cpu_has_bf16()
        return torch.bfloat16 if cuda_bf16 or cpu_bf16 else None
    if name == "float32":
        return None
    if name == "bf16" and device.type == "cpu" and _bf16_is_refused():
        raise ValueError(
            "precision=bf16: this machine reports bf16 instructions (AMX) and refuses to run them, "
            "as some virtual machines do; use precision=float32, or set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment"
        )
    if name == "bf16" and (cuda_bf16 or device.type == "cpu"):
        return torch.bfloat16
    if name == "fp16" and device.type == "cuda":
        return torch.float16
    raise ValueError(
        f"precision={name} is not available on the device '{device}'; use precision=auto"
    )


def _cpu_has_bf16() -> bool:
    """Whether the processor has instructions for products in bf16, and runs them."""
    reports = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return reports and not _bf16_is_refused()


@cache
def _bf16_is_refused() -> bool:
    """Whether a bf16 product ends the process: tried in another, since nothing can catch that."""
    return torch.cpu._is_amx_tile_supported() and not survives(_bf16_product_is_right)


def _bf16_product_is_right() -> bool:
    torch.set_num_threads(1)  # OpenMP's other threads are not in the fork
    square = torch.ones(64, 64, dtype=torch.bfloat16)
    return float((square @ square)[0, 0]) == 64


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> None:
    """Let glibc keep, from here on, what a step has freed for the next one.

    By default it returns large blocks to the system at once, and a step of a network on the CPU
    then spends 5 % of its time and more on having the same pages zeroed and mapped again. Blocks
    above 64 MB still go: kept, they would leave large holes.
    """
    with suppress(OSError, AttributeError):  # another C library, which has no such setting
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


NO_COMPILER = (
    "training.compile: torch finds no working compiler on this machine, so nothing is compiled; "
    "install a C++ compiler (g++ and Python's headers; for CUDA Triton as well) and resume"
)


@cache
def can_compile(device: torch.device) -> bool:
    """Whether torch can compile for a device: tried, since more than a compiler is needed."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    inputs = torch.ones(2, device=device)
    try:
        get_cpp_compiler()
        with quiet_compiler():
            compiled = torch.compile(_doubled, dynamic=False)
            return float(compiled(inputs)[0]) == 2.0
    except Exception:  # a compiler fails in as many ways as there are
        return False


def _doubled(inputs: torch.Tensor) -> torch.Tensor:
    return inputs * 2.0


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Without what torch's compiler has to say about older parts of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextmanager
def own_random_numbers(device: torch.device) -> Iterator[None]:
    """Seeding and drawing inside leave the random numbers outside as they were."""
    mps_state = torch.mps.get_rng_state() if device.type == "mps" else None
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices, device_type="cuda"):
        try:
            yield
        finally:
            if mps_state is not None:
                torch.mps.set_rng_state(mps_state)


def seed_random_numbers(*numbers: int, device: torch.device) -> None:
    """Start a device's random numbers from these numbers; to be called in `own_random_numbers`."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
    if device.type == "cpu":
        # torch.manual_seed notes for each kind of accelerator, where none is used yet, by which
        # calls it came here: half a millisecond, twice or more in a step.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
