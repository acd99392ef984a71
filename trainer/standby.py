"""python -m trainer.standby FD: import all that training needs, and wait to become a rank.

A rank's agent starts it for the attempt that may follow, and sends over the socket FD what that
rank gets: arguments and environment as JSON, and the file that its output goes to. Until then it
has no GPU, no signal handlers and no files; if the socket closes, it ends.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
from importlib import import_module

from trainer.__main__ import leave, main
from trainer.environment import set_torch_defaults
from trainer.text import lose_what_cannot_be_written

_NEEDED = (
    "trainer.loop.run",
    "torch.distributed.checkpoint.state_dict_loader",
    "torch.distributed.fsdp",
    "trainer.workloads.mnist_models",
    "tyro",
)
"""What a rank imports before its first step, and only when it needs it."""
_MAX_BYTES = 1 << 20
_LOWEST = 19
"""The lowest priority, as nice has it."""


def _import() -> None:
    """Import at the lowest priority, which Linux gives to threads, and none ever gets back up."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
    for name in _NEEDED:
        import_module(name)


def wait(descriptor: int) -> list[str]:
    """Wait for the rank to be; put its environment and output in force; return its arguments."""
    with socket.socket(fileno=descriptor) as connection:
        message, files, *_ = socket.recv_fds(connection, _MAX_BYTES, 1)
        while message and not message.endswith(b"\n"):
            message += connection.recv(_MAX_BYTES)
    if not message:
        os._exit(0)
    order = json.loads(message)
    os.environ.clear()
    os.environ.update(order["environ"])
    for standard in (1, 2):
        os.dup2(files[0], standard)
    os.close(files[0])
    arguments: list[str] = order["arguments"]
    return arguments


if __name__ == "__main__":
    gc.disable()
    set_torch_defaults(os.environ)
    importer = threading.Thread(target=_import)
    importer.start()
    importer.join()
    sys.argv[1:] = wait(int(sys.argv[1]))
    lose_what_cannot_be_written()
    leave(main(sys.argv[1:], os.environ))
