"""Every layout trains the model that one plain process trains."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.thorough import parameters
from tests.trainer import forked
from tests.trainer.conftest import ONE_CORE, REPOSITORY, RunDir
from tests.trainer.ports import free_port
from trainer import export, inspect
from trainer.checkpoint import loading
from trainer.checkpoint.initial_weights import begin_with
from trainer.checkpoint.lookup import find
from trainer.command import run as run_command
from trainer.parallel.initialise import materialise
from trainer.parallel.pipeline_split import split
from trainer.workloads.llama import build_llama, empty_llama
from trainer.workloads.llama_hf import StoredWeights, config_of, to_hf
from trainer.workloads.llama_presets import LLAMA_PLAN, preset

pytestmark = pytest.mark.slow

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 16,
    "hidden_act": "silu",
}
# sgd: adam would hide a gradient of a wrong scale, which it divides away again.
OPTIONS = (
    "--workload lm --sequence-length 16 --mock-tokens 700 --global-batch-size 8 --lr 0.1 "
    "--optimizer sgd --schedule constant --log-every 1 --num-workers 0 "
    "--checkpoint-mode sync"
)
LAYOUTS = {
    "ddp": "--micro-batch-size 1 --activation-checkpointing full",
    "fsdp": "--strategy fsdp --micro-batch-size 1",
    "fsdp with offload": "--strategy fsdp --cpu-offload --activation-checkpointing full",
    "hsdp": "--strategy hsdp --dp-shard 2 --micro-batch-size 1 --no-reshard-after-forward",
    "tp": "--strategy tp --micro-batch-size 4",
    "tp with sp": "--tp -1 --sequence-parallel --activation-checkpointing full",
    "ddp x tp, a smaller last microbatch": "--tp 2 --micro-batch-size 3",
    "fsdp x tp": "--strategy fsdp --tp 2 --micro-batch-size 2 --activation-checkpointing selective",
    "fsdp x tp, counted": "--dp-shard 2 --tp 2 --micro-batch-size 3"
    " --workload tests.trainer.counted:Counted",
    "fsdp x tp with sp": "--strategy fsdp --tp 2 --sequence-parallel --micro-batch-size 4",
    "fsdp x tp with sp, compiled": "--strategy fsdp --tp 2 --sequence-parallel --compile",
    "cp": "--cp 4 --micro-batch-size 4 --activation-checkpointing full",
    "ddp x cp": "--cp 2 --micro-batch-size 2",
    "ddp x cp, compiled": "--cp 2 --compile",
    "ddp x cp, gathering": "--cp 2 --cp-comm-type all_gather --micro-batch-size 2",
    "fsdp x cp": "--strategy fsdp --cp 2 --micro-batch-size 2 --activation-checkpointing selective",
    "cp x tp": "--cp 2 --tp 2 --micro-batch-size 8",
    "cp x tp with sp": "--cp 2 --tp 2 --sequence-parallel --activation-checkpointing full",
}
SHOWN_BY_OTHERS = (
    *("fsdp", "tp", "fsdp x tp", "fsdp x tp with sp"),
    *("cp", "ddp x cp, compiled", "fsdp x cp", "cp x tp"),
)


@dataclass
class Server:
    """Starts runs in a folder of its own."""

    folder: Path
    env: dict[str, str]

    def train(
        self, count: int, options: str, out: str, *, clipped: bool = True
    ) -> tuple[list[int], RunDir, str]:
        """Train on `count` ranks; return their exit codes, the run, and what rank 0 wrote."""
        port = free_port()
        words = ["--model", str(self.folder / "model"), *OPTIONS.split(), *options.split()]
        words += ["--clip-grad-norm", "0.5"] if clipped else []
        words += ["--out", str(self.folder / out)]
        logs = [self.folder / f"{out}-{rank}.log" for rank in range(count)]
        started = []
        for rank, log in enumerate(logs):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count}
            place |= {"LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            reported = {name: str(value) for name, value in place.items()} if count > 1 else {}
            started.append(forked.start(words, self.env | reported, REPOSITORY, (log, log)))
        try:
            codes = [process.wait() for process in started]
        finally:
            for process in started:
                process.kill()
        return codes, RunDir(self.folder / out), logs[0].read_text()


def serve(folder: Path, shape: dict[str, Any]) -> Server:
    """Make ready for runs in `folder`, of a model of that shape."""
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(shape))
    env = {k: v for k, v in os.environ.items() if not k.startswith("DDP_")}
    return Server(folder, env | ONE_CORE | {"PYTHONPATH": str(REPOSITORY)})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """One for all tests here."""
    return serve(tmp_path_factory.mktemp("layouts"), SHAPE)


@pytest.fixture(scope="module")
def plain(server: Server) -> RunDir:
    """20 steps of one process."""
    codes, run, output = server.train(1, "--max-steps 20", "plain")
    assert codes == [0], output
    return run


def tensors_of(run: RunDir) -> dict[str, torch.Tensor]:
    """Weights and moments of the run's last checkpoint, whole."""
    tensors = loading.read_named(loading.read_index(find(run.path)), "")
    return {name: t for name, t in tensors.items() if not name.startswith("rank/")}


