"""A stub of a Slurm installation, as container/ finds one on a host."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path


class Host:
    """A host's Slurm: programs, plugins, configuration and munge socket in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.conf = directory / "etc/slurm.conf"
        self.plugins = directory / "plugins"
        self.socket = directory / "munge/socket"
        for folder in ("bin", "etc", "munge", "plugins"):
            (directory / folder).mkdir(parents=True)
        for name in ("srun", "scontrol", "sbatch"):
            shutil.copy("/bin/true", directory / "bin" / name)
        (self.plugins / "auth_munge.so").touch()
        self.configure()
        self._listener = socket.socket(socket.AF_UNIX)
        here = Path.cwd()
        os.chdir(self.socket.parent)  # a socket's path is short
        self._listener.bind(self.socket.name)
        os.chdir(here)

    def configure(self, *lines: str) -> None:
        """Write slurm.conf with further lines."""
        auth = f"AuthInfo=cred_expire=15,socket={self.socket}"
        self.conf.write_text("\n".join([f"pluginDIR = {self.plugins}  # here", auth, *lines, ""]))

    @property
    def env(self) -> dict[str, str]:
        """The environment in which this Slurm is the host's."""
        kept = {name: os.environ[name] for name in ("LANG", "HOME") if name in os.environ}
        path = f"{self.directory}/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return kept | {"PATH": path, "SLURM_CONF": str(self.conf)}

    def close(self) -> None:
        """Close the socket."""
        self._listener.close()
