"""A stand-in for OpenPBS's pbsdsh: `pbsdsh -n INDEX [--] PROGRAM ARGUMENT...`, which behaves like that of 23.06.06.

- The task gets PBS's own variables, HOME and PATH=/bin:/usr/bin, and starts in $HOME. It does not inherit variables
  that the job script exported.
- The task's output goes to the job's output (here: to the file in STAND_IN_OUTPUT), not to pbsdsh's stdout.
- The task's stdin is empty. It leads a session of its own.
- pbsdsh exits with 0 even if the task fails; then it prints a line to stdout.
- An index past the last line of the node file wraps around to the first (cmds/pbsdsh.c: index % nodes).
- On SIGTERM, pbsdsh sends the signal to the task's session and exits at once with 1; the task may still run.
- A host called `no-such-node` cannot be reached: the spawn fails.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

KEPT = ("HOME", "TMPDIR", "NCPUS", "OMP_NUM_THREADS", "ENVIRONMENT")


def main(arguments: list[str]) -> int:
    assert arguments[0] == "-n", arguments
    index, command = int(arguments[1]), arguments[3:] if arguments[2] == "--" else arguments[2:]
    lines = Path(os.environ["PBS_NODEFILE"]).read_text().splitlines()
    index %= len(lines)
    if lines[index] == "no-such-node":
        print("error 17002 on spawn", file=sys.stderr)
        return 0
    hosts = list(dict.fromkeys(lines))
    environment = {name: value for name, value in os.environ.items() if name.startswith("PBS_") or name in KEPT}
    environment |= {
        "PATH": "/bin:/usr/bin", "PBS_NODENUM": str(hosts.index(lines[index])), "PBS_TASKNUM": f"{index + 2:08X}",
        "CUDA_VISIBLE_DEVICES": f"GPU-of-line-{index}",
    }  # fmt: skip
    with open(os.environ["STAND_IN_OUTPUT"], "ab") as output:
        task = subprocess.Popen(
            command, env=environment, cwd=os.environ["HOME"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip

    def hand_on(number: int, _: object) -> None:
        print(f"pbsdsh: killing task 0x00000001 signal {number}")
        os.killpg(task.pid, number)
        os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hand_on)
    code = task.wait()
    if code:
        print(f"pbsdsh: task 0x00000000 exit status {code if code > 0 else 256 - code}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
