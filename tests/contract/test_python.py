"""A script on the login node submits and follows runs with the Python API, without a terminal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests import warm_python
from tests.contract.schedulers import on
from tests.launch import Launcher

SCRIPT = """
import json, sys
import launcher
from launcher.errors import RunError

settings = sys.argv[1:]
entry = {"workload": "collective", "workload.entry": "tests.chaos.faults:fine", "nodes": 2, "procs_per_node": 2}
prepared = launcher.prepare([*settings, *(f"{key}={value}" for key, value in entry.items()), "run_id=one"])
first = prepared.submit()
assert (first.id, first.path) == (prepared.id, prepared.path)
assert prepared.submit() == first, "it is submitted once"
done = first.wait(timeout=100)
same = (first.path / "script.sh").read_text() == prepared.script
try:
    first.resume()
    refused = ""
except RunError as error:
    refused = str(error)

sleeps = {**entry, "workload.entry": "tests.chaos.faults:sleeps", "run_id": "two"}
second = launcher.submit(settings, **{key: value for key, value in sleeps.items() if "." not in key},
                         **{"workload.entry": sleeps["workload.entry"]})
def cancelled(run):
    while run.wait(timeout=0.5) is not launcher.RunState.RUNNING:
        pass
    run.cancel()
    return run.wait(timeout=100).value

ended = [cancelled(second)]
again = launcher.find("two").resume(nodes=1)
ended.append(cancelled(again))
print(json.dumps({
    "done": done.value, "same": same, "world": first.metrics()["world_size"], "refused": refused,
    "lines": list(first.logs([3])), "ended": ended, "nodes": again.plan.nodes, "found": launcher.find("on").id,
}))
"""


@on("slurm")
def test_a_script_submits_waits_cancels_and_resumes(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "drive.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [warm_python.python(), str(script), *launcher.overrides], env=launcher.environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=280, check=False, start_new_session=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    told = json.loads(done.stdout)  # and nothing else
    assert all(line.startswith("[3] ") for line in told.pop("lines"))
    assert told.pop("refused") == "one is done: there is nothing to resume"
    assert told == {
        "done": "done", "same": True, "world": 4, "ended": ["cancelled"] * 2, "nodes": 1, "found": "one",
    }  # fmt: skip
