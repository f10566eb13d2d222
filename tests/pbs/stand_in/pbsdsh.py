"""The command pbsdsh: runs a program on nodes of the job that calls it (OpenPBS 23.06.06, cmds/pbsdsh.c).

- It exits with 0 even if a task fails; then it prints a line to stdout.
- The tasks' output goes to the job's output. They have the job's environment, without variables that its script
  exported.
- On SIGTERM, SIGINT and SIGHUP it sends the signal to the tasks, and exits at once with 1; tasks may still run.
- An index past the last line of the node file wraps around to the first.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from tests.pbs.stand_in import wire

USAGE = """\
Usage: pbsdsh [-c copies][-s][-v][-o] -- program [args...]
       pbsdsh [-n node_index][-s][-v][-o] -- program [args...]
       pbsdsh --version
Where -c copies =  run a copy of "program" on the first "copies" nodes,
      -n node_index = run a copy of "program" on the "node_index"-th node,
      -s = forces synchronous execution,
      -v = forces verbose output.
      -o = no obits are waited for.
"""


def main(address: str, argv: list[str]) -> int:
    if argv == ["--version"]:
        print("pbs_version = 23.06.06")
        return 0
    letters, program = options(argv)
    if not program or {"n", "c"} <= set(letters):
        sys.stderr.write(USAGE)
        return 1
    if "PBS_ENVIRONMENT" not in os.environ:
        print("pbsdsh: not executing under PBS", file=sys.stderr)
        return 1
    service = TaskService(address, os.environ["PBS_JOBID"])
    if service.lines == 0:
        print("pbsdsh: tm_init failed, rc = TM_ENOTCONNECTED (17002)", file=sys.stderr)
        return 1
    verbose, synchronous, waits = "v" in letters, "s" in letters, "o" not in letters
    started: dict[int, int] = {}

    def hand_on(number: int, _: object) -> None:
        messenger = TaskService(address, os.environ["PBS_JOBID"])
        for task in started.values():
            print(f"pbsdsh: killing task 0x{task:08X} signal {number}", flush=True)
            messenger.kill(task, number)
        os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hand_on)
    first = int(letters.get("n", "0"))
    for place in range(1 if "n" in letters else int(letters.get("c", service.lines))):
        line = (first + place) % service.lines
        started[place] = service.spawn(line, program)
        if verbose:
            print(f"pbsdsh: spawned task 0x{place:08X} on logical node {line} event {2 * place + 2}", flush=True)
        if synchronous and waits:
            tell_end(service, started, place, verbose)
    for place in list(started) * waits:
        tell_end(service, started, place, verbose)
    return 0


def tell_end(service: TaskService, started: dict[int, int], place: int, verbose: bool) -> None:
    """Waits for a task, and prints its exit status if it is not 0 or with -v."""
    if verbose:
        print("pbsdsh: waiting on 1 spawned and 0 obits\npbsdsh: waiting on 0 spawned and 1 obits", flush=True)
    status = service.wait(started[place])
    del started[place]
    if status or verbose:
        print(f"pbsdsh: task 0x{place:08X} exit status {status}", flush=True)


def options(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Splits arguments into the options of pbsdsh, by letter, and the program with its arguments.

    The program is empty if an option is unknown or has a wrong value.
    """
    letters: dict[str, str] = {}
    words = list(argv)
    while words and words[0].startswith("-") and words[0] not in ("-", "--"):
        letter, value = words[0][1], words.pop(0)[2:]
        if letter in "cn":
            letters[letter] = value or (words.pop(0) if words else "")
            if not letters[letter].isdecimal():
                return letters, []
        elif letter in "svo":
            letters[letter] = ""
            if value:
                words.insert(0, f"-{value}")
        else:
            print(f"pbsdsh: invalid option -- '{letter}'", file=sys.stderr)
            return letters, []
    return letters, words[1:] if words[:1] == ["--"] else words


class TaskService:
    """Requests to the daemon, as the MoM, about the tasks of a job.

    Attributes:
        lines: the number of lines in the job's node file; 0: the job does not run.
    """

    def __init__(self, address: str, job: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        self.lines = self._ask("lines", command="pbsdsh", job=job)

    def spawn(self, line: int, program: list[str]) -> int:
        return self._ask("task", spawn=program, line=line)

    def wait(self, task: int) -> int:
        return self._ask("status", wait=task)

    def kill(self, task: int, number: int) -> None:
        self._ask("killed", kill=task, signal=number)

    def _ask(self, what: str, **message: object) -> int:
        self._connection.sendall(wire.pack(message))
        answer = wire.receive(self._connection) or {}
        return int(str(answer.get(what, 0)))
