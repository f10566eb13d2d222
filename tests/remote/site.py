"""A login node for the tests: OpenSSH's server on a loopback address, for this user, with folders of its own.

The launcher over there is this checkout. `Laptop` is the other side: a folder of its own for everything, and a wrapper
of `ssh` on its PATH that reads the test's configuration, since ssh takes the home folder from the passwd file.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import forked_commands, warm_python
from tests.launch import ROOT

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
# Variables of this process that neither side may have: their folders, and the job that the tests may run in.
OWN = ("LAUNCHER_", "XDG_", "SLURM_", "PBS_", "SGE_", "PYTHONPATH")


@dataclass(frozen=True)
class LoginNode:
    """A login node that ssh reaches under the name `login`."""

    folder: Path
    port: int

    @property
    def runs_dir(self) -> Path:
        return self.folder / "runs"

    @property
    def config_dir(self) -> Path:
        return self.folder / "config"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def command(self) -> Path:
        """What starts the launcher there."""
        return self.folder / "launcher"


@contextlib.contextmanager
def login_node(
    folder: Path, environment: Mapping[str, str], user: str = "", prefix: Sequence[str] = ()
) -> Iterator[LoginNode]:
    """Starts a login node.

    environment: variables of its sessions (SLURM_CONF, ...). user: another than this one. prefix: a command that runs
        the launcher there.
    """
    assert SSHD, "apt-get install openssh-server"
    folder.mkdir(parents=True)
    # The socket's path must be short, and its folder nobody else's.
    keys = Path(tempfile.mkdtemp(prefix="sshd-"))
    for name in ("host", "user", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], check=True)
    (keys / "authorized").write_bytes((keys / "user.pub").read_bytes())
    keys.chmod(0o711)  # sshd reads it as the user
    (keys / "authorized").chmod(0o644)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    node = LoginNode(folder, port)
    variables = {
        **environment, "LAUNCHER_RUNS_DIR": str(node.runs_dir), "LAUNCHER_CONFIG_DIR": str(node.config_dir),
        "LAUNCHER_CACHE_DIR": str(node.cache), "XDG_DATA_HOME": str(folder / "data"),
        "PATH": environment.get("PATH", os.environ["PATH"]),
    } if not user else {}  # fmt: skip
    shown = " ".join(f'"{name}={value}"' for name, value in variables.items())
    (keys / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {keys}/host\nPidFile none\n"
        f"AuthorizedKeysFile {keys}/authorized\nUsePAM no\nStrictModes no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        "MaxStartups 100\nPrintMotd no\n"
        + (f"SetEnv {shown}\n" if shown else "")
    )  # fmt: skip
    known = (keys / "host.pub").read_text().split()
    (keys / "known_hosts").write_text(f"[127.0.0.1]:{port} {known[0]} {known[1]}\n")
    (keys / "ssh_config").write_text(
        f"Host login*\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {keys}/user\n  IdentitiesOnly yes\n"
        + (f"  User {user}\n" if user else "")
        + f"  UserKnownHostsFile {keys}/known_hosts\n  GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n"
    )
    (folder / "ssh").symlink_to(keys)
    node.command.write_text(
        "#!/bin/sh\n[ $# -gt 0 ] || printf '\\036LAUNCHER\\n'\n"
        f'PYTHONPATH={ROOT} exec {shlex.join([*prefix, warm_python.python()])} -P -m launcher.cli.ssh_serve "$@"\n'
    )
    node.command.chmod(0o700)
    os.makedirs("/run/sshd", exist_ok=True) if not os.geteuid() else None
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(keys / "sshd_config")], stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        _wait_for(port, server)
        yield node
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(keys, ignore_errors=True)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert server.poll() is None and time.monotonic() < until, "sshd did not start"
            time.sleep(0.05)


class Laptop:
    """A machine from which the login node is reached, with a profile `hpc` of it and a repository to submit from."""

    def __init__(self, folder: Path, node: LoginNode, profile: str = "local") -> None:
        """profile: the name of the one there."""
        self.folder, self.node = folder, node
        self.code = folder / "project"
        self.profile = folder / "config/cluster/hpc.yaml"
        for each in (self.code, self.profile.parent, folder / "bin"):
            each.mkdir(parents=True)
        self.profile.write_text(f"ssh: login\ncommand: {node.command}\nprofile: {profile}\ntimeout: 60\n")
        (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {node.folder}/ssh/ssh_config "$@"\n')
        (folder / "bin/ssh").chmod(0o700)
        self._sockets = Path(tempfile.mkdtemp(prefix="l-"))  # the paths of the control connections must be short
        self.git("init", "--quiet")
        (self.code / "train.py").write_text("import os, sys\nprint('rank', os.environ.get('RANK'), *sys.argv[1:])\n")

    def git(self, *words: str) -> None:
        subprocess.run(["git", "-c", "user.name=me", "-c", "user.email=me@here", *words], cwd=self.code, check=True)

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
        return {
            **kept, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1",
            "LAUNCHER_CONFIG_DIR": str(self.folder / "config"), "LAUNCHER_RUNS_DIR": str(self.folder / "runs"),
            "LAUNCHER_CACHE_DIR": str(self._sockets), "XDG_DATA_HOME": str(self.folder / "data"),
        }  # fmt: skip

    def __call__(self, *arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `launcher ARGUMENTS` in the repository."""
        return forked_commands.run(arguments, self.code, {**self.environ, **environment}, timeout)

    def end_connections(self) -> None:
        """Ends the control connections."""
        words = ["-F", f"{self.node.folder}/ssh/ssh_config", "-o", f"ControlPath={self._sockets}/ssh/%C", "-O", "exit"]
        subprocess.run(["ssh", *words, "login"], check=False, capture_output=True)

    def close(self) -> None:
        self.end_connections()
        shutil.rmtree(self._sockets, ignore_errors=True)
