"""Runs a rendered script in bash, with a stand-in for what starts the ranks that keeps what it was given."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.plan.plan import JobPlan
from launcher.runs.directory import Attempt, Run
from launcher.submission import render
from tests.unit.plans import bare_plan

DRIVER = f"""#!/bin/bash
[ "$1" != -I ] || exec {shlex.quote(sys.executable)} -S "$@"  # the driver is the real one, and needs no packages
"""
# What the first agent writes at success
SUCCEEDS = 'echo 0 >"$LAUNCHER_RUN_DIR/attempts/$LAUNCHER_ATTEMPT/exit_code"'
# What each agent writes first
BEGINS = '(umask 077; : 2>/dev/null >"$LAUNCHER_RUN_DIR/attempts/$LAUNCHER_ATTEMPT/events/node-0.jsonl")'
STAND_IN = f"""{DRIVER}{BEGINS}
printf '%s\\0' "$0" "$@" >"$SANDBOX/arguments"
env -0 >"$SANDBOX/environment"
pwd >"$SANDBOX/cwd"
umask >"$SANDBOX/umask"
[ -z "$STAND_IN_TELLS" ] || kill -TERM "$PPID"
[ "${{STAND_IN_EXIT:-0}}" != 0 ] || {SUCCEEDS}
exit "${{STAND_IN_EXIT:-0}}"
"""


@dataclass
class Sandbox:
    """A folder with a run's directory, a working directory, and a PATH on which srun is our stand-in."""

    folder: Path

    def __post_init__(self) -> None:
        for name in ("bin", "work", "runs/run-1/attempts", "runs/run-1/submitit"):
            (self.folder / name).mkdir(parents=True)
        self.run_dir, self.work = self.folder / "runs/run-1", self.folder / "work"
        self.python = self.folder / "bin/py thon"
        controller = '#!/bin/bash\n[ ! -e "$SANDBOX/away" ]\n'
        for stand_in, text in (("srun", STAND_IN), ("py thon", STAND_IN), ("scontrol", controller)):
            (self.folder / "bin" / stand_in).write_text(text)
            (self.folder / "bin" / stand_in).chmod(0o700)

    def pauses(self, does: str = "") -> None:
        """From now on `sleep` takes no time, and does this instead."""
        (self.folder / "bin/sleep").write_text(f"#!/bin/bash\n{does}\n")
        (self.folder / "bin/sleep").chmod(0o700)

    def plan(self, **fields: Any) -> JobPlan:
        starter = {"slurm": "srun", "allocation": "srun", "pbs": "pbsdsh"}.get(
            fields.get("cluster", {}).get("scheduler", "slurm")
        )
        return bare_plan(
            **{
                "starter": starter,
                "run_dir": str(self.run_dir),
                "workdir": str(self.work),
                "python": str(self.python),
                **fields,
            }
        )

    def execute(
        self, plan: JobPlan, *, code: int = 0, array: str | None = None, job: str = "7", **environ: str
    ) -> Outcome:
        """Renders the plan's script and runs it; the stand-in exits with `code`."""
        script = self.folder / "script.sh"
        elements = None if array is None else self.run_dir / "arrays/token"
        if elements is not None:
            elements.parent.mkdir()
            elements.write_text("".join(f"{number}\n" for number in (9, 8, 7, 3, 1)))
        if elements is None:
            script = render.write(Run(self.run_dir), plan, token="token")
        else:
            render.write_array(plan, script, token="token", array=array or "", elements=elements)
        environment = self.run_dir / "environment.sh" if elements is None else f"{elements}.environment.sh"
        Path(environment).write_text("export FROM_SUBMITTER=yes\n")
        id_of = "PBS_JOBID" if plan.cluster.scheduler == "pbs" else "SLURM_JOB_ID"
        return self.start(script, {"STAND_IN_EXIT": str(code), id_of: job, **environ})

    def start(self, script: Path, environ: Mapping[str, str]) -> Outcome:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        home = {"PATH": path, "SANDBOX": str(self.folder), "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        with open(self.folder / "output", "a") as output:
            done = subprocess.run(
                ["bash", str(script)], env={**home, **environ}, cwd=self.folder, stdout=output, stderr=subprocess.PIPE,
                text=True, check=False, timeout=60,
            )  # fmt: skip
        return Outcome(self, done.returncode, done.stderr)


@dataclass
class Outcome:
    """How a script ended, and what its stand-in was given."""

    sandbox: Sandbox
    code: int
    stderr: str

    def _kept(self, name: str) -> str:
        return (self.sandbox.folder / name).read_bytes().decode()

    @property
    def started(self) -> bool:
        """Whether it came as far as starting the ranks."""
        return (self.sandbox.folder / "arguments").exists()

    @cached_property
    def arguments(self) -> list[str]:
        """The name and the arguments of what starts the ranks."""
        program, *rest = self._kept("arguments").split("\0")[:-1]
        return [program.removeprefix(f"{self.sandbox.folder}/bin/"), *rest]

    @cached_property
    def environment(self) -> dict[str, str]:
        return {
            name: value for name, _, value in (pair.partition("=") for pair in self._kept("environment").split("\0"))
        }

    @property
    def cwd(self) -> str:
        return self._kept("cwd").removesuffix("\n")

    @property
    def umask(self) -> str:
        return self._kept("umask").strip()

    def events(self, attempt: int = 0, run_dir: Path | None = None) -> list[dict[str, Any]]:
        """The script's own events, without their time."""
        path = Attempt(Run(run_dir or self.sandbox.run_dir), attempt).events_file("script")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(isinstance(line.pop("time"), float) for line in lines)
        return lines


FAULTY = """#!/bin/bash
# {real}, which fails for arguments that contain PART as often as the file FAULTS says.
left="$SANDBOX/faults-{name}"
if [ -e "$left" ]; then
  {{ read -r times; read -r part; read -r words; }} <"$left"
  case "$*" in
    *"$part"*)
      if [ "$times" -gt 0 ]; then
        printf '%s\\n' $((times - 1)) "$part" "$words" >"$left"
        echo "{name}: cannot access '$part': $words" >&2
        exit {code}
      fi
      ;;
  esac
fi
exec {real} "$@"
"""


def make_faulty(sandbox: Sandbox, name: str, part: str, times: int, number: int = errno.EIO) -> None:
    """A program that the script runs fails for some time, for arguments that contain `part`."""
    program = sandbox.folder / "bin" / name
    real = shutil.which(name, path="/usr/bin:/bin")
    program.write_text(FAULTY.format(name=name, real=real, code=2 if name == "grep" else 1))
    program.chmod(0o700)
    (sandbox.folder / f"faults-{name}").write_text(f"{times}\n{part}\n{os.strerror(number)}\n")
