"""Python processes that start with everything loaded: forks of one that has imported it.

A process of the command line spends three seconds on imports before it does anything. With
`quick_processes`, what `subprocess` starts as `python -m MODULE` or `python -c CODE` is a fork of a
process that waits with torch and the package loaded: a child of the caller as before, with its own
id, streams, environment, session and exit code. Ctrl-C is not ignored there and a terminal is its
own, so that no `preexec_fn` is called. In the end what was loaded is not taken apart, except by
ranks: how the threads of torch end is a matter of its own there. Other programs are started as
ever; so is everything where coverage is measured, and where processes cannot be handed over (Linux
can).
"""

import array
import atexit
import ctypes
import errno
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = (
    "torch.distributed.run",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.checkpoint.state_dict_loader",
    "torch._dynamo",
    "filelock",
    "sphereface2.cli",
    "sphereface2.runs.train",
    "sphereface2.runs.evaluate",
    "sphereface2.datatools.group",
    "sphereface2.cli.console",
)
OF_EXTRAS = ("sphereface2.service.server", "qdrant_client")  # which may not be installed
LAUNCHER = "torch.distributed.run"  # starts processes itself
_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_LONGEST = 1 << 18  # bytes of a request
_start_process = subprocess.Popen._execute_child  # type: ignore[attr-defined]


@contextmanager
def quick_processes() -> Iterator[None]:
    """Within this, `python -m MODULE` and `python -c CODE` start in a moment."""
    if sys.platform != "linux" or "COVERAGE_PROCESS_CONFIG" in os.environ:
        yield
        return
    _hand_over_to(_waiting())
    try:
        yield
    finally:
        subprocess.Popen._execute_child = _start_process  # type: ignore[attr-defined]


@cache
def _waiting() -> socket.socket:
    """The socket of the process that waits; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-m", "tests.loaded", str(its.fileno())]
    root = Path(__file__).parent.parent
    process = subprocess.Popen(words, pass_fds=[its.fileno()], cwd=root, stdin=subprocess.DEVNULL)
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _hand_over_to(waiting: socket.socket) -> None:
    """Let `subprocess` ask the waiting process for what it can start."""
    lock = threading.Lock()
    names = _start_process.__code__.co_varnames[1 : _start_process.__code__.co_argcount]

    def start(self: "subprocess.Popen[Any]", *arguments: Any) -> None:
        given = dict(zip(names, arguments, strict=True))
        words = _program(given["args"])
        if words is None or given["pass_fds"] or given["shell"]:
            _start_process(self, *arguments)
            return
        request = {
            "words": words,
            "folder": os.fspath(given["cwd"] or Path.cwd()),
            "environment": dict(os.environ if given["env"] is None else given["env"]),
            "session": given["start_new_session"],
            "isolated": "-P" in list(given["args"])[:3],
        }
        ends = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [number if end == -1 else end for number, end in enumerate(ends)]
        with lock:
            # The process that waits starts it, and leaves it to us.
            _prctl(_SET_CHILD_SUBREAPER, 1)
            try:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
                waiting.sendmsg([json.dumps(request).encode()], [rights])
                answer = waiting.recv(32)
                if not answer:  # it was killed
                    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
                self.pid = int(answer)
            finally:
                _prctl(_SET_CHILD_SUBREAPER, 0)
        self._child_created = True  # type: ignore[attr-defined]
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(given[f"p2c{way}"] for way in ("read", "write")),
            *(given[f"c2p{way}"] for way in ("read", "write")),
            *(given[f"err{way}"] for way in ("read", "write")),
        )

    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


def _program(arguments: Any) -> list[str] | None:
    """What follows `python`, if that is -m or -c."""
    if isinstance(arguments, str | bytes | os.PathLike):
        return None
    words = [os.fspath(word) for word in arguments]
    if words[0] != sys.executable:
        return None
    words = [word for word in words[1:3] if word not in ("-u", "-P")] + words[3:]
    return words if words[0] in ("-m", "-c") else None


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _next_request(asked: socket.socket) -> tuple[dict[str, Any], Sequence[int]]:
    """Wait for requests; returns in a fork for each one, and never in the process that waits."""
    while True:
        message, rights, _, _ = asked.recvmsg(_LONGEST, socket.CMSG_SPACE(3 * 4))
        if not message:  # the process that asks has ended
            os._exit(0)
        streams = array.array("i")
        streams.frombytes(rights[0][2])
        answers, number = os.pipe()
        may_begin, begin = os.pipe()
        between = os.fork()
        if between == 0:
            own = os.fork()
            if own != 0:
                os.write(number, b"%d" % own)
                os._exit(0)
            for each in (answers, number, begin):
                os.close(each)
            os.read(may_begin, 1)
            os.close(may_begin)
            asked.close()
            return json.loads(message), streams
        os.waitpid(between, 0)  # from now on it is a child of the one that asks
        asked.send(os.read(answers, 32))
        for each in (answers, number, may_begin, begin, *streams):
            os.close(each)  # and it begins


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Do in this fork what a new process does before its program begins."""
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    if request["session"] and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if request["isolated"]:
        del sys.path[0]
    else:
        sys.path[0] = request["folder"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        # As Python itself opens them: a terminal and stderr by lines.
        opened = os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)
        opened.reconfigure(line_buffering=number == 2 or os.isatty(number))
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)


def run_program(program: Sequence[str]) -> None:
    """Be `python -m MODULE` or `python -c CODE`."""
    way, what, *words = program
    if way == "-c":
        sys.argv = ["-c", *words]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(what, vars(sys.modules["__main__"]))
    else:
        sys.argv = [what, *words]
        runpy.run_module(what, run_name="__main__", alter_sys=True)


def run_and_end(program: Sequence[str]) -> None:
    """Be the program, and end as Python does up to where it would take the loaded modules apart.

    That writes to all their pages, which a fork has not copied until then: 0.4 s of work, more than
    most programs are. What is in the way of an end like this (a traceback, Ctrl-C, a pipe that
    nobody reads) takes the usual one.
    """
    code = 0
    try:
        run_program(program)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)
    os._exit(code & 0xFF)


def leave_one_waiting() -> list[str]:
    """Fork a process that waits, before this one has threads: what this one starts is quick.

    Returns once more in each process that this one starts, with the program that it is to run.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() != 0:
        its.close()
        _hand_over_to(ours)
        return []
    ours.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        request, streams = _next_request(its)
    except OSError:  # the process that asked was killed before the answer
        os._exit(0)
    _become(request, streams)
    return list(request["words"])


def main(number: str) -> None:
    """Load everything, wait, and be what is asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in MODULES:
        importlib.import_module(name)
    for name in OF_EXTRAS:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    request, streams = _next_request(socket.socket(fileno=int(number)))
    _become(request, streams)
    program = request["words"]
    if program[1] == LAUNCHER:
        program = leave_one_waiting() or program
    if "RANK" in os.environ:
        run_program(program)
    else:
        run_and_end(program)


if __name__ == "__main__":
    main(sys.argv[1])
