import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.config import Config
from trainer.errors import UserError
from trainer.loop.compiler import check_compiler

COMPILED = Config(compile=True)


@pytest.fixture
def having(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return an environment whose PATH has just these programs; Python's headers are there."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))

    def make(*programs: str, **further: str) -> dict[str, str]:
        for name in programs:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        return {"PATH": str(tmp_path), **further}

    return make


@pytest.mark.parametrize(
    ("device", "programs", "further"),
    [
        ("cuda", ["gcc"], {}),
        ("cuda", ["clang"], {}),
        ("cuda", ["mycc"], {"CC": "mycc"}),
        ("cpu", ["g++"], {}),
        ("cpu", ["clang++"], {"CXX": "clang++"}),
        ("cpu", ["ccache"], {"CXX": "ccache g++ -m64"}),
        ("cpu", [], {"TORCH_INDUCTOR_INSTALL_GXX": "1"}),
    ],
)
def test_a_compiler_is_found_where_torch_and_triton_look(
    having: Any, device: str, programs: list[str], further: dict[str, str]
) -> None:
    """A C compiler for a GPU, a C++ compiler for a CPU, or the user's own."""
    check_compiler(COMPILED, device, having(*programs, **further))


@pytest.mark.parametrize(
    ("device", "programs", "further", "message"),
    [
        ("cuda", ["cc", "g++"], {}, "a C compiler (CC, gcc or clang); found none; install gcc"),
        ("cuda", ["gcc"], {"CC": "icc"}, "found CC=icc, which is no program here; correct CC"),
        ("cpu", ["gcc", "clang++"], {}, "a C++ compiler (CXX or g++); found none; install g++"),
        ("cpu", ["g++"], {"CXX": "/none/g++"}, "found CXX=/none/g++, which is no program here"),
        ("cpu", ["g++"], {"CXX": "'g++"}, "found CXX='g++, which is no program here"),
    ],
)
def test_a_missing_one_is_reported_before_anything_begins(
    having: Any, device: str, programs: list[str], further: dict[str, str], message: str
) -> None:
    """What, the rule, what was found and what to do; only where something is to be compiled."""
    env = having(*programs, **further)
    with pytest.raises(UserError) as caught:
        check_compiler(COMPILED, device, env)
    assert str(caught.value).startswith("--compile must have ")
    assert message in str(caught.value)
    check_compiler(Config(), device, env)


@pytest.mark.parametrize(("device", "program"), [("cpu", "g++"), ("cuda", "gcc")])
def test_missing_headers_are_reported_before_anything_begins(
    having: Any, tmp_path: Path, device: str, program: str
) -> None:
    """Torch would say so in the middle of a page of its own, at the first step."""
    (tmp_path / "Python.h").unlink()
    with pytest.raises(UserError, match=r"found no Python.h in .*; install python3-dev"):
        check_compiler(COMPILED, device, having(program))
    check_compiler(COMPILED, device, having(program, CPATH="/opt/include"))


@pytest.mark.usefixtures("train")  # it puts the signal handlers back
def test_a_run_without_a_compiler_is_refused(
    clean_env: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 64 and one line, and nothing is written."""
    from trainer.__main__ import main  # noqa: PLC0415 -- as the fixture has it

    options = ["--model", "mlp", "--max-steps", "1", "--compile", "--out", str(tmp_path / "run")]
    assert main(options, {**clean_env, "PATH": str(tmp_path)}) == 64
    output = capsys.readouterr().err
    assert output.startswith("trainer: --compile must have a C")
    assert output.count("\n") == 1
    assert not (tmp_path / "run").exists()
