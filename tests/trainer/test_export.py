"""python -m trainer.export and python -m trainer.inspect, on checkpoints of real runs."""

import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from trainer import export, inspect
from trainer.command import run
from trainer.workloads.mnist_models import perceptron

pytestmark = pytest.mark.slow  # trains for a moment

QUICK = ("--model", "mlp", "--global-batch-size", "250", "--log-every", "5", "--max-steps", "3")
Train = Callable[..., tuple[int, Any]]


@pytest.fixture
def run_dir(train: Train, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run of two checkpoints."""
    code, run = train(*QUICK, "--checkpoint-every", "2")
    assert code == 0
    capsys.readouterr()
    return run.path


def test_weights_go_into_plain_files(run_dir: Path, tmp_path: Path) -> None:
    """Both forms hold the same weights, which fit the bare model; the step stands with them."""
    assert run(export.main, [str(run_dir), str(tmp_path / "m")]) == 0
    weights = load_file(tmp_path / "m.safetensors")
    whole = torch.load(tmp_path / "m.pt", weights_only=True)
    plain = whole["model"]
    assert whole["step"] == 3
    assert (whole["config"]["workload"], whole["config"]["model"]) == ("mnist", "mlp")
    umask = os.umask(0)
    os.umask(umask)
    for path in tmp_path.glob("m.*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert set(weights) == set(plain) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    assert all(torch.equal(weights[name], plain[name]) for name in weights)
    perceptron().load_state_dict(weights)
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata()["step"] == "3"
        assert json.loads(file.metadata()["identity"])["global_batch_size"] == 250
    assert not list(tmp_path.glob(".*"))


def test_an_interrupted_export_leaves_nothing(
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C ends it with the shell's code for that, one line, and no half a file."""

    def interrupt(_path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.checkpoint.manifest.flush", interrupt)
    assert run(export.main, [str(run_dir), str(tmp_path / "m.pt")]) == 130
    assert capsys.readouterr().err == "trainer: stopped by Ctrl-C\n"
    assert not list(tmp_path.glob("*m.pt*"))


def test_it_needs_one_process_and_no_cluster(
    run_dir: Path, tmp_path: Path, clean_env: dict[str, str]
) -> None:
    """As a command, on an older checkpoint, into a file of one form."""
    target, older = tmp_path / "w.pth", run_dir / "checkpoints" / "step-2"
    command = [sys.executable, "-m", "trainer.export", str(older), str(target)]
    ended = subprocess.run(
        command, env=clean_env, capture_output=True, text=True, check=True, timeout=400
    )
    assert ended.stdout.startswith(f"{target}: 4 tensors, 0.4 MiB, of {older}")
    assert ended.stderr == ""
    newer = tmp_path / "new.pt"
    assert run(export.main, [str(run_dir), str(newer)]) == 0
    old, new = (
        torch.load(path, weights_only=True)["model"]["1.weight"] for path in (target, newer)
    )
    assert not torch.equal(old, new)


def test_nothing_is_overwritten_without_force(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64 and one line, and the file is as it was."""
    (tmp_path / "m.pt").write_text("precious")
    for out in ("m.pt", "m"):
        assert run(export.main, [str(run_dir), str(tmp_path / out)]) == 64
        assert "a file that is not there yet" in (reported := capsys.readouterr().err)
        assert reported.count("\n") == 1
    assert (tmp_path / "m.pt").read_text() == "precious"
    assert not (tmp_path / "m.safetensors").exists()
    assert run(export.main, [str(run_dir), str(tmp_path / "m"), "--force"]) == 0
    assert torch.load(tmp_path / "m.pt", weights_only=True)


def test_what_force_does_not_do_is_not_advised(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing takes the place of a folder, and no folder that of a file."""
    (tmp_path / "m.pt").mkdir()
    (tmp_path / "file").touch()
    hf = ["--format", "hf"]
    for words in (["m.pt"], ["m.pt", *hf], ["file", *hf], ["file", *hf, "--force"]):
        assert run(export.main, [str(run_dir), str(tmp_path / words[0]), *words[1:]]) == 64
        assert capsys.readouterr().err.endswith("; name another\n")


@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_a_full_disk_is_one_line(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Each of the two writers has a name of its own for it; nothing is left."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, usual[1]))
    try:
        code = run(export.main, [str(run_dir), str(tmp_path / name)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    output = capsys.readouterr().err
    assert (code, output.count("\n")) == (64, 1)
    assert "a file that can be written; found" in output
    assert "File too large" in output
    assert not [path for path in tmp_path.iterdir() if "m." in path.name]


def test_wrong_input_is_64_and_one_line(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No checkpoint, no folder for the file, no arguments, a damaged checkpoint."""
    bad = run_dir / "checkpoints" / "step-2"
    file = next(bad.glob("*.distcp"))
    os.truncate(file, file.stat().st_size - 1)
    for main, words in [
        (export.main, [str(tmp_path / "none"), "m.pt"]),
        (export.main, [str(run_dir), str(tmp_path / "no" / "m.pt")]),
        (export.main, [str(run_dir), "."]),
        (export.main, [str(run_dir), ".."]),
        (export.main, []),
        (export.main, [str(bad), str(tmp_path / "m.pt")]),
        (inspect.main, [str(tmp_path / "none")]),
        (inspect.main, ["--nonesuch"]),
    ]:
        assert run(main, words) == 64
        output = capsys.readouterr().err
        assert output.startswith("trainer: ")
        assert output.count("\n") == 1
    assert not list(tmp_path.glob("m*"))


def test_inspect_shows_what_is_in_one(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Step, identity, position, tensors, generators and files; the same as JSON."""
    assert run(inspect.main, [str(run_dir), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["step"], report["problem"], report["world_size"]) == (3, None, 1)
    assert report["identity"]["lr"] == 0.001
    assert report["position"]["last_loss"] > 0
    assert report["tensors"]["model/1.weight"] == {
        "shape": [128, 784], "dtype": "float32", "bytes": 401408,
    }  # fmt: skip
    assert "optimizer/1.weight/exp_avg" in report["tensors"]
    assert set(report["ranks"]["0"]) >= {"loss_sum", "generator/python", "generator/torch"}
    assert (report["latest"], report["best"], report["others"]) == (
        "step-3", "step-3", {"step-2": None},
    )  # fmt: skip
    assert run(inspect.main, [str(run_dir)]) == 0
    output = capsys.readouterr().out
    for text in ("step-2: verified", "model/1.weight", "128x784", "401,408", "generator/numpy"):
        assert text in output


def test_inspect_obeys_no_strangers_terminal_codes(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is in a checkpoint is shown, and moves no cursor."""
    state = run_dir / "checkpoints" / "step-3" / "state.json"
    content = json.loads(state.read_text())
    content["identity"]["model"] = "\x1b[2J"
    state.write_text(json.dumps(content))
    run(inspect.main, [str(run_dir)])
    output = capsys.readouterr().out
    assert "\\x1b[2J" in output
    assert "\x1b" not in output


def test_inspect_names_the_damage(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it is in the tensors, or in what describes them; the code is 64."""
    folder = run_dir / "checkpoints" / "step-3"
    file = next(folder.glob("*.distcp"))
    data = bytearray(file.read_bytes())
    data[1000] ^= 4
    file.write_bytes(data)
    assert run(inspect.main, [str(folder)]) == 64
    assert "DAMAGED: __0_0.distcp has changed since it was written" in capsys.readouterr().out
    (folder / ".metadata").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert run(inspect.main, [str(run_dir), "--json"]) == 64
    report = json.loads(capsys.readouterr().out)
    assert report["problem"].startswith(".metadata has ")
    assert report["tensors"] is None
    newer = folder.with_name("step-2") / "manifest.json"
    newer.write_text(newer.read_text().replace('"version": 1', '"version": 9'))
    assert run(inspect.main, [str(newer.parent)]) == 64
    assert "NOT KNOWN to this version: manifest.json is of version 9" in capsys.readouterr().out


def test_a_closed_standard_output_does_not_change_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with `>&-`: what was written is there."""
    monkeypatch.setattr("sys.stdout", None)
    assert run(lambda _: 0, []) == 0


def test_a_standard_output_on_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """64, and nothing is left for the interpreter to fail at."""

    def main(_: Sequence[str]) -> int:
        print("x")
        return 0

    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert run(main, []) == 64
    assert "standard output must have room; found No space left" in capsys.readouterr().err
