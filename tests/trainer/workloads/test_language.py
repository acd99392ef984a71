"""The language workload: its samples, its loss, and runs of it."""

import json
import math
import re
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.counted import Counted
from tests.trainer.masked import MaskedData
from trainer import sample
from trainer.checkpoint import loading
from trainer.checkpoint.train_state import differences, identity_of
from trainer.command import run
from trainer.config import Config
from trainer.data.batch_plan import plan_batches
from trainer.data.batches import TokenBatches, build_batches, permutation
from trainer.errors import UserError
from trainer.workloads import stdlib_text
from trainer.workloads.language import Language
from trainer.workloads.llama_hf import config_of
from trainer.workloads.llama_presets import preset
from trainer.workloads.tokens import BYTES_EOS, IGNORED, TokenData

Train = Callable[..., tuple[int, Any]]
Start = Callable[..., Any]


def text(num_tokens: int, length: int = 4) -> TokenData:
    """Tokens 0, 1, 2 and so on."""
    row = np.arange(num_tokens, dtype=np.uint16)
    return TokenData(row=row, vocab_size=1000, sequence_length=length, source="the numbers")


@pytest.mark.parametrize(("num_tokens", "samples"), [(0, 0), (1, 0), (2, 1), (9, 2), (10, 3)])
def test_every_token_but_the_first_is_a_target_once(num_tokens: int, samples: int) -> None:
    """Inputs are what comes before; the last sample is filled up, and that is ignored."""
    data = text(num_tokens)
    assert len(data) == samples
    if not samples:
        return
    inputs, targets = data.gather(np.arange(samples))
    assert inputs.shape == targets.shape == (samples, 4)
    counted = targets != IGNORED
    assert targets[counted].tolist() == list(range(1, num_tokens))
    assert (inputs[counted] + 1).tolist() == targets[counted].tolist()
    assert inputs.dtype == targets.dtype == torch.int64


@pytest.mark.parametrize("samples", [[0, 1], [2], [1, 2, 0], []])
def test_how_many_targets_count_is_known_from_the_samples(samples: list[int]) -> None:
    """As many as are read: of three samples the last is filled up with three."""
    data, chosen = text(10), np.array(samples, np.int64)
    read = (data.gather(chosen)[1] != IGNORED).sum().item() if samples else 0
    assert data.num_targets(chosen) == read


def test_who_reads_or_counts_differently_is_asked() -> None:
    """It is unknown for data with a `gather` of its own, and for a workload that counts itself."""
    data = MaskedData(row=np.arange(9), vocab_size=9, sequence_length=4, source="noise")
    assert data.num_targets(np.arange(2)) is None
    assert Language(Config(workload="lm")).counts_all_but_ignored
    assert not Counted(Config(workload="lm")).counts_all_but_ignored


def test_a_token_outside_the_vocabulary_is_an_error() -> None:
    """One line instead of a crash of the embedding."""
    data = TokenData(
        row=np.array([1, 2, 700], np.uint16), vocab_size=256, sequence_length=2, source="FILE"
    )
    with pytest.raises(UserError, match="FILE must have tokens below 256; found 700"):
        data.gather(np.arange(1))


