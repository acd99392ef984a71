"""What can go wrong, and the exit code it ends with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rundir.failure.words import NO_REASON
from rundir.text import problem

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LENGTH: Final = 300
"""Of an error that is shortened, in characters."""


def one_line(error: BaseException) -> str:
    """Return an error's type and message in one line, without torch's advice on CUDA."""
    return " ".join(f"{type(error).__name__}: {NO_REASON.sub('', str(error))}".split())


def short_line(error: BaseException) -> str:
    """Return the beginning of that line: a message of torch's may be pages."""
    return one_line(error)[:MAX_LENGTH]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what it was raised from or in."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class UserError(Exception):
    """A mistake of the user's, in one line: `WHAT must RULE; found X; REMEDY`.

    It is not a ValueError, so that no library on the way takes it for one of its own.

    Args:
        what: the option or file that is wrong.
        rule: what must hold, as it reads after "must": "be at least 1", "divide 64".
        found: what was found instead.
        remedy: what to do.

    """

    def __init__(self, what: str, *, rule: str, found: object, remedy: str) -> None:
        super().__init__(problem(f"{what} must {rule}", found, remedy))


def unusable_path(error: BaseException) -> UserError | None:
    """Translate the system's error of a path that cannot even be looked at; else None."""
    if not isinstance(error, OSError) or error.filename is None:
        return None
    return UserError(
        str(error.filename),
        rule="be a path that can be used",
        found=error.strerror,
        remedy="look at its permissions, or name another",
    )


_MISFIT: Final = re.compile(
    r"NVIDIA driver on your system is too old \(found version (?P<cuda>\d+)\)"
    r"|CUDA driver version is insufficient for CUDA runtime version"
    r"|unsupported display driver / cuda driver combination"
    r"|forward compatibility was attempted on non supported HW"
    r"|PTX was compiled with an unsupported toolchain"
    r"|no kernel image is available for execution on the device"
)


def misfit(error: BaseException) -> UserError | None:
    """Translate CUDA's error of a driver or a GPU that this torch is not built for; else None."""
    for cause in causes(error):
        found = _MISFIT.search(str(cause))
        if found:
            cuda = int(found["cuda"] or 0)  # 12080 is 12.8
            return UserError(
                "CUDA of this torch",
                rule="fit the driver and the GPUs of this node",
                found=f"a driver for CUDA {cuda // 1000}.{cuda % 1000 // 10}, which is too old"
                if cuda
                else f"that {found.group()}",
                remedy="update the driver, or take a torch that is built for it (docs/image.md)",
            )
    return None


def missing_package(error: ModuleNotFoundError, python: str) -> UserError:
    """Name the package that `python`, the interpreter in use, lacks."""
    return UserError(
        "Python",
        rule="be one with the packages that pyproject.toml names",
        found=f"no {error.name} in {python}",
        remedy="run `make demo` once, which installs them into .venv, or install it there, "
        "or name another Python (DDP_PYTHON)",
    )


class RunFailedError(Exception):
    """The run cannot go on; one line reports it, on every rank."""

    @classmethod
    def of(cls, what: str, *, rule: str, found: object, remedy: str) -> RunFailedError:
        """Return one in the form of four parts."""
        return cls(problem(f"{what} must {rule}", found, remedy))
