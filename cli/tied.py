"""Runs a program that dies with its parent, however the parent ends.

    python -I -S cli/tied.py PARENT_PID SIGNAL PROGRAM ARGUMENT...

Asks the Linux kernel to send SIGNAL when the thread that started this process is gone, then becomes the program. A
program of its own rather than `preexec_fn`, which is unsafe in a process with threads (gRPC has them).
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tied_command(command: Sequence[str], *, death_signal: signal.Signals) -> list[str]:
    """Return the command line that runs `command` tied to the calling process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(death_signal.value), *command]


def run_tied(parent_pid: int, death_signal: int, command: Sequence[str]) -> None:
    """Become `command`; return only if the parent is gone already."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the kernel knew of our wish.
    if os.getppid() == parent_pid:
        os.execvp(command[0], list(command))


if __name__ == "__main__":
    run_tied(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
