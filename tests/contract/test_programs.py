"""Scripts, programs and functions of the user run on every scheduler as they do with torchrun or Python."""

from __future__ import annotations

import json
import re
import secrets
import stat
from pathlib import Path

import pytest

from launcher.runs.lookup import all_runs
from tests.contract.schedulers import local
from tests.launch import ROOT, Launcher
from tests.markers import ci

TELLS = """#!/bin/bash
echo "$* $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK \
$ROLE_WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID \
$TORCHELASTIC_USE_AGENT_STORE $LAUNCHER_ATTEMPT $LAUNCHER_RESTART $LAUNCHER_CHECKPOINT_DIR"
[ -n "$MASTER_ADDR" ] && [ "$MASTER_PORT" -gt 0 ] && [ -d "$LAUNCHER_CHECKPOINT_DIR" ] && [ -e README.md ]
"""


def script(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"workload.script={path}"


def example(name: str) -> list[str]:
    return ["workload=program", f"workload.script=tests/examples/{name}.py", f"name={name}"]


@pytest.mark.parametrize("launcher", ["local", "slurm", ci("pbs"), ci("sge")], indirect=True)
def test_any_program_finds_torchruns_variables(launcher: Launcher, tmp_path: Path) -> None:
    told = script(tmp_path, "tells.sh", TELLS)
    result = launcher.run("workload=program", told, "workload.args=[--lr,0.1]", "nodes=2", "procs_per_node=2")
    assert result.code == 0, result.output
    run = result.run
    for rank, (local_rank, node) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        words = (run.attempts()[0].logs / f"rank-{rank}.out").read_text().split()
        assert words == [
            "--lr", "0.1", str(rank), "4", str(local_rank), "2", str(node), str(node), "2", str(rank), "4", "0", "3",
            run.id, "True", "0", "0", f"{run.path}/checkpoints",
        ]  # fmt: skip


LARGE = """import json, os, sys
print(len(sys.argv[1]), len(sys.argv[-1]), sum(len(os.environ[f"LARGE_{n}"]) for n in range(16)))
"""


@pytest.mark.parametrize("launcher", [ci("local"), "slurm", "pbs", "sge"], indirect=True)
def test_an_environment_of_a_megabyte_and_100_kilobytes_of_arguments_arrive(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    words = ",".join(["a" * 50_000, "b" * 50_000])
    environment = {f"LARGE_{number}": secrets.token_hex(1 << 15) for number in range(16)}  # nothing compresses it
    options = ["workload=program", f"workload.script={tmp_path}/large.py", f"workload.args=[{words}]", "nodes=2"]
    result = launcher.run(*options, **environment)
    assert result.code == 0, result.output[-2000:]
    for rank in range(2):
        assert (result.run.attempts()[0].logs / f"rank-{rank}.out").read_text() == f"50000 50000 {1 << 20}\n"


@pytest.mark.parametrize("launcher", ["sge"], indirect=True)
def test_secrets_that_are_too_large_for_qrsh_are_refused_at_the_submission(launcher: Launcher) -> None:
    done = launcher.submit(*example("counts"), "nodes=2", LARGE_TOKEN=secrets.token_hex(40_000), OTHER_TOKEN="x")
    assert done.returncode != 0
    assert "the largest are LARGE_TOKEN" in done.stderr
    assert not all_runs(launcher.runs_dir)


@pytest.mark.ci
@pytest.mark.parametrize("launcher", ["slurm"], indirect=True)
def test_a_script_without_any_handler_is_resumed_after_its_time_limit(launcher: Launcher, tmp_path: Path) -> None:
    """The script handles no signal and no exit code; the first attempt has half a minute, and needs more."""
    snapshot = tmp_path / "snapshot.json"
    done = launcher.submit(
        *example("counts"), f"workload.args=[{snapshot},100,0.5]", f"workload.checkpoint={snapshot}", "nodes=2",
        "time=2m", "resume.lead=90s", "resume.max_attempts=20", "wait=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    launcher.until(lambda: launcher.status()["state"] in ("done", "failed", "stopped"), "the end", 400)
    output, attempts = launcher.printed(), launcher.last().attempts()
    assert launcher.status()["state"] == "done", output
    assert len(attempts) > 1
    reasons = [event["reason"] for each in attempts for event in each.events() if event["event"] == "stop"]
    assert reasons == ["time_limit"] * (len(attempts) - 1)
    begun = [int(step) for step in re.findall(r"rank 1 begins at (\d+)", output)]
    assert begun == sorted(begun)
    assert begun[-1] > 0
    assert "rank 0 has counted to 100" in output


@local
@pytest.mark.parametrize("fork", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_a_torchrun_script_trains_with_workers_and_its_own_group(launcher: Launcher, tmp_path: Path, fork: str) -> None:
    arguments = f"workload.args=[2,--workers,1,--snapshot,{tmp_path}/snapshot.pt]"
    result = launcher.run(*example("snapshot"), arguments, "procs_per_node=2", f"workload.fork={fork}")
    assert result.code == 0, result.output
    assert "[0] epoch 1 loss " in result.output
    assert (tmp_path / "snapshot.pt").exists()


@pytest.mark.slow
@local
def test_a_script_with_a_signal_handler_saves_exits_and_is_resumed(launcher: Launcher) -> None:
    done = launcher.submit(*example("handler"), "run_id=handler", "procs_per_node=2", "wait=false", STEPS="100000")
    assert done.returncode == 0, done.stderr
    run = launcher.last()
    launcher.until(lambda: "starts" in launcher.printed(), "its first step")
    (run.path / "stop").touch()
    assert launcher("wait", "handler", "-q").returncode == 75
    assert launcher.status()["cause"] == "asked to stop by its file `stop`"
    at = int(launcher.printed().partition("saved at step ")[2].split()[0])
    resumed = launcher("resume", "handler", "wait=true", STEPS=str(at + 2))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"begun at [0, {at}], attempt 1" in resumed.stdout


@local
def test_a_loop_with_resumable_is_stopped_and_resumed_and_its_checkpoints_are_the_runs(launcher: Launcher) -> None:
    endless = "workload.args=[--steps,1000000,--folder,not-used]"
    done = launcher.submit(*example("own_loop"), endless, "run_id=own", "procs_per_node=2", "wait=false")
    assert done.returncode == 0, done.stderr
    run = launcher.last()
    launcher.until(lambda: launcher.status()["step"], "its first step")
    (run.path / "stop").touch()
    assert launcher("wait", "own", "-q").returncode == 75
    at = int(launcher.printed().partition("stopped after step ")[2].partition(":")[0])
    assert launcher("checkpoint", "list", "own").stdout.splitlines()[1].split()[0] == str(at)
    resumed = launcher("resume", "own", "wait=true", "--", "--steps", str(at + 5))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"continues after step {at} (step-{at:09d}, saved by 2 ranks)" in resumed.stdout
    assert f"'samples': {16 * (at + 5)}" in resumed.stdout


@local
def test_a_script_that_ignores_signals_is_killed_and_can_be_resumed(launcher: Launcher) -> None:
    launcher.submit(*example("deaf"), "run_id=deaf", "launch.grace=1", "wait=false")
    launcher.until(lambda: "rank 0 begins" in launcher.printed(), "it runs")
    (launcher.last().path / "stop").touch()
    assert launcher("wait", "deaf", "-q").returncode == 75
    assert "did not exit within 1 s and were killed" in launcher.status()["cause"]
    resumed = launcher("resume", "deaf", "wait=true", DEAF_FOR="0")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr


@local
def test_a_script_that_fails_is_reported_with_its_own_frames(launcher: Launcher, tmp_path: Path) -> None:
    text = "import os, time\ndef read():\n    raise ValueError('the third file is empty')\n"
    text += "read() if os.environ['RANK'] == '1' else time.sleep(600)\n"
    result = launcher.run("workload=program", script(tmp_path, "fails.py", text), "procs_per_node=2")
    assert result.code == 1, result.output
    assert result.fault["rank"] == 1
    assert "ValueError: the third file is empty" in result.cause
    shown = result.output[result.output.index("Traceback of rank 1:") :]
    assert f'File "{tmp_path}/fails.py", line 3, in read' in shown
    assert not re.search("launcher/(agent|worker)", shown)
    assert "runpy" not in shown


@local
@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("import os, torch\ntorch.save([1], 'FOLDER/model.pt')\nos.truncate('FOLDER/model.pt', 300)\n"
         "torch.load('FOLDER/model.pt')\n", "damaged-checkpoint", "rank 0 on HOST, loading FOLDER/model.pt: "),
        ("import torch.distributed as dist\ndist.init_process_group('nccl')\n", "no-gpu",
         "; it asked for 0 GPUs a node (gpus_per_node)"),
    ],
)  # fmt: skip
def test_the_first_failures_of_a_program_are_told_as_what_they_are(
    launcher: Launcher, tmp_path: Path, text: str, kind: str, words: str
) -> None:
    (tmp_path / "fails.py").write_text(text.replace("FOLDER", str(tmp_path)))
    done = launcher("run", f"{tmp_path}/fails.py", "wait=true", "launch.max_restarts=0", *launcher.overrides)
    assert done.returncode == 1, done.stdout + done.stderr
    told = json.loads(launcher("post-mortem", "latest", "--json").stdout)["verdict"]
    assert told["kind"] == kind, told
    assert words.replace("FOLDER", str(tmp_path)).replace("HOST", launcher.hosts[0]) in told["cause"]


@pytest.mark.ci
@local
def test_points_of_a_function_differ_in_its_arguments(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def main(lr, name='a'):\n    return {'tenfold': lr * 10, 'name': name}\n")
    where = f"{ROOT}:{tmp_path}"
    done = launcher.submit(
        "-m", "workload=function", "workload.target=mine.main", "workload.kwargs.lr=1,2", "+workload.kwargs.name=b",
        "workload.init=false", "sweep.id=mine", "wait=true", PYTHONPATH=where,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads((launcher.runs_dir / "mine" / str(point) / "result.json").read_text()) for point in (0, 1)]
    assert results == [{"tenfold": 10, "name": "b"}, {"tenfold": 20, "name": "b"}]


APP = """import hydra
import os

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    print("here", os.environ["RANK"], config.model.width, config.optimizer.lr, config.get("note"))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("launcher", ["slurm"], indirect=True)
def test_run_passes_arguments_on_unchanged(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    words = ["--lr", "0.1", "--name", "a=b", "[1,2]", "${oc.env:HOME}", "it's", "back\\", "", "a\tb", "--", "-m"]
    done = launcher("run", f"{tmp_path}/my train.py", "wait=true", "nodes=2", *launcher.overrides, "--", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    run = launcher.last()
    assert run.id.startswith("my_train-")
    for rank in (0, 1):
        assert json.loads((run.attempts()[0].logs / f"rank-{rank}.out").read_text()) == words


@pytest.mark.ci
@local
def test_a_hydra_app_is_swept_by_name_and_keeps_its_own_configs(launcher: Launcher, tmp_path: Path) -> None:
    app = tmp_path / "app"
    for folder in (app / "conf" / "model", launcher.config_dir / "model"):
        folder.mkdir(parents=True)
    (app / "app.py").write_text(APP)
    (app / "conf" / "config.yaml").write_text("defaults: [model: small, _self_]\noptimizer: {lr: 0.1}\n")
    for name, width in (("small", 8), ("big", 80)):
        (app / "conf" / "model" / f"{name}.yaml").write_text(f"width: {width}\n")
        (launcher.config_dir / "model" / f"{name}.yaml").write_text("width: 7\n")  # of the launcher's own user
    swept = ["workload.overrides.optimizer.lr=0.2,0.3", "workload.overrides.model=big"]
    where = "hydra.run.dir=${oc.env:LAUNCHER_RUN_DIR}/hydra"
    done = launcher("run", "-m", f"{app}/app.py", *swept, "sweep.id=lrs", *launcher.overrides, "--", where, "+note=a b")
    assert done.returncode == 0, done.stdout + done.stderr
    for point, rate in enumerate(("0.2", "0.3")):
        logs = launcher("logs", f"lrs/{point}", "--rank", "0")
        assert logs.stdout == f"here 0 80 {rate} a b\n"
        assert (launcher.runs_dir / "lrs" / str(point) / "hydra" / ".hydra" / "config.yaml").exists()
    results = launcher("sweep", "results", "lrs")
    assert results.stdout.split()[:2] == ["POINT", "overrides.optimizer.lr"]
