"""Work shared out over the threads of torch, each of which computes on its own.

torch itself cuts every single operation into a piece per thread, and all of them wait for the
slowest: some dozens of times per block of classes, and long if another process has one of the
cores. Here a thread takes a whole part of the work and meets the others at its end.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch

Part = TypeVar("Part")
Result = TypeVar("Result")

_POOLS: dict[tuple[int, int], ThreadPoolExecutor] = {}  # by process: a fork keeps no threads


def on_torch_threads(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """`work` of each part, in order, without gradients, on as many threads as torch may use.

    A single part is worked on by the caller, whose operations use all threads.
    """
    threads = torch.get_num_threads()
    if threads == 1 or len(parts) <= 1:
        return [work(part) for part in parts]

    def alone(part: Part) -> Result:
        with torch.no_grad():  # which is a thread's own matter
            return work(part)

    return list(_pool(threads).map(alone, parts))


def _pool(threads: int) -> ThreadPoolExecutor:
    key = os.getpid(), threads
    if key not in _POOLS:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="head")
        everyone = Barrier(threads)

        def work_alone() -> None:
            everyone.wait()
            torch.get_num_threads()  # else torch sets the number again with the first operation
            torch.set_num_threads(1)

        for started in [pool.submit(work_alone) for _ in range(threads)]:
            started.result()
        # The number is a thread's own, except that new threads start with the one set last.
        torch.set_num_threads(threads)
        _POOLS[key] = pool
    return _POOLS[key]
