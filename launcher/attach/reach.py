"""Ways from this terminal to a rank's node: it is here, by srun, or over the network to the rank's agent."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any

from launcher.attach import requests
from launcher.errors import RunError
from launcher.files.os_errors import NOT_ON_PATH
from launcher.own_module import own_module
from launcher.rendezvous.handshake import Stranger, as_client
from launcher.runs.directory import Attempt
from launcher.spec.plan import JobPlan

ANSWERS_WITHIN = 15.0  # seconds in which agents have answered; they look every second
ENDS_WITHIN = 5.0  # seconds that srun has to end by itself, and again after SIGTERM, which it only hands on
CONNECTS_WITHIN = 10.0  # seconds for one address of a node


class Way(Enum):
    """How a rank's node is reached."""

    HERE = "here"
    SRUN = "srun"
    NETWORK = "network"


def way(host: str, job: str | None, here: str) -> Way:
    """How to get to a rank. Pure.

    | its node | its job | way |
    |---|---|---|
    | is this machine | any | here |
    | is another | Slurm's | srun --overlap: Slurm knows who may, and needs no open port |
    | is another | PBS's, or none | the network: PBS lets nobody but the job itself start something on its nodes |

    Args:
        host: its node, as the run calls it.
        job: its job in Slurm.
        here: this machine's name.
    """
    if host.partition(".")[0] == here.partition(".")[0]:
        return Way.HERE
    return Way.SRUN if job else Way.NETWORK


def srun(plan: JobPlan, host: str, job: str, *words: str, terminal: bool) -> list[str]:
    """The command that runs `launcher.attach.beside` with these words on a node of a running job. Pure.

    --overlap: beside the steps that hold the node's CPUs (Slurm 20.11 and newer).
    """
    return [
        "srun", f"--jobid={job}", "--overlap", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--mpi=none",
        f"--chdir={plan.run_dir}", *(["--pty"] if terminal else ["--unbuffered"]),
        plan.python, *own_module("launcher.attach.beside"), *words,
    ]  # fmt: skip


def srun_environment(plan: JobPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """This shell's environment without what would be options of srun, and with the run's launcher. Pure."""
    kept = {
        name: value
        for name, value in environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))
    }
    if plan.code_root:
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [plan.code_root, environ.get("PYTHONPATH", "")]))
    return kept


@dataclass
class Talk:
    """Messages to and from a rank's debugger, one line of JSON each."""

    reading: IO[bytes]
    writing: IO[bytes]
    close: Callable[[], None]

    def send(self, **message: Any) -> None:
        """
        Raises:
            OSError: the other end is gone.
        """
        self.writing.write(json.dumps(message).encode() + b"\n")
        self.writing.flush()

    def receive(self) -> dict[str, Any] | None:
        """The next message; None: there will be none."""
        try:
            line = self.reading.readline()
        except OSError:
            return None
        try:
            return dict(json.loads(line)) if line else None
        except ValueError:
            return None


def over_socket(connection: socket.socket) -> Talk:
    file = connection.makefile("rwb")

    def close() -> None:
        with contextlib.suppress(OSError):
            file.close()
        connection.close()

    return Talk(file, file, close)  # type: ignore[arg-type]


def over_srun(command: Sequence[str], environment: Mapping[str, str]) -> Talk:
    """Through srun's standard input and output; its errors go to the terminal.

    Raises:
        RunError: there is no srun here.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            start_new_session=True,  # Ctrl-C is for the prompt
        )  # fmt: skip
    except NOT_ON_PATH:
        raise RunError("srun is not on this machine's PATH: attach from a login node of the cluster") from None
    reading, writing = process.stdout, process.stdin
    assert reading is not None and writing is not None

    def close() -> None:
        with contextlib.suppress(OSError):
            writing.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):  # 0 is none
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDS_WITHIN)
                break
        reading.close()

    return Talk(reading, writing, close)


def enter(plan: JobPlan, attempt: Attempt, host: str, rank: int, members: int, **question: Any) -> socket.socket:
    """A connection to `beside serve`, which the rank's agent starts for us.

    Raises:
        RunError: the agent does not answer, or its node cannot be reached from here.
    """
    from launcher.attach.beside import SECRET, SERVED

    secret = secrets.token_hex(32)
    details = {**question, "ports": list(plan.port_range)}
    folder = requests.ask(
        attempt, requests.SERVE, members, {SECRET: secret, SERVED: "", "question": json.dumps(details)}, rank=rank
    )
    served = until(lambda: requests.read(folder / SERVED))
    if served is None:
        raise RunError(f"the agent of rank {rank} on {host} does not answer within {ANSWERS_WITHIN:g} s")
    names, problems = list(dict.fromkeys([host + plan.host_suffix, host, served["host"]])), []
    for name in names:
        try:
            connection = socket.create_connection((name, served["port"]), CONNECTS_WITHIN)
        except OSError as error:
            problems.append(f"{name}: {error}")
            continue
        try:
            as_client(connection, secret.encode())
        except (OSError, Stranger) as error:
            connection.close()
            problems.append(f"{name}: {error}")
            continue
        connection.settimeout(None)
        return connection
    raise RunError(
        f"port {served['port']} of {host} cannot be reached from here ({'; '.join(problems)}): where you may log in to "
        f"the node (ssh {host}), give the same command there"
    )


def until(look: Callable[[], Any], patience: float = ANSWERS_WITHIN) -> Any:
    """The first answer that is not None, or None after `patience` seconds."""
    give_up = time.monotonic() + patience
    while (found := look()) is None and time.monotonic() < give_up:
        time.sleep(0.1)
    return found
