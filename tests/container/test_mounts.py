"""slurm_mounts.sh: what a Pyxis job finds of the host's Slurm, on a stub installation."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.container.slurm_host import Host

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MOUNTS = ROOT / "container/slurm_mounts.sh"
ENVIRONMENT = ROOT / "container/pyxis_env.sh"
LIBRARY = f"/usr/lib/{os.uname().machine}-linux-gnu/libexpat.so.1"  # which Debian's Python needs
Run = Callable[..., subprocess.CompletedProcess[str]]


def _mounts(ended: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Target to source of the printed mounts."""
    assert ended.returncode == 0, ended.stderr
    return {e.split(":")[1]: e.split(":")[0] for e in ended.stdout.strip().split(",")}


def test_a_whole_slurm_is_mounted_where_a_container_looks(run: Run, host: Host) -> None:
    """Programs on every image's PATH; plugins, configuration, socket and names at their places."""
    mounts = _mounts(run(MOUNTS, env=host.env))
    assert mounts["/usr/bin/srun"] == str(host.directory / "bin/srun")
    assert mounts["/usr/bin/scontrol"] == str(host.directory / "bin/scontrol")
    for place in (host.plugins, host.conf.parent, host.socket.parent):
        assert mounts[str(place)] == str(place)
    assert mounts["/etc/hosts"] == "/etc/hosts"
    assert "/etc/passwd" not in mounts  # SlurmUser is root: it has a number in every image


def test_the_images_own_c_library_is_left_alone(run: Run, host: Host) -> None:
    """A host's libc over the image's would break every program of the image."""
    shutil.copy("/usr/bin/python3", host.directory / "bin/sbatch")
    targets = [Path(target).name for target in _mounts(run(MOUNTS, env=host.env))]
    assert not [name for name in targets if name.startswith(("libc.", "libm.", "libz.", "ld-"))]


def test_a_plugins_libraries_come_along(run: Run, host: Host) -> None:
    """Every client of Slurm 26.05 loads a parser, whose library no image has."""
    assert LIBRARY not in _mounts(run(MOUNTS, env=host.env))
    shutil.copy("/usr/bin/python3", host.plugins / "http_parser_libhttp_parser.so")
    assert LIBRARY in _mounts(run(MOUNTS, env=host.env))


def test_the_library_that_slurms_pmix_opens_comes_along(run: Run, host: Host) -> None:
    """By the name in the directory that is compiled into the plugin, and with its own libraries."""
    directory = host.directory / "pmix2/lib"
    directory.mkdir(parents=True)
    shutil.copy("/usr/bin/python3", directory / "libpmix.so.2.6.2")
    (directory / "libpmix.so").symlink_to("libpmix.so.2.6.2")
    plugin = host.plugins / "mpi_pmix_v4.so"
    plugin.write_bytes(b"\x7f\0/no/such\0" + bytes(directory) + b"\0libpmix.so\0")
    mounts = _mounts(run(MOUNTS, env=host.env))
    assert mounts[str(directory / "libpmix.so")] == str(directory / "libpmix.so.2.6.2")
    assert str(directory / "libpmix.so.2") not in mounts
    assert LIBRARY in mounts


def test_a_slurm_user_takes_the_names_along(run: Run, host: Host) -> None:
    """Slurm's client ends if SlurmUser has no number in the container."""
    host.configure("SlurmUser=daemon")
    assert "/etc/passwd" in _mounts(run(MOUNTS, env=host.env))


def test_what_plugstack_names_is_mounted_too(run: Run, host: Host) -> None:
    """Also from included files; an optional plugin that is not there is no error."""
    plugin, other = host.directory / "elsewhere/pyxis.so", host.directory / "other/other.so"
    for path in (plugin, other):
        path.parent.mkdir()
        path.touch()
    parts = host.conf.parent / "plugstack.conf.d"
    parts.mkdir()
    (parts / "a.conf").write_text(f"optional {other} some=argument\n# required /commented.so\n")
    (host.conf.parent / "plugstack.conf").write_text(
        f"required {plugin}\noptional /no/such.so\ninclude plugstack.conf.d/*.conf\n"
    )
    mounts = _mounts(run(MOUNTS, env=host.env))
    assert {str(plugin), str(other)} <= set(mounts)
    assert "/no/such.so" not in mounts
    assert "/commented.so" not in mounts


def test_what_slurms_configuration_includes_counts_too(run: Run, host: Host) -> None:
    """Sites keep what their clusters share in a file of its own, elsewhere."""
    shared, plugstack = host.directory / "shared/all.conf", host.directory / "shared/stack.conf"
    plugin = host.directory / "pyxis.so"
    shared.parent.mkdir()
    shared.write_text(f"SlurmUser=daemon\nPlugStackConfig={plugstack}\n")
    plugstack.write_text(f"required {plugin} container_scope=job\n")
    plugin.touch()
    host.configure(f"Include {shared}")
    mounts = _mounts(run(MOUNTS, env=host.env))
    assert {str(shared), str(plugstack), str(plugin), "/etc/passwd"} <= set(mounts)
    told = run(MOUNTS.parent / "pyxis_env.sh", "--plugin", env=host.env)
    assert told.stdout == f"{plugin} container_scope=job\n"


def _lose_srun(host: Host) -> None:
    (host.directory / "bin/srun").unlink()


def _lose_socket(host: Host) -> None:
    host.socket.unlink()


def _lose_plugins(host: Host) -> None:
    shutil.rmtree(host.plugins)


def _require_a_lost_plugin(host: Host) -> None:
    (host.conf.parent / "plugstack.conf").write_text("required /no/such.so\n")


@pytest.mark.parametrize(
    ("breakage", "text"),
    [
        (lambda host: host.conf.unlink(), "SLURM_CONF must name a readable file"),
        (_lose_socket, "munge must be running"),
        (_lose_plugins, "plugin directory must exist"),
        (_require_a_lost_plugin, "found no /no/such.so"),
    ],
)
def test_what_is_missing_is_one_line(
    run: Run, host: Host, breakage: Callable[[Host], None], text: str
) -> None:
    """Exit 64, nothing on stdout, and pyxis_env.sh then prints nothing and makes nothing, too."""
    breakage(host)
    ended = run(MOUNTS, env=host.env)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (64, "", 1), ended.stderr
    assert text in ended.stderr
    submit = host.directory / "submit"
    submit.mkdir()
    env = run(ENVIRONMENT, env=host.env, cwd=submit)
    assert (env.returncode, env.stdout, env.stderr) == (64, "", ended.stderr)
    assert list(submit.iterdir()) == []


def test_a_host_without_srun_says_so(run: Run, host: Host, tmp_path: Path) -> None:
    """PATH without srun: exit 64 and one line."""
    _lose_srun(host)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "sed", "tail", "realpath", "ldd", "uname", "env", "grep", "id"):
        (tools / name).symlink_to(shutil.which(name) or "")
    ended = run(MOUNTS, env=host.env | {"PATH": f"{host.directory}/bin:{tools}"})
    assert (ended.returncode, ended.stderr.count("\n")) == (64, 1)
    assert "found no srun on PATH" in ended.stderr
