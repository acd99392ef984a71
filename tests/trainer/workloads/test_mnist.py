import gzip
import struct
from collections.abc import Callable
from functools import partial
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from trainer.config import Config
from trainer.errors import UserError
from trainer.workloads.base import Workload
from trainer.workloads.images import ImageFolder
from trainer.workloads.language import Language
from trainer.workloads.mnist import Mnist, read_idx


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and keeps no log."""

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


DIGITS = Path(__file__).parents[3] / "trainer" / "workloads" / "digits"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MNIST as torchvision lays it out, uncompressed, but only the shipped digits of it."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for file in DIGITS.glob("*.gz"):
        (raw / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    return tmp_path


def test_the_digits_that_ship_are_true_and_balanced() -> None:
    """5,000 and 1,000 of 28 x 28, every digit among them, normalised; about 1 MB in all."""
    workload = Mnist(Config())
    workload.check()
    train, test = workload.train_data(), workload.test_data()
    assert train.inputs.shape == (5000, 1, 28, 28)
    assert test.inputs.shape == (1000, 1, 28, 28)
    assert train.targets.bincount(minlength=10).min() > 400
    assert abs(train.inputs.mean().item()) < 0.02
    assert abs(train.inputs.std().item() - 1) < 0.02
    assert sum(file.stat().st_size for file in DIGITS.glob("*.gz")) < 1.1e6
    assert "Creative Commons Attribution-ShareAlike 3.0" in (DIGITS / "LICENSE.md").read_text()


def test_a_folder_of_plain_files_is_the_same_digits(folder: Path) -> None:
    """torchvision's layout is read without torchvision."""
    workload = Mnist(Config(data_dir=folder))
    workload.check()
    workload.prepare()
    assert (workload.train_data().inputs == Mnist(Config()).train_data().inputs).all()


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _wrong_magic(file: Path) -> None:
    file.write_bytes(b"\x00\x00\x0d\x03" + file.read_bytes()[4:])


def _no_header(file: Path) -> None:
    file.write_bytes(b"\x00\x00")


def _torn_gzip(file: Path) -> None:
    file.with_suffix(".gz").write_bytes(gzip.compress(file.read_bytes(), 1)[:-100])
    file.unlink()


def _no_gzip(file: Path) -> None:
    file.with_suffix(".gz").write_bytes(b"<html>not found</html>")
    file.unlink()


@pytest.mark.parametrize("damage", [_truncate, _wrong_magic, _no_header, _torn_gzip, _no_gzip])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_damaged_file_is_an_error_that_names_it(
    folder: Path, damage: Callable[[Path], None], name: str
) -> None:
    """Truncated, foreign or torn: found before anything is trained."""
    damage(folder / "MNIST" / "raw" / name)
    with pytest.raises(UserError, match=f"damaged IDX file .*{name}"):
        Mnist(Config(data_dir=folder)).check()


@pytest.mark.parametrize(
    "labels", [b"\x0a" * 1000, b"\x01" * 999], ids=["label 10", "one label too few"]
)
def test_labels_that_do_not_fit_are_damage_too(folder: Path, labels: bytes) -> None:
    """A label that is no digit would end in a far-away index error."""
    file = folder / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    file.write_bytes(struct.pack(">II", 2049, len(labels)) + labels)
    with pytest.raises(UserError, match=r"as many 28 x 28 images as labels from 0 to 9"):
        Mnist(Config(data_dir=folder)).check()


def test_a_missing_folder_and_an_unknown_model_are_errors(tmp_path: Path) -> None:
    """Nothing is created for them."""
    with pytest.raises(UserError, match=r"--data-dir .* must be a directory that exists"):
        Mnist(Config(data_dir=tmp_path / "absent")).check()
    with pytest.raises(UserError, match="--model must be one of cnn, mlp"):
        Mnist(Config(model="resnet18")).check()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("workload", "config"),
    [
        (Mnist, Config(data_dir=Path("/absent"))),
        (ImageFolder, Config(workload="imagefolder", data_dir=Path("/absent"))),
        (Language, Config(workload="lm", data_dir=Path("/absent"))),
    ],
)
def test_in_the_image_a_missing_path_may_be_the_hosts(
    workload: type[Workload], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to do about it is another thing there."""
    monkeypatch.delenv("DDP_HOME", raising=False)
    with pytest.raises(UserError, match=r"/absent.* must .*; found .*; [^(]*$"):
        workload(config).check()
    monkeypatch.setenv("DDP_HOME", "/opt/ddp")
    with pytest.raises(UserError, match=r"or mount it, as this is a container .*DDP_MOUNTS"):
        workload(config).check()


def test_a_failed_download_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what would do instead."""
    from torchvision.datasets import MNIST  # noqa: PLC0415 -- slow

    # A port without a listener: a real failure, whatever network there is.
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(UserError, match=r"leave --data-dir out") as caught:
        Mnist(Config(data_dir=tmp_path)).prepare()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_download_lands_in_torchvisions_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Served here over HTTP; the checksums are those of what is served."""
    from torchvision.datasets import MNIST  # noqa: PLC0415 -- slow

    resources = [
        (file.name, md5(file.read_bytes()).hexdigest())  # noqa: S324 -- torchvision's choice
        for file in sorted(DIGITS.glob("*.gz"))
    ]
    monkeypatch.setattr(MNIST, "resources", resources)
    target = tmp_path / "target"
    target.mkdir()
    workload = Mnist(Config(data_dir=target))
    handler = partial(QuietHandler, directory=str(DIGITS))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setattr(MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        Thread(target=server.serve_forever, daemon=True).start()
        workload.prepare()
        server.shutdown()
    workload.check()
    assert len(workload.train_data()) == 5000
    assert [entry.name for entry in target.iterdir()] == ["MNIST"]


def test_read_idx_gives_shape_and_bytes(tmp_path: Path) -> None:
    """The header is big-endian; the data stays as it is."""
    file = tmp_path / "x"
    file.write_bytes(struct.pack(">III", 0x0802, 2, 3) + bytes(range(6)))
    array = read_idx(file, 2)
    assert (array.shape, array.data) == ((2, 3), bytes(range(6)))
