"""Start the ranks of a test as processes of a module, which meet at ports of this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.loaded import quick_processes

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TIME_LIMIT = 240  # seconds until a process that hangs is a failure


def run_ranks(module: str, folder: Path, *, ranks: int, meetings: int) -> None:
    """Run `python -m MODULE FOLDER PORT...` for each rank to its end; a port for each meeting."""
    words = [sys.executable, "-m", module, str(folder), *_free_ports(meetings)]
    with quick_processes():
        processes = [
            subprocess.Popen(
                words,
                env={
                    **ENVIRONMENT,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1",
                },
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=TIME_LIMIT)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in processes:
            process.kill()


def _free_ports(count: int) -> list[str]:
    """Ports that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