def worst(run: RunDir, other: RunDir) -> dict[str, float]:
    """The largest relative difference of losses, of gradient norms, and of tensors."""

    def of(key: str) -> float:
        pairs = zip(run.metrics(key), other.metrics(key), strict=True)
        return max(abs(ours[key] / theirs[key] - 1) for ours, theirs in pairs)

    ours, theirs = tensors_of(run), tensors_of(other)
    assert ours.keys() == theirs.keys()
    tensors = max(float((ours[n] - theirs[n]).norm() / theirs[n].norm()) for n in ours)
    return {"loss": of("loss"), "grad_norm": of("grad_norm"), "tensors": tensors}


@pytest.mark.parametrize("name", parameters(LAYOUTS, SHOWN_BY_OTHERS))
def test_a_layout_is_the_plain_run(server: Server, plain: RunDir, name: str) -> None:
    """Losses, gradient norms, weights and moments, over 20 steps, with clipping."""
    out = name.replace(" ", "-")
    codes, run, output = server.train(4, f"--max-steps 20 {LAYOUTS[name]}", out)
    assert codes == [0] * 4, output
    assert len(run.metrics("grad_norm")) == 20
    assert max(line["grad_norm"] for line in run.metrics("grad_norm")) > 0.5  # it was clipped
    assert max(worst(run, plain).values()) < 1e-4, worst(run, plain)


def test_layouts_that_clip_nothing_are_the_plain_run_too(server: Server) -> None:
    """Then nothing asks for the norm, and finite gradients are looked for in another way."""
    codes, plain, output = server.train(1, "--max-steps 12", "unclipped", clipped=False)
    assert codes == [0], output
    for layout in ("--strategy fsdp --cpu-offload --micro-batch-size 1", "--strategy fsdp --tp 2"):
        codes, run, output = server.train(
            4, f"--max-steps 12 {layout}", f"unclipped{len(layout)}", clipped=False
        )
        assert codes == [0] * 4, output
        assert not run.metrics("grad_norm")
        ours, theirs = tensors_of(run), tensors_of(plain)
        assert max(float((ours[n] - theirs[n]).norm() / theirs[n].norm()) for n in theirs) < 1e-4
        assert run.losses() == pytest.approx(plain.losses(), rel=1e-4)


def test_a_wrong_gradient_scale_is_seen(server: Server, plain: RunDir) -> None:
    """One percent, which is less than any mistake in counting ranks, is far beyond the limit."""
    options = "--max-steps 20 --workload tests.trainer.scaled:Scaled"
    codes, run, output = server.train(1, options, "scaled")
    assert codes == [0], output
    assert worst(run, plain)["grad_norm"] > 5e-3  # the weights hide it, as steps are clipped


def test_ranks_of_a_sequence_count_their_own_targets(server: Server) -> None:
    """Which are unevenly spread; validation, and going on from there on one process, included."""
    masked = "--workload tests.trainer.masked:Masked"
    codes, alone, output = server.train(1, f"--max-steps 20 {masked}", "masked")
    assert codes == [0], output
    cp = "--strategy fsdp --cp 2 --micro-batch-size 2"
    for count, options in ((4, f"--max-steps 12 {cp}"), (1, "--max-steps 20")):
        codes, run, output = server.train(count, f"{options} {masked}", "masked-cp")
        assert codes == [0] * count, output
    assert [event["step"] for event in run.events("resume")] == [0, 12]
    assert max(worst(run, alone).values()) < 1e-4, worst(run, alone)
    for line in run.metrics("tokens_per_s"):
        assert line["tokens_per_s"] == pytest.approx(16 * line["samples_per_s"], abs=0.01)
    of_cp = {line["step"]: line["test_loss"] for line in run.metrics("test_loss")}
    expected = {line["step"]: line["test_loss"] for line in alone.metrics("test_loss")}
    assert {5, 10} < of_cp.keys()  # at the ends of epochs
    for step in expected.keys() & of_cp.keys():
        assert of_cp[step] == pytest.approx(expected[step], rel=1e-5)


