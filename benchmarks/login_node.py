"""Time from a submission's command to its job id, against a Hydra app that does nothing; torch must not be imported.

    python -m benchmarks.login_node

The app composes no config, and imports neither jinja2 nor submitit. On the machine on which the target was set, it
takes 0.52 s and a submission 0.75 s.

Jobs are submitted to the Slurm of this machine if there is one (held, and cancelled at once), or else to stand-ins for
its commands, which return at once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import ROOT, Result, environment, interleaved, median_ratio, medians, python, report, stand_ins

COMMAND = ("-m", "launcher", "workload=ddp_mnist", "cluster=slurm", "nodes=2")
HELD = "cluster:\n  directives:\n    hold: true\n"
STAND_INS = {
    "sbatch": "echo 1",
    "sinfo": "echo 'batch*|infinite|infinite|1000|64|256000|gpu:8'",
    "squeue": "true",
    "scancel": "true",
}


def slurm_answers() -> bool:
    """Returns whether this machine has a Slurm to which it can submit."""
    if any(shutil.which(name) is None for name in STAND_INS):
        return False
    try:
        done = subprocess.run(["sinfo", "--noheader"], capture_output=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def results(repeats: int = 15) -> list[Result]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "user.yaml").write_text(HELD)
        env = environment(LAUNCHER_RUNS_DIR=f"{folder}/runs", LAUNCHER_CONFIG_DIR=scratch)
        real = slurm_answers()
        if not real:
            env["PATH"] = stand_ins(folder / "bin", STAND_INS)

        def submit(*flags: str) -> tuple[float, str]:
            seconds, output, errors = python(*flags, *COMMAND, env=env)
            job = re.search(r"^job +(\d+)", output, re.MULTILINE)
            if job is None:
                raise RuntimeError(f"no job id in: {output}{errors}")
            subprocess.run(["scancel", job[1]], env=env, check=True)
            return seconds, errors

        loaded = re.findall(r"\| +(torch)(?:\.\S+)?$", submit("-X", "importtime")[1], re.MULTILINE)
        if loaded:
            raise RuntimeError("torch is imported on the way to a submission")
        seconds = interleaved(
            {
                "submission": lambda: submit()[0],
                "bare Hydra": lambda: python(ROOT / "benchmarks" / "bare_hydra.py", env=env, cwd=folder)[0],
            },
            repeats,
        )
    where = "real sbatch" if real else "stand-in sbatch"
    detail = f"{medians(seconds)}; {where}; torch not imported"
    return [Result("submission / bare Hydra app", median_ratio(seconds, "submission", "bare Hydra"), 1.5, detail)]


if __name__ == "__main__":
    sys.exit(report(results()))
