"""The process that builders are forked from.

    worker_command("modelc.measure.zygote", SOCKET, FOLDER)       FOLDER/target.yaml is a Target

It has imported everything and compiled one kernel before the first builder is forked, so that another one costs
milliseconds, and it has one thread. Each byte on its control socket comes with a socket for a new builder; the answer
is the builder's process id. When the socket closes, whatever became of its owner, builders end and the folder goes.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.expr import Load, Var
from modelc.measure.build import build
from modelc.measure.builder import serve
from modelc.space.choose import chosen
from modelc.space.rules.derivation import rules
from modelc.target import Target, parse_target


def main() -> None:
    control, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever started this decides
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended builders leave nothing behind
    try:
        _warm(parse_target((folder / "target.yaml").read_text(), "target.yaml"))
        control.sendall(json.dumps(sorted(rules())).encode() + b"\n")
        while True:
            message, sockets, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            child = os.fork()
            if child == 0:
                control.close()
                serve(sockets[0], folder)
            os.close(sockets[0])
            control.sendall(child.to_bytes(4, "little"))
    except ConnectionError:
        return
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _warm(target: Target) -> None:
    """What the first kernel of a process takes longer for is done before builders are forked."""
    x, y, i = Buffer("x", "float32", (64,)), Buffer("y", "float32", (64,)), Var("i")
    block = Block("copy", (Iter("i", 64),), (Load("y", (i,)),), (Load("x", (i,)),))
    task = Task("copy", (x, y), ("x",), ("y",), (block,), "copy")
    build(chosen(task, target).nest, target)
    gc.collect()
    gc.freeze()  # what is there stays shared with the builders


if __name__ == "__main__":
    main()
