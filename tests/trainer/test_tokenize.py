"""python -m trainer.tokenize, and the files it writes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from tests import uncovered
from trainer import tokenize
from trainer.command import run
from trainer.config import Config
from trainer.errors import UserError
from trainer.workloads.language import Language
from trainer.workloads.tokens import TokenizerInfo, open_tokens

Train = Callable[..., tuple[int, Any]]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of texts of both kinds."""
    folder = tmp_path / "corpus"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "two.jsonl").write_text(
        '{"text": "zwei"}\n\n{"text": "zw\\u00f6lf", "id": 2}\n'
    )
    (folder / "a.txt").write_text("eins\n")
    (folder / ".hidden").write_bytes(b"\xff")
    return folder


@pytest.fixture
def made(corpus: Path, tmp_path: Path) -> Path:
    """The folder as bytes."""
    (tmp_path / "data").mkdir()
    target = tmp_path / "data" / "train.tokens"
    assert run(tokenize.main, [str(corpus), "--out", str(target)]) == 0
    return target


@pytest.mark.parametrize("limit_bytes", [100, 4_200])
def test_a_disk_that_gets_full_leaves_nothing_behind(tmp_path: Path, limit_bytes: int) -> None:
    """Be it while texts are written or at the end, when the buffer and the header are."""
    (tmp_path / "corpus.txt").write_text("eins zwei drei" * 100)
    limited = (
        "import resource, sys; from trainer import command, tokenize\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), -1))\n"
        "sys.exit(command.run(tokenize.main, sys.argv[2:]))"
    )
    target = tmp_path / "out" / "train.tokens"
    target.parent.mkdir()
    words = [str(limit_bytes), str(tmp_path / "corpus.txt"), "--out", str(target)]
    ended = subprocess.run(
        [sys.executable, "-c", limited, *words],
        env=uncovered.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 64
    assert "a file that can be written; found [Errno 27] File too large" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert list(target.parent.iterdir()) == []


def test_a_byte_of_a_file_is_a_token(tmp_path: Path) -> None:
    """Whatever ends its lines, and with a byte order mark."""
    text = b"\xef\xbb\xbfa\r\nb\rc\n\r\n"
    (tmp_path / "dos.txt").write_bytes(text)
    target = tmp_path / "train.tokens"
    assert run(tokenize.main, [str(tmp_path / "dos.txt"), "--out", str(target)]) == 0
    assert open_tokens(target).row.tobytes() == text + b"\xff"


def test_a_folder_becomes_one_row_of_documents(
    capsys: pytest.CaptureFixture[str], made: Path
) -> None:
    """In the order of names, each ended by a byte that text does not have."""
    file = open_tokens(made)
    assert file.row.tobytes() == b"eins\n\xffzwei\xffzw\xc3\xb6lf\xff"
    assert file.tokenizer == TokenizerInfo(name="bytes", vocab_size=256, eos=255)
    file.verify()
    assert ": 18 tokens of 256, 3 documents, 0.0 MiB" in capsys.readouterr().out
    assert [path.name for path in made.parent.iterdir()] == ["train.tokens"]


def test_any_program_reads_it(made: Path) -> None:
    """It is a safetensors file; documents begin where it says."""
    with safe_open(made, "np") as file:
        starts, tokens = file.get_tensor("document_starts"), file.get_tensor("tokens")
        assert file.metadata()["tokenizer"] == "bytes"
    assert starts.tolist() == [0, 6, 11]
    assert all(tokens[start - 1] == 255 for start in starts[1:])


def test_a_file_of_another_editor_is_read_all_the_same(tmp_path: Path) -> None:
    """A byte order mark is no part of a line."""
    source, target = tmp_path / "x.jsonl", tmp_path / "x.tokens"
    source.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n')
    assert run(tokenize.main, [str(source), "--out", str(target)]) == 0
    assert open_tokens(target).row.tobytes() == b"a\xff"


def test_a_pipe_is_no_token_file(tmp_path: Path) -> None:
    """It is refused, and not waited for."""
    os.mkfifo(tmp_path / "train.tokens")
    with pytest.raises(UserError, match="found it is a pipe or a device"):
        open_tokens(tmp_path / "train.tokens")


def test_an_empty_path_is_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unset variable of the shell's must not read, or fill, whatever is here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("secret")
    assert run(tokenize.main, ["", "--out", "x.tokens"]) == 64
    assert "argument input: an empty path" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def read(workload: Language) -> None:
    """As a run does before it trains."""
    workload.check()
    workload.prepare()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "4,137 bytes of 4,138"),
        (lambda data: data + b"x", "4,139 bytes of 4,138"),
        (lambda _: b"", "no header"),
        (lambda _: b"just a text, and a long one", "no header"),
        (lambda data: data.replace(b"trainer.tokens/1", b"trainer.tokens/9"), "format"),
        (lambda data: data.replace(b'"U8"', b'"F8"'), "KeyError: 'F8'"),
        (lambda data: data[:8] + b"[" + data[9:], "Error"),
        (lambda data: data[:8] + b"[" * len(data), "RecursionError"),
        (lambda data: data.replace(b"eins", b"zwei"), "changed since they were written"),
    ],
)
def test_a_damaged_or_foreign_file_is_one_line(
    made: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    """What is wrong with it, and what to do; no traceback."""
    made.write_bytes(damage(made.read_bytes()))
    workload = Language(Config(workload="lm", data_dir=made.parent))
    with pytest.raises(UserError, match=r"token file .*make it again") as caught:
        read(workload)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.jsonl",
            b'{"text": "a"}\n{"txt": "b"}\n',
            "x.jsonl, line 2 must be an object with a field",
        ),
        ("x.jsonl", b'{"text": 5}\n', "x.jsonl, line 1 must be a string"),
        ("x.jsonl", b"no json\n", "x.jsonl, line 1 must be an object"),
        ("x.jsonl", b"[" * 100_000, "x.jsonl, line 1 must be an object"),
        ("x.jsonl", b'{"text": "a\\ud800"}', "x.jsonl, line 1 must be a text that UTF-8 can hold"),
        ("x.txt", b"caf\xe9", "x.txt must be a text in UTF-8"),
    ],
)
def test_wrong_input_is_64_and_leaves_nothing(
    tmp_path: Path, name: str, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names file and line."""
    (tmp_path / name).write_bytes(content)
    assert run(tokenize.main, [str(tmp_path / name), "--out", str(tmp_path / "o")]) == 64
    assert message in (output := capsys.readouterr().err)
    assert output.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_wrong_arguments_are_64(
    made: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing there, nothing in it, something in the way, no tokenizer."""
    (tmp_path / "empty").mkdir()
    out = str(tmp_path / "o")
    for words in (
        [str(tmp_path / "none"), "--out", out],
        [str(tmp_path / "empty"), "--out", out],
        [str(corpus), "--out", str(made)],
        [str(corpus), "--out", str(tmp_path / "no" / "o")],
        [str(corpus), "--out", out, "--tokenizer", str(corpus / "a.txt")],
        [str(corpus), "--out", out, "--eos", "nonsense"],
        [str(corpus)],
    ):
        assert run(tokenize.main, words) == 64
        assert capsys.readouterr().err.count("\n") == 1
    assert not Path(out).exists()
    assert run(tokenize.main, [str(corpus / "a.txt"), "--out", str(made), "--force"]) == 0
    assert len(open_tokens(made).row) == 6


def test_types_are_the_smallest_that_hold_the_vocabulary() -> None:
    """256 values fit a byte, 65,536 two."""
    sizes = {256: "U8", 257: "U16", 65_536: "U16", 65_537: "U32", 128_256: "U32"}
    for size, name in sizes.items():
        assert TokenizerInfo(name="t", vocab_size=size, eos=0).dtype_name == name


def test_a_model_with_a_smaller_vocabulary_is_refused(made: Path) -> None:
    """Before anything is trained; a larger one is not. Held-out text is what val.tokens has."""
    about = made.read_bytes().replace(b'"vocab_size": "256"', b'"vocab_size": "999"')
    made.with_name("val.tokens").write_bytes(made.read_bytes())
    workload = Language(Config(workload="lm", data_dir=made.parent, sequence_length=5))
    workload.check()
    test = workload.test_data()
    assert test is not None
    assert (len(workload.train_data()), len(test)) == (4, 4)
    assert list(workload.derived(1.0)) == ["test_perplexity", "test_bits_per_byte"]
    made.write_bytes(about)
    with pytest.raises(UserError, match=r"vocabulary of 256; found one of 999"):
        Language(Config(workload="lm", data_dir=made.parent)).check()
    larger = Config(workload="lm", model="stories15m", data_dir=made.parent)
    with pytest.raises(
        UserError,
        match=r"by the tokenizer of train\.tokens; found bytes of vocabulary size 256, not 999",
    ):
        Language(larger).check()
    made.with_name("val.tokens").write_bytes(about)
    Language(larger).check()
    made.unlink()
    with pytest.raises(UserError, match=r"token file .*train\.tokens"):
        Language(Config(workload="lm", data_dir=made.parent)).check()


def test_a_tokenizer_of_hugging_faces(corpus: Path, tmp_path: Path) -> None:
    """Its ids, its vocabulary, its token for the end."""
    tokenizers: Any = pytest.importorskip("tokenizers", reason="the extra of that name")
    words = {"<unk>": 0, "eins": 1, "zwei": 2, "</s>": 3, "zwölf": 300}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))  # noqa: S106 -- no password
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path, target = tmp_path / "tokenizer.json", tmp_path / "o"
    tokenizer.save(str(path))
    words_of = [str(corpus), "--out", str(target), "--tokenizer", str(path)]
    assert run(tokenize.main, [*words_of, "--eos", "<none>"]) == 64
    assert not target.exists()
    assert run(tokenize.main, words_of) == 0
    file = open_tokens(target)
    assert file.row.tolist() == [1, 3, 2, 3, 300, 3]
    assert file.tokenizer == TokenizerInfo(name="tokenizer.json", vocab_size=301, eos=3)
    assert file.row.dtype == np.uint16
    assert json.loads(path.read_text())["model"]["type"] == "WordLevel"
