import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import uncovered
from tests.trainer.ports import free_port
from trainer.distributed.rendezvous_socket import open_rendezvous_socket
from trainer.environment import Ranks


def rank(number: int) -> Ranks:
    """One of two on this node, which may meet at any port."""
    return Ranks(
        rank=number,
        world_size=2,
        local_world_size=2,
        master_addr="127.0.0.1",
        master_port=free_port(),
    )


def test_who_comes_first_is_let_in() -> None:
    """Before anybody serves the store."""
    first = rank(0)
    rendezvous_socket = open_rendezvous_socket(first, {})
    assert rendezvous_socket
    with rendezvous_socket:
        socket.create_connection(("127.0.0.1", first.master_port), timeout=10).close()


def test_one_process_serves_the_store() -> None:
    """Rank 0, if there are others, and not under torchrun."""
    assert open_rendezvous_socket(rank(1), {}) is None
    assert open_rendezvous_socket(rank(0), {"TORCHELASTIC_USE_AGENT_STORE": "True"}) is None
    assert open_rendezvous_socket(Ranks(), {}) is None


def test_a_port_that_is_taken_is_left_to_torch() -> None:
    """It reports it with the rendezvous address."""
    first = rank(0)
    with socket.create_server(("", first.master_port)):
        assert open_rendezvous_socket(first, {}) is None


@pytest.mark.parametrize("workload", ["mnist", "own:Own"])
def test_it_listens_before_torch_is_imported(tmp_path: Path, workload: str) -> None:
    """Also by a workload of one's own; seen by a torch that calls at the port, and ends."""
    master_port = free_port()
    (tmp_path / "torch.py").write_text(
        "import os, socket\n"
        f"socket.create_connection(('127.0.0.1', {master_port}), timeout=10)\n"
        "print('let in', flush=True)\n"
        "os._exit(0)\n"
    )
    (tmp_path / "own.py").write_text("import torch\n")
    ended = subprocess.run(
        [sys.executable, "-m", "trainer", "--workload", workload],
        cwd=tmp_path,
        env=uncovered.environment()
        | {
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]),
            "DDP_RUN_DIR": str(tmp_path / "run"),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master_port),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("let in\n", "")
