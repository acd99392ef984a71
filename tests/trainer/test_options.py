import io
import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from trainer import options
from trainer.config import Config, option_name
from trainer.errors import UserError
from trainer.options import parse


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """A file with a value of each kind."""
    path = tmp_path / "my options.toml"
    path.write_text('global-batch-size = 32\nlr = 0.5\nmodel = "mlp"\ncompile = true\n')
    return path


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(toml: Path) -> None:
    """Precedence, for each kind of value, and for a switch turned off again."""
    config = parse(["--lr", "0.25", "--config", str(toml), "--no-compile"])
    assert (config.lr, config.global_batch_size, config.model) == (0.25, 32, "mlp")
    assert (config.compile, config.epochs) == (False, None)
    assert parse([f"--config={toml}"]).compile is True


def test_a_value_is_no_option(tmp_path: Path) -> None:
    """Its end may look like the name of one."""
    config = parse(["--out", "myconfig", "--epochs", "1"])
    assert (config.out, config.config, config.epochs) == (Path("myconfig"), None, 1)
    assert parse(["--model", "xxout", "--data-dir", "..out", "--out=o"]).out == Path("o")
    (tmp_path / "a").write_text("lr = 0.5\n")
    assert parse(["--out", "xxconfig", "--config", str(tmp_path / "a")]).lr == 0.5