@pytest.mark.parametrize(("world", "micro"), [(1, 6), (2, 3), (3, 1)])
def test_a_batch_is_global(world: int, micro: int) -> None:
    """Step s is perm(seed, epoch)[s*G:(s+1)*G], whatever the ranks; a resume goes on there."""
    data = text(82)
    by_rank = []
    for rank in range(world):
        plan = plan_batches(
            global_batch_size=6, micro_batch_size=micro, dp_rank=rank, dp_size=world
        )
        batches = build_batches(data, plan, seed=3, device=torch.device("cpu"), num_workers=0)
        assert isinstance(batches, TokenBatches)
        firsts = [inputs[:, 0] // 4 for inputs, _ in batches.epoch(1, 2)]
        by_rank.append(torch.cat(firsts).view(-1, 6 // world))
        evaluated = torch.cat([inputs[:, 0] // 4 for inputs, _ in batches.evaluation(range(2, 9))])
        assert evaluated.tolist() == list(range(2, 9))
        assert list(batches.evaluation(range(3, 3))) == []  # fewer samples than ranks
    assert torch.cat(by_rank, dim=1).flatten().tolist() == permutation(3, 1, 21)[12:18].tolist()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small standard library."""
    folder = tmp_path / "lib"
    for name in ("a.py", "b.py", "c/d.py", "c/test/e.py", "site-packages/f.py", "g.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n" + "print('hello')\n" * 7)
    (folder / "old.py").write_bytes(b"# caf\xe9 au lait")
    monkeypatch.setattr(stdlib_text, "stdlib_folder", lambda: folder)
    monkeypatch.setattr(stdlib_text, "is_held_out", lambda file: file.name == "b.py")
    return folder


def test_the_library_is_read_in_order_and_split_by_name(library: Path) -> None:
    """No tests, nothing installed; each document ends with a byte that text does not have."""
    names = [file.as_posix() for file in stdlib_text.files()]
    assert names == ["a.py", "b.py", "c/d.py", "old.py"]
    train, test = stdlib_text.read("train").tobytes(), stdlib_text.read("test").tobytes()
    documents = train.split(bytes([BYTES_EOS]))
    assert [document[:7] for document in documents] == [
        b"# a.py\n",
        b"# c/d.p",
        b"# caf\xef\xbf",
        b"",
    ]
    assert test == (library / "b.py").read_bytes() + b"\xff"
    assert stdlib_text.read("train").tobytes() == train


@pytest.mark.slow
def test_the_real_library_holds_a_few_files_out() -> None:
    """Always the same ones, whatever else is there."""
    files = stdlib_text.files()
    held_out = [file for file in files if stdlib_text.is_held_out(file)]
    assert len(files) > 300
    assert 0.01 < len(held_out) / len(files) < 0.05
    assert not stdlib_text.is_held_out(Path("argparse.py"))


def test_no_library_at_all_is_an_error(tmp_path: Path) -> None:
    """With the remedy."""
    with pytest.raises(UserError, match="Python files to train on; found none; give --data-dir"):
        stdlib_text.read("train", tmp_path)


def test_the_loss_is_a_sum_over_what_counts() -> None:
    """What is ignored adds nothing, also where all is."""
    workload = Language(Config(workload="lm"))
    outputs = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([[1, 6, IGNORED], [IGNORED, IGNORED, 0]])
    expected = -sum(
        outputs[i, j].log_softmax(0)[t] for i, j, t in [(0, 0, 1), (0, 1, 6), (1, 2, 0)]
    )
    torch.testing.assert_close(workload.loss(outputs, targets), expected)
    assert workload.num_valid(targets).item() == 3
    nothing = torch.full((2, 3), IGNORED)
    assert (workload.loss(outputs, nothing).item(), workload.num_valid(nothing).item()) == (0, 0)


def test_perplexity_and_bits_follow_from_the_loss() -> None:
    """Of bytes: a guess among 256 takes 8 bits; noise has no bits per byte."""
    reported = Language(Config(workload="lm")).derived(math.log(256))
    assert reported == pytest.approx({"test_perplexity": 256, "test_bits_per_byte": 8})
    assert list(Language(Config(workload="lm", mock_tokens=9)).derived(1.0)) == ["test_perplexity"]
    assert Language(Config(workload="lm")).derived(1e4)["test_perplexity"] == math.inf


def test_a_resume_compares_what_options_come_to(tmp_path: Path) -> None:
    """Not the names of equal models; a folder by its content; an old checkpoint by its text."""

    def identity(**options: Any) -> dict[str, object]:
        config = Config(workload="lm", **options)
        known = identity_of(config, 1, Language(config).resolved())
        return dict(json.loads(json.dumps(known)))

    usual = identity()
    assert not differences(usual, identity(model="toy", sequence_length=256))
    assert differences(usual, identity(model="mini"))
    folder = tmp_path / "config.json"
    about = config_of(preset("toy"), 256)
    folder.write_text(json.dumps(about))
    first = identity(model=str(tmp_path))
    assert not differences(first, usual)
    folder.write_text(json.dumps(about | {"rope_theta": 9.0, "rope_parameters": None}))
    (found,) = differences(identity(model=str(tmp_path)), first)
    assert found == "model rope_theta: 9.0 where the run began with 10000.0"
    old = {name: value for name, value in usual.items() if name != "resolved"}
    assert not differences(usual, old)
    (found,) = differences(identity(model="mini"), old)
    assert found == "model: mini where the run began with the default"


def test_mock_tokens_are_of_the_models_vocabulary() -> None:
    """As many as asked for, always the same, nothing held out."""
    workload = Language(Config(workload="lm", model="stories15m", mock_tokens=1000))
    data = workload.train_data()
    assert (len(data.row), data.sequence_length, data.vocab_size) == (1000, 256, 32_000)
    assert data.row.max() > 20_000
    assert np.array_equal(data.row, workload.train_data().row)
    assert workload.test_data() is None


MASKED = """
    import torch
    from trainer.workloads.base import TensorData
    from trainer.workloads.language import Language

    class Masked(Language):
        '''Samples of which one learns from 1 to 8 targets; the first of a step from none.'''
        def check(self): pass
        def build_model(self):
            return torch.nn.Sequential(torch.nn.Embedding(11, 6), torch.nn.Linear(6, 11))
        def train_data(self):
            generator = torch.Generator().manual_seed(5)
            tokens = torch.randint(11, (48, 9), generator=generator)
            inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
            share, chance = (torch.rand(48, n, generator=generator) for n in (1, 8))
            targets[share > chance] = -100
            targets[::3] = -100
            return TensorData(inputs=inputs, targets=targets)
        def test_data(self):
            data = self.train_data()
            return TensorData(inputs=data.inputs[:13], targets=data.targets[:13])
"""
MASKED_OPTIONS = (
    *("--global-batch-size", "8", "--log-every", "1", "--optimizer", "sgd", "--lr", "0.5"),
    *("--max-steps", "12", "--schedule", "constant", "--seed", "3", "--clip-grad-norm", "0.2"),
)


def weights(run: Any) -> dict[str, torch.Tensor]:
    """What the last checkpoint holds of the model."""
    name = (run.path / "checkpoints" / "latest").read_text().strip()
    return loading.read_named(loading.read_index(run.path / "checkpoints" / name), "model/")


@pytest.mark.slow
def test_tokens_count_alike_however_ranks_and_microbatches_cut_them(
    train: Train, start_ranks: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, weights and validation are those of one process with one big batch, to 1e-6.

    By sgd and with clipping, both of which feel a gradient of the wrong size; the number of
    targets that count differs in every microbatch, and some have none.
    """
    module = f"masked_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(MASKED))
    monkeypatch.chdir(tmp_path)
    options = ("--workload", f"{module}:Masked", *MASKED_OPTIONS)
    code, one = train(*options, out="one")
    cut_code, cut = train(*options, "--micro-batch-size", "1", out="cut")
    two = start_ranks(2, *options, "--micro-batch-size", "2", out="two")
    assert (code, cut_code, two.wait()) == (0, 0, [0, 0]), two.output
    for other in (cut, two.run):
        assert other.losses() == pytest.approx(one.losses(), rel=1e-6)
        torch.testing.assert_close(weights(other), weights(one), rtol=1e-6, atol=1e-6)
        found, expected = (r.metrics("test_loss")[-1]["test_loss"] for r in (other, one))
        assert found == pytest.approx(expected, rel=1e-6)
    assert one.losses()[-1] < one.losses()[0]


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_a_run_tells_perplexity_and_keeps_the_best_by_loss(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """In metrics.jsonl, the log, the summary and at the end; there is no accuracy."""
    code, run = train(
        *("--workload", "lm", "--sequence-length", "16", "--global-batch-size", "2"),
        *("--lr", "0.3", "--schedule", "constant", "--max-steps", "8", "--val-every", "2"),
        *("--optimizer", "sgd", "--log-every", "4"),
    )
    assert code == 0
    validations = run.metrics("test_loss")
    assert [line["step"] for line in validations] == [2, 4, 6, 8]
    for line in validations:
        assert line["test_perplexity"] == pytest.approx(math.exp(line["test_loss"]))
        assert line["test_bits_per_byte"] == pytest.approx(line["test_loss"] / math.log(2))
        assert "test_accuracy" not in line
    best = min(validations, key=lambda line: line["test_loss"])
    assert (run.path / "checkpoints" / "best").read_text().strip() == f"step-{best['step']}"
    summary = run.summary()
    assert summary["test_accuracy"] is None
    assert summary["test_bits_per_byte"] == validations[-1]["test_bits_per_byte"]
    output = capsys.readouterr().out
    assert f"test bits per byte {summary['test_bits_per_byte']:.4f} of " in output
    assert f"FINISHED  test loss {summary['test_loss']:.4f}  test perplexity" in output


@pytest.mark.slow
def test_the_readmes_toy_trains_and_writes(
    train: Train, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands as they stand there, with fewer steps, and on a smaller library."""
    (library / "a.py").write_text("print('hello')\n" * 100)
    text = (Path(__file__).parents[3] / "README.md").read_text().replace("\\\n", "")
    (command,) = re.findall(r"\n    python -m trainer (--workload lm .*)\n", text)
    words = shlex.split(command)
    words[words.index("--out") : words.index("--out") + 2] = []
    words[words.index("--max-steps") + 1] = "1"
    code, run_dir = train(*words)
    assert code == 0
    assert run_dir.summary()["test_bits_per_byte"] > 2
    (command,) = re.findall(r"\n    python -m trainer\.sample out/toy (.*)\n", text)
    capsys.readouterr()
    assert run(sample.main, [str(run_dir.path), *shlex.split(command), "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("def ")