def test_an_export_is_of_every_layout(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards of 4 ranks give the files that one process gives, in both formats."""
    for count, name, layout in ((1, "one", ""), (4, "four", "--strategy fsdp --tp 2")):
        codes, run, output = server.train(count, f"--max-steps 3 {layout}", f"exported-{name}")
        assert codes == [0] * count, output
        for out in (f"{name}.safetensors", f"{name}-hf"):
            options = ["--format", "hf"] if out.endswith("hf") else []
            words = [str(run.path), str(tmp_path / out), *options]
            assert run_command(export.main, words) == 0, capsys.readouterr().err
    for file in ("{}.safetensors", "{}-hf/model.safetensors"):
        one, four = (load_file(tmp_path / file.format(name)) for name in ("one", "four"))
        assert one.keys() == four.keys()
        for name, weights in one.items():
            torch.testing.assert_close(four[name], weights, rtol=1e-4, atol=1e-6)
    configs = [(tmp_path / f"{name}-hf/config.json").read_text() for name in ("one", "four")]
    assert configs[0] == configs[1]


STORED = (
    "",
    "--strategy fsdp --tp 2 --cpu-offload",
    "--strategy fsdp --pp 2 --micro-batch-size 1",
)


def test_every_layout_begins_with_the_stored_weights(server: Server, tmp_path: Path) -> None:
    """What one process exported goes on the same, though no rank has all of it."""
    codes, trained, output = server.train(1, "--max-steps 3", "stored")
    assert codes == [0], output
    folder = tmp_path / "stored"
    assert run_command(export.main, [str(trained.path), str(folder), "--format", "hf"]) == 0
    runs = []
    for number, layout in enumerate(STORED):
        count = 4 if layout else 1
        options = f"--max-steps 3 --init-from {folder} {layout}"
        codes, run, output = server.train(count, options, f"from-stored-{number}")
        assert codes == [0] * count, output
        runs.append(run)
    assert runs[0].losses()[0] != pytest.approx(trained.losses()[0], rel=1e-4)
    for run in runs[1:]:
        assert max(worst(run, runs[0]).values()) < 1e-4, worst(run, runs[0])


@pytest.mark.parametrize("source", ["", "w.safetensors"])
def test_a_rank_begins_with_the_weights_of_its_own_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Of a folder it reads one after the other, and none of another's."""
    shape = replace(preset("toy"), num_layers=4)
    weights = dict(build_llama(shape, 16).state_dict())
    save_file(weights, tmp_path / "w.safetensors")
    save_file(to_hf(weights, is_tied=False), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config_of(shape, 16)))
    read: list[str] = []
    read_one = StoredWeights.__call__

    def recorded(self: StoredWeights, name: str) -> torch.Tensor:
        read.append(name)
        return read_one(self, name)

    monkeypatch.setattr(StoredWeights, "__call__", recorded)
    share = split(empty_llama(shape, 16), LLAMA_PLAN, pp_rank=1, pp=2, num_stages=2)
    materialise(share, torch.device("cpu"), cpu_offload=False, draws=False)
    begin_with(tmp_path / source, share.model, share.elsewhere)
    own = dict(share.model.named_parameters())
    assert read == ([] if source else list(own))
    assert {name.split(".")[1] for name in own if name.startswith("layers")} == {"2", "3"}
    assert "tok_embeddings.weight" not in own
    assert all(torch.equal(parameter, weights[name]) for name, parameter in own.items())
    assert share.model.rope_cos[0].eq(1).all()


def test_a_checkpoint_is_of_every_layout(
    server: Server, plain: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """4 ranks of fsdp, then 2 of tp, then 1 process: one run, its moments included."""
    parts = [
        (4, "--max-steps 8 --strategy fsdp --micro-batch-size 1 --checkpoint-mode async"),
        (2, "--max-steps 15 --tp 2 --sequence-parallel --checkpoint-mode async"),
        (1, "--max-steps 20"),
    ]
    for count, options in parts:
        codes, run, output = server.train(count, options, "resharded")
        assert codes == [0] * count, output
        path = find(run.path)
        assert run_command(inspect.main, [str(path)]) == 0
        assert "verified" in capsys.readouterr().out
    assert [event["step"] for event in run.events("resume")] == [0, 8, 15]
    assert len(run.losses()) == 20
    assert max(worst(run, plain).values()) < 1e-4, worst(run, plain)


def test_channels_last_weights_are_sharded(server: Server) -> None:
    """The digits' CNN, whose weights lie as convolutions want them: as with ddp."""
    options = "--workload trainer.workloads.mnist:Mnist --model cnn --max-steps 3"
    runs = {}
    for strategy in ("ddp", "fsdp"):
        codes, run, output = server.train(2, f"{options} --strategy {strategy}", f"cnn-{strategy}")
        assert codes == [0, 0], output
        runs[strategy] = run.losses()
    assert runs["fsdp"] == pytest.approx(runs["ddp"], rel=1e-4)