def test_what_belongs_to_no_option_is_named_in_any_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of few columns, and one that has only ASCII."""
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    with pytest.raises(UserError, match=r"found '-x', which belongs to none; see "):
        parse(["-x"])


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands it in `--out=~/run` or in a file; an unknown user's stays."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.toml").write_text('model = "~/llama"\ndata-dir = "~nosuchuser/x"\n')
    config = parse(["--out=~/run", "--resume=~/run/x", "--config=~/a.toml"])
    assert (config.out, config.resume) == (tmp_path / "run", f"{tmp_path}/run/x")
    assert (config.model, config.data_dir) == (f"{tmp_path}/llama", Path("~nosuchuser/x"))


def test_no_options_are_the_defaults() -> None:
    """As the shortest command has it."""
    assert parse([]) == Config()


def test_underscores_do_for_dashes(toml: Path) -> None:
    """--global_batch_size is --global-batch-size."""
    assert parse(["--config", str(toml), "--global_batch_size", "16"]).global_batch_size == 16


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--epchs", "3"],
            r"--epchs must be an option; found none of this name; did you mean --epochs\b",
        ),
        (["--epochs", "x"], r"--epochs"),
        (["--epochs", "0"], r"--epochs must be at least 1; found 0"),
        (["--epochs"], r"--epochs"),
        (["--sequence-length", "1000000000000"], r"--sequence-length must be at most 16777216"),
        (["--schedule", "step"], r"'constant', 'cosine'"),
        (
            ["stray"],
            r"command line must hold only options, .*; found 'stray', which belongs to none",
        ),
        (["--compile", "true"], r"found 'true', which belongs to none"),
        (["--", "--lr", "1"], r"found '--lr', which belongs to none; see "),
        (["--lr", "1", "--no-lr"], r"--no-lr must be an option; found none"),
        (["--ep", "3"], r"did you mean --epochs, --eps\?$"),
        (["--checkpoint", "3"], r"did you mean --checkpoint-every, --checkpoint-minutes"),
        (["--lr", "1", "--lr=fast"], r"--lr must be a number; found 'fast'; change it"),
        (["--epochs", "1.5"], r"--epochs must be a whole number; found '1.5'; change it"),
        (["--lr"], r"--lr must have a value after it; found none; give one"),
        (["--data-dir", ""], r"--data-dir must be a path; found an empty one; name one"),
        (["--out="], r"--out must be a path; found an empty one"),
        (["--resume="], r"--resume must be a path; found an empty one"),
        (["--config", ""], r"--config must be a path; found an empty one"),
        (["--config", "/dev/zero"], r"a readable TOML file; found more than 1 MiB"),
        (["--data-dri", "x"], r"did you mean --data-dir\b"),
        (["--profile", "1"], r"did you mean --profile-[a-z]+, --profile-[a-z]+"),
        (["--learnig-rate", "1"], r"did you mean --lr"),
        (["--zzz"], r"--zzz must be an option; found none of this name; see "),
        (["--batch-size", "8"], r"did you mean --global-batch-size \(over all ranks\) or "),
        (["--precision", "bf16-true"], r"did you mean bf16 \(which keeps the weights in fp32\)\?$"),
        (
            ["--precision", "BF16"],
            r"--precision must be one of .*; found 'BF16'; did you mean bf16\?$",
        ),
        (["--schedule", "constant_with_warmup"], r"mean constant, with --warmup-steps\?$"),
        (["--schedule", "zigzag"], r"found 'zigzag'; take one of them$"),
        (["--keep-checkpoints", "all"], r"a whole number; found 'all'; did you mean 0\?$"),
        (
            ["--keep-checkpoints", "-1"],
            r"--keep-checkpoints must be at least 0 \(0: all\); found -1",
        ),
        (["--decay-steps", "5"], r"did you mean --decay-fraction .* or --max-steps"),
        (["--val-fraction", "0.1"], r"did you mean --data-dir with .* in val/ of an image folder"),
        (["--checkpoint-dir", "x"], r"did you mean --out\?$"),
        (["--save-every", "5"], r"did you mean --checkpoint-every\?$"),
        (["--name", "x"], r"did you mean --out, or the variable DDP_RUN_NAME\?$"),
        (["--learning_rate=1"], r"--learning_rate must be an option; .*did you mean --lr\?$"),
        (["--lr", "nan"], r"--lr must be a finite number above 0; found nan"),
        (["--clip-grad-norm", "0"], r"--clip-grad-norm must be .* above 0; found 0"),
        (["--dropout", "1"], r"--dropout must be from 0"),
        (["--min-lr", "0.1"], r"--min-lr must be from 0 to --lr, 0.001; found 0.1"),
        (["--beta2", "1"], r"--beta2 must be from 0 up to, not including, 1; found 1"),
        (["--eps", "0"], r"--eps must be a finite number above 0; found 0"),
        (["--decay-fraction", "1.5"], r"--decay-fraction must be from 0 to 1; found 1.5"),
        (["--seed", str(2**63)], r"--seed must be at most"),
        (["--image-size", str(10**30)], r"--image-size must be at most"),
        (["--num-classes", str(10**30)], r"--num-classes must be at most"),
        (["--weight-decay", "nan"], r"--weight-decay must be at least 0; found nan"),
        (["--weight-decay", "inf"], r"--weight-decay must be a finite number; found inf"),
        (["--profile-steps", "5:2"], r"--profile-steps must be FIRST:LAST"),
        (["--profile-steps", "5"], r"--profile-steps must be FIRST:LAST"),
        (
            ["--profile-ranks", "0,1"],
            r"--profile-ranks must be given with --profile-steps; found '0,1'",
        ),
        (
            ["--memory-snapshot"],
            r"--memory-snapshot must be given with --profile-steps; found True",
        ),
        (
            ["--config", "/nonexistent.toml"],
            r"--config /nonexistent.toml must be a readable TOML file",
        ),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(argv: list[str], message: str) -> None:
    """Unknown name, missing or wrong value: what, rule, found and remedy in one line."""
    with pytest.raises(UserError, match=message) as caught:
        parse(argv)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochz = 1", "key 'epochz' in .*did you mean --epochs"),
        ("lr = [1]", r"key 'lr' in .*a number; found \[1\]"),
        ("lr = true", "key 'lr' in .*a number; found True"),
        ("compile = 1", "key 'compile' in .*true or false; found 1"),
        ("epochs = 1.5", "key 'epochs' in .*a whole number; found 1.5"),
        ('epochs = "many"', "key 'epochs' in .*a whole number; found 'many'"),
        ("model = [1]", "key 'model' in .*a string"),
        ('out = ""', "--out must be a path; found an empty one"),
        ("max_steps = 1\nmax-steps = 2", "key 'max-steps' in .*named once; found it with dashes"),
        ("lr = " + "[" * 5000, "a readable TOML file"),
        ("epochs = ", "a readable TOML file"),
        ("[train]\nlr = 1.0", "key 'train' in"),
        ('config = "other.toml"', "key 'config' in .* left out; found a file that names another"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_key(
    tmp_path: Path, text: str, message: str
) -> None:
    """Unknown keys are answered with the nearest; values are checked like options."""
    path = tmp_path / "o.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        parse(["--config", str(path)])


def test_names_of_others_are_answered_with_ours() -> None:
    """None of them is an option of ours, and each answer names one."""
    ours = {option_name(field.name) for field in fields(Config)}
    for theirs, answer in options._ELSEWHERE.items():  # noqa: SLF001 -- the table
        assert option_name(theirs) not in ours
        named = set(re.findall(r"--[a-z0-9-]+", answer))
        assert named, theirs
        assert named <= ours, theirs


def test_values_of_others_are_answered_with_ours() -> None:
    """None of them is a value of ours, and each answer begins with one."""
    hints = get_type_hints(Config)
    for field, table in options._VALUES_ELSEWHERE.items():  # noqa: SLF001 -- the table
        ours = get_args(hints[field]) if get_origin(hints[field]) is Literal else ("0",)
        for theirs, answer in table.items():
            assert theirs not in ours
            assert re.split(r"[ ,]", answer)[0] in ours


def test_the_page_has_every_option_and_its_default() -> None:
    """As --help has it, in that order; `make options` writes it again."""
    page = Path(__file__).resolve().parents[2] / "docs" / "trainer.md"
    text = page.read_text("utf-8")
    table = text.partition("## All options")[2]
    reported = re.findall(r"^\| `(--[a-z0-9-]+)`.*? \| (.*?) \| (.+) \|$", table, re.MULTILINE)
    defaults = [getattr(Config(), name[2:].replace("-", "_")) for name, _, _ in reported]
    written = {None: "", "": "", True: "on", False: "off"}
    assert [name for name, _, _ in reported] == [
        option_name(field.name) for field in fields(Config)
    ]
    for (name, default, _), value in zip(reported, defaults, strict=True):
        is_plain = value is None or value == "" or isinstance(value, bool)
        assert default == (written[value] if is_plain else f"`{value}`"), name
    assert runpy.run_path(str(page.parent / "write_options.py"))["page"](text) == text


def test_a_file_of_another_editor_is_read_all_the_same(tmp_path: Path) -> None:
    """A byte order mark and Windows' line ends are no part of the text."""
    path = tmp_path / "o.toml"
    path.write_bytes(b"\xef\xbb\xbflr = 0.5\r\nepochs = 2\r\n")
    config = parse(["--config", str(path)])
    assert (config.lr, config.epochs) == (0.5, 2)


def test_help_into_a_closed_pipe_is_no_error() -> None:
    """As under `| head`: its reader has seen enough."""
    command = [sys.executable, "-m", "trainer", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """--help ends with 0 and names each field."""
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    output = capsys.readouterr().out
    assert ended.value.code == 0
    assert all("--" + name.replace("_", "-") in output for name in Config.__dataclass_fields__)


def test_profile_steps_are_inclusive() -> None:
    """10:12 traces three steps."""
    assert list(Config(profile_steps="10:12").profile_range() or ()) == [10, 11, 12]
