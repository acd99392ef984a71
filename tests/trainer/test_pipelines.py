"""Every pipeline trains the model that one plain process trains."""

from collections.abc import Iterator

import pytest

from tests.trainer.conftest import RunDir
from tests.trainer.test_layouts import SHAPE, Server, serve, worst

pytestmark = pytest.mark.slow

PIPELINES = {
    "gpipe": "--pp 4 --pp-schedule gpipe --micro-batch-size 2",
    "1f1b": "--pp 4 --micro-batch-size 1 --activation-checkpointing full",
    "interleaved": "--pp 2 --dp-shard 2 --pp-schedule interleaved --micro-batch-size 1",
    "one microbatch": "--pp 4 --pp-schedule gpipe",
    "pp x ddp": "--strategy pp --micro-batch-size 1 --activation-checkpointing full",
    "pp x fsdp": "--pp 2 --strategy fsdp --micro-batch-size 2",
    "pp x tp": "--pp 2 --tp 2 --micro-batch-size 2 --activation-checkpointing selective",
    "pp x tp with sp": "--strategy 3d --sequence-parallel --micro-batch-size 2",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests here; its model has four layers."""
    with serve(tmp_path_factory.mktemp("pipelines"), SHAPE | {"num_hidden_layers": 4}) as server:
        yield server


@pytest.fixture(scope="module")
def plain(server: Server) -> RunDir:
    """20 steps of one process."""
    codes, run, said = server.train(1, "--max-steps 20", "plain")
    assert codes == [0], said
    return run


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_is_the_plain_run(server: Server, plain: RunDir, name: str) -> None:
    """Losses, gradient norms, weights and moments, over 20 steps, with clipping."""
    out = name.replace(" ", "-")
    codes, run, said = server.train(4, f"--max-steps 20 {PIPELINES[name]}", out)
    assert codes == [0] * 4, said
    assert max(line["grad_norm"] for line in run.metrics("grad_norm")) > 0.5  # it was clipped
    assert max(worst(run, plain).values()) < 1e-4, worst(run, plain)
