"""to_squashfs.sh: the file against the image, its root file system run, and wrong input."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.conftest import Cluster

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "container/to_squashfs.sh"
Run = Callable[..., subprocess.CompletedProcess[str]]
by_mksquashfs = pytest.mark.skipif(
    shutil.which("enroot") is not None, reason="Enroot, which makes the file where it is"
)
with_engine = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1200)]

# Enough of a container runtime for Enroot's contract: the image's environment, then /etc/rc in a
# login shell, whose /etc/profile may set PATH anew.
START_LIKE_ENROOT = """
set -a; . /etc/environment; set +a
exec /bin/sh -l /etc/rc "$@"
"""


@pytest.fixture(scope="module")
def rootfs(squashfs: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """The file's root file system, mounted."""
    mount = tmp_path_factory.mktemp("rootfs")
    mounted = run("mount", "-o", "loop,ro,nosuid,nodev", squashfs, mount)
    if mounted.returncode:
        pytest.skip(f"squashfs cannot be mounted here: {mounted.stderr.strip()}")
    yield mount
    assert run("umount", mount).returncode == 0


def _in_sandbox(rootfs: Path, out: Path) -> list[str | Path]:
    """Bubblewrap in Enroot's place: a read-only root, and its own processes."""
    return [
        *(
            "bwrap",
            "--unshare-user",
            "--uid",
            "1234",
            "--gid",
            "1234",
            "--unshare-pid",
            "--die-with-parent",
        ),
        *("--clearenv", "--ro-bind", rootfs, "/", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", "--bind", out, "/out", "/bin/sh", "-c", START_LIKE_ENROOT, "sh"),
    ]


class TestTheFile:
    """What the file holds."""

    pytestmark = with_engine

    def test_it_holds_what_the_image_holds(
        self, image: str, rootfs: Path, run: Run, tmp_path: Path
    ) -> None:
        """Every path with its type and mode, and the project's files with their content."""
        listing = 'cd / && find . -xdev -not -path "./proc/*" -printf "%y %m %P\\n"'
        inside = run("docker", "run", "--rm", "--network", "none", image, "sh", "-c", listing)
        ours = run("find", rootfs, "-printf", "%y %m %P\n")
        expected, found = (_entries(text.stdout) for text in (inside, ours))
        made_by_us = {"etc/rc", "etc/rc.local", "etc/fstab", "etc/environment"}
        made_by_engine = {".dockerenv", "etc/resolv.conf", "etc/hosts", "etc/hostname", "etc/mtab"}
        skipped = made_by_us | made_by_engine | {"", "dev", "proc", "sys", "out"}
        expected = {p: e for p, e in expected.items() if p not in skipped and p[:4] != "dev/"}
        found = {p: e for p, e in found.items() if p not in skipped}
        expected = {p: e for p, e in expected.items() if p[:4] != "sys/"}
        assert len(expected) > 10_000
        assert {p for p in expected if expected[p] != found.get(p)} == set()
        assert set(found) - set(expected) == set()
        (tmp_path / "project").mkdir()
        for folder in ("rundir", "trainer", "monitor", "jobs", "container"):
            for path in (ROOT / folder).rglob("*"):
                if path.suffix in (".py", ".sh"):
                    packed = rootfs / "opt/ddp" / path.relative_to(ROOT)
                    assert packed.read_bytes() == path.read_bytes()

    def test_it_says_how_enroot_starts_it(self, image: str, rootfs: Path, run: Run) -> None:
        """/etc/environment is the image's, /etc/fstab its volume, /etc/rc a script for sh."""
        shown = run("docker", "image", "inspect", "--format", "{{json .Config.Env}}", image)
        lines = (rootfs / "etc/environment").read_text().splitlines()
        assert lines == json.loads(shown.stdout)
        volume = "${ENROOT_ROOTFS}/out /out none x-create=dir,bind,rw,nosuid,nodev\n"
        assert (rootfs / "etc/fstab").read_text() == volume
        assert run("sh", "-n", rootfs / "etc/rc").returncode == 0
        # Pyxis starts what it wants through this file.
        assert ". /etc/rc.local" in (rootfs / "etc/rc").read_text()

    def test_everything_belongs_to_root_and_can_be_read(self, rootfs: Path, run: Run) -> None:
        """Owners are root's, and an umask of 077 at the making changed no mode."""
        assert run("find", rootfs, "-not", "-uid", "0").stdout == ""
        assert (rootfs.stat().st_mode & 0o777) == 0o755
        assert run("find", rootfs / "opt", "-not", "-perm", "-a=r").stdout == ""

    def test_its_checksum_lies_beside_it(self, squashfs: Path, run: Run) -> None:
        """`sha256sum --check` finds the file by the name in the sum."""
        checked = run("sha256sum", "--check", f"{squashfs.name}.sha256", cwd=squashfs.parent)
        assert checked.returncode == 0, checked.stderr
        beside = {path.name for path in squashfs.parent.iterdir()}
        assert beside == {squashfs.name, f"{squashfs.name}.sha256"}

    def test_its_root_file_system_trains(self, rootfs: Path, run: Run, tmp_path: Path) -> None:
        """Started as Enroot starts it, by a stranger on a read-only root, two ranks train."""
        if not shutil.which("bwrap"):
            pytest.skip("running the root file system needs bubblewrap: run tests/provision.sh")
        tmp_path.chmod(0o777)
        ended = run(*_in_sandbox(rootfs, tmp_path), "--max-steps", "10", timeout=600)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        (record,) = tmp_path.glob("*/run.json")
        summary = json.loads(record.read_text())["summary"]
        assert (summary["outcome"], summary["world_size"]) == ("finished", 2)

    def test_its_entry_point_hands_on_words_and_codes(
        self, rootfs: Path, run: Run, tmp_path: Path
    ) -> None:
        """A word with spaces and quotes stays one, and the code is the command's."""
        if not shutil.which("bwrap"):
            pytest.skip("running the root file system needs bubblewrap: run tests/provision.sh")
        word = "a 'b' \"c\" $(touch /out/x)"
        ended = run(
            *_in_sandbox(rootfs, tmp_path),
            *("sh", "-c", 'echo "$1"; pwd; command -v python; exit 7', "sh", word),
        )
        assert ended.returncode == 7, ended.stderr
        assert ended.stdout.splitlines() == [word, "/opt/ddp", "/opt/venv/bin/python"]
        assert list(tmp_path.iterdir()) == []


def _entries(listing: str) -> dict[str, tuple[str, str]]:
    rows = (line.split(" ", 2) for line in listing.splitlines())
    return {path: (kind, mode) for kind, mode, path in rows}


@pytest.fixture
def tiny_image(docker: None, run: Run, tmp_path: Path) -> Generator[str]:  # noqa: ARG001
    """An image of two files whose configuration is as odd as the engine allows."""
    tag = "ddp-test-tiny"
    context = tmp_path / "context"
    context.mkdir()
    (context / "hello").write_text("hello\n")
    (context / "etc").mkdir()
    (context / "etc/environment").symlink_to(tmp_path / "the host's own")
    (context / "etc/rc").write_text("the image's own\n")
    (context / "Dockerfile").write_text(
        "FROM scratch\nCOPY hello /bin/hello\nCOPY etc /etc\n"
        "ENV GREETING='it is \"so\"' PRICE=\\$5\n"
        'LABEL note="one line"\nWORKDIR /a/b\n'
        """ENTRYPOINT ["/bin/it's", "$(touch x)"]\nCMD ["a b", ""]\n"""
    )
    built = run("docker", "build", "--tag", tag, context)
    assert built.returncode == 0, built.stderr
    yield tag
    run("docker", "image", "rm", "--force", tag)


class TestTheFormat:
    """What is written for Enroot, on a tiny image."""

    pytestmark = pytest.mark.docker

    @by_mksquashfs
    def test_odd_configuration_stays_what_it_was(
        self, tiny_image: str, run: Run, tmp_path: Path
    ) -> None:
        """Entry point, command, working directory and environment survive quotes and dollars."""
        file = tmp_path / "tiny.sqsh"
        made = run(SCRIPT, tiny_image, file)
        assert made.returncode == 0, made.stderr
        script = run("unsquashfs", "-cat", file, "etc/rc").stdout
        assert r"exec '/bin/it'\''s' '$(touch x)' 'a b' ''" in script
        assert "# note one line\n" in script
        environment = run("unsquashfs", "-cat", file, "etc/environment").stdout
        assert 'GREETING=it is "so"\nPRICE=$5\n' in environment
        assert not (tmp_path / "the host's own").exists()  # a link of the image's leads nowhere
        assert "squashfs-root/a/b" in run("unsquashfs", "-ls", file).stdout.splitlines()

    @by_mksquashfs
    def test_the_same_image_gives_the_same_file(
        self, tiny_image: str, run: Run, tmp_path: Path
    ) -> None:
        """A checksum identifies an image: nothing of the time or place of the making is in it."""
        sums = set()
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            made = run(SCRIPT, tiny_image, tmp_path / name / "image.sqsh")
            assert made.returncode == 0, made.stderr
            sums.add(hashlib.sha256((tmp_path / name / "image.sqsh").read_bytes()).hexdigest())
        assert len(sums) == 1

    @by_mksquashfs
    def test_an_image_that_is_dated_back(self, tiny_image: str, run: Run, tmp_path: Path) -> None:
        """Reproducible builds do that, to the year 1. Its files keep their times.

        Else Python would compile their modules anew, in every process.
        """
        saved, file = tmp_path / "saved", tmp_path / "tiny.sqsh"
        saved.mkdir()
        run("sh", "-c", f"docker save {tiny_image} | tar -x -C '{saved}'")
        manifest = json.loads((saved / "manifest.json").read_text())
        config = json.loads((saved / manifest[0]["Config"]).read_text())
        config |= {"created": "0001-01-01T00:00:00Z"}
        (saved / manifest[0]["Config"]).unlink()
        manifest[0] |= {"Config": "config.json"}
        (saved / "config.json").write_text(json.dumps(config))
        (saved / "manifest.json").write_text(json.dumps(manifest))
        loaded = run("sh", "-c", f"tar -c -C '{saved}' . | docker load")
        assert loaded.returncode == 0, loaded.stderr
        made = run(SCRIPT, tiny_image, file)
        assert made.returncode == 0, made.stderr
        unpacked = tmp_path / "unpacked"
        run("unsquashfs", "-d", unpacked, file)
        built = int((tmp_path / "context/hello").stat().st_mtime)
        assert (unpacked / "bin/hello").stat().st_mtime == built

    @by_mksquashfs
    def test_an_old_mksquashfs(self, tiny_image: str, run: Run, tmp_path: Path) -> None:
        """Version 4.3 knows no -quiet; which compressions it lacks, it reports itself."""
        programs = tmp_path / "programs"
        programs.mkdir()
        (programs / "mksquashfs").write_text(
            '#!/bin/sh\nfor word; do [ "$word" != -quiet ] || exit 1; done\n'
            f'exec {shutil.which("mksquashfs")} "$@"\n'
        )
        (programs / "mksquashfs").chmod(0o755)
        environ = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        made = run(SCRIPT, tiny_image, tmp_path / "x.sqsh", env=environ)
        assert made.returncode == 0, made.stderr
        assert len(made.stderr.splitlines()) == 3
        assert made.stdout == ""

    @by_mksquashfs
    def test_an_interrupt_while_the_engine_makes_the_container(
        self, tiny_image: str, tmp_path: Path
    ) -> None:
        """Ctrl-C reaches the engine's client, too, which forgets the container it has asked for."""
        programs, began = tmp_path / "programs", tmp_path / "began"
        programs.mkdir()
        (programs / "docker").write_text(
            f"""#!/bin/sh
            if [ "$1" != create ]; then exec {shutil.which("docker")} "$@"; fi
            id=$({shutil.which("docker")} "$@")
            echo "$id" >'{began}.part'
            mv '{began}.part' '{began}'
            sleep 1
            echo "$id"
            """
        )
        (programs / "docker").chmod(0o755)
        script = subprocess.Popen(
            [SCRIPT, tiny_image, tmp_path / "x.sqsh"],
            env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
            start_new_session=True,
        )
        Cluster.until(began.exists, 60, "the engine has made a container")
        os.killpg(script.pid, signal.SIGINT)
        assert script.wait(60) == 130
        left = subprocess.run(
            ["docker", "rm", "--force", began.read_text().strip()],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "No such container" in left.stderr
        assert not list(tmp_path.glob("*.sqsh*"))

    def test_an_existing_file_is_replaced_by_force_alone(
        self, tiny_image: str, run: Run, tmp_path: Path
    ) -> None:
        """Without --force it stays as it was; with it, file and checksum are new."""
        file = tmp_path / "tiny.sqsh"
        file.write_text("precious")
        refused = run(SCRIPT, tiny_image, file)
        assert (refused.returncode, file.read_text()) == (64, "precious")
        assert "add --force" in refused.stderr
        assert run(SCRIPT, "--force", tiny_image, file).returncode == 0
        assert file.read_bytes()[:4] == b"hsqs"

    def test_a_failed_making_leaves_nothing_behind(
        self, tiny_image: str, run: Run, tmp_path: Path
    ) -> None:
        """mksquashfs fails: exit 64, no file, no scratch, no container."""
        (tmp_path / "scratch").mkdir()
        (tmp_path / "target").mkdir()
        settings = {"TMPDIR": str(tmp_path / "scratch"), "ENROOT_SQUASH_OPTIONS": "-comp nonsense"}
        ended = run(SCRIPT, tiny_image, tmp_path / "target/x.sqsh", env=os.environ | settings)
        assert ended.returncode == 64
        assert list((tmp_path / "scratch").iterdir()) == []
        assert list((tmp_path / "target").iterdir()) == []
        left = run("docker", "ps", "--all", "--quiet", "--filter", f"ancestor={tiny_image}")
        assert left.stdout == ""

    @pytest.fixture
    def with_enroot(self, tmp_path: Path) -> dict[str, str]:
        """An environment with a program of that name, which logs its words."""
        programs = tmp_path / "programs"
        programs.mkdir()
        (programs / "enroot").write_text(
            '#!/bin/sh\nprintf "%s\\n" "$@" "$ENROOT_SQUASH_OPTIONS" "$(umask)" >"$ENROOT_LOG"\n'
            '[ ! -e "$3" ] && echo imported >"$3" && exit "${ENROOT_CODE:-0}"\n'
        )
        (programs / "enroot").chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        return os.environ | {"PATH": path, "ENROOT_LOG": str(tmp_path / "log")}

    def test_where_enroot_is_it_does_the_work(
        self, tiny_image: str, run: Run, tmp_path: Path, with_enroot: dict[str, str]
    ) -> None:
        """Enroot imports from the engine into a new file, which then gets its name.

        The user's umask is for the file, not for what is in it.
        """
        file = tmp_path / "with space.sqsh"
        ended = run(SCRIPT, tiny_image, file, env=with_enroot, preexec_fn=lambda: os.umask(0o077))
        assert ended.returncode == 0, ended.stderr
        assert file.read_text() == "imported\n"
        assert file.stat().st_mode & 0o777 == 0o600
        words = (tmp_path / "log").read_text().splitlines()
        assert words[:2] == ["import", "-o"]
        assert Path(words[2]).parent.parent == tmp_path  # beside it: the rename is atomic
        assert words[3] == f"dockerd://{tiny_image}"
        assert words[4].startswith("-comp zstd")
        assert words[5] == "0022"

    def test_where_enroot_fails_nothing_is_left(
        self, tiny_image: str, run: Run, tmp_path: Path, with_enroot: dict[str, str]
    ) -> None:
        """Exit 64, and no file, whatever it wrote before."""
        file = tmp_path / "x.sqsh"
        ended = run(SCRIPT, tiny_image, file, env=with_enroot | {"ENROOT_CODE": "1"})
        assert ended.returncode == 64
        assert "enroot import must succeed" in ended.stderr.splitlines()[-1]
        assert {path.name for path in tmp_path.iterdir()} == {"context", "programs", "log"}

    def test_an_image_that_is_not_there_is_one_line(
        self,
        docker: None,  # noqa: ARG002
        run: Run,
        tmp_path: Path,
    ) -> None:
        """Exit 64, and the line says how the image is made."""
        ended = run(SCRIPT, "no-such-image", tmp_path / "x.sqsh")
        assert ended.returncode == 64
        assert ended.stderr.count("\n") == 1
        assert "docker build -t no-such-image" in ended.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "there must be an IMAGE and a FILE"),
        (["ddp"], "there must be an IMAGE and a FILE"),
        (["ddp", "x.sqsh", "--fast"], "the option must be --force; found '--fast'"),
        (["ddp", "no/such/x.sqsh"], "directory must exist; found no no/such"),
        (["ddp", "."], "must not be a directory"),
        (["ddp", "x.sqsh"], "docker"),
    ],
)
def test_wrong_input_is_one_line(run: Run, tmp_path: Path, words: list[str], text: str) -> None:
    """Exit 64, one line, nothing written; here without any engine."""
    settings = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    ended = run(SCRIPT, *words, cwd=tmp_path, env=os.environ | settings)
    assert ended.returncode == 64
    assert ended.stderr.count("\n") == 1
    assert text in ended.stderr
    assert list(tmp_path.iterdir()) == []
