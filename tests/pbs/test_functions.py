"""PBSExecutor: what only PBS makes difficult. What every executor does is in tests/contract/test_functions.py."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import submitit
from submitit.core.utils import FailedJobError, UncompletedJobError

from launcher.errors import RunError, SubmissionError
from launcher.schedulers import functions as functions_executor
from launcher.schedulers.pbs.client import PBS
from launcher.schedulers.pbs.executor import PBSExecutor, PBSJob
from launcher.schedulers.run_command import SubmissionRefused, submit_once
from tests.launch import ROOT, until
from tests.pbs import functions
from tests.pbs.pbs_cluster import PbsCluster
from tests.pbs.real import RealPbs

Site = PbsCluster | RealPbs


def executor(folder: Path, **parameters: Any) -> submitit.AutoExecutor:
    # On a busy machine some attempts of a function are over before it has begun.
    made = submitit.AutoExecutor(folder / "logs", cluster="pbs", pbs_max_num_timeout=100)
    made.update_parameters(**{"timeout_min": 5, **parameters})
    return made


def over(job: PBSJob) -> bool:
    return job.done(force_check=True)


def test_output_goes_where_submitit_looks_for_it(site: Site, tmp_path: Path) -> None:
    job = executor(tmp_path).submit(functions.double, 4)
    assert job.result() == 8
    assert "out 4" in job.stdout()
    assert job.stderr() == "err 4\n"
    merged = executor(tmp_path, stderr_to_stdout=True).submit(functions.double, 5)
    assert merged.result() == 10
    assert "err 5" in merged.stdout()
    assert not merged.paths.stderr.exists()


@pytest.mark.ci
def test_a_job_whose_tasks_never_began_says_why(site: Site, tmp_path: Path) -> None:
    made = executor(tmp_path, nodes=2, pbs_setup=["echo something is not there; exit 7"])
    with pytest.raises(UncompletedJobError, match="something is not there"):
        made.submit(functions.double, 4).results()


@pytest.mark.ci
def test_functions_need_only_what_the_page_installs(site: Site, tmp_path: Path) -> None:
    """Both where they are submitted and in their tasks: all other packages are refused there."""
    named = re.search(r"pip install (submitit .*)\n", (ROOT / "docs/functions.md").read_text())
    assert named is not None
    wanted, waiting = set(), named[1].split()
    while waiting:
        name = re.split(r"[^\w.-]", waiting.pop())[0].lower().replace("_", "-")
        if name not in wanted:
            wanted.add(name)
            waiting += [each for each in metadata.requires(name) or () if "extra ==" not in each]
    packages = metadata.packages_distributions().items()
    others = {top for top, of in packages if not {each.lower().replace("_", "-") for each in of} & wanted}
    assert {"torch", "hydra", "rich"} <= others
    refusing, script = tmp_path / "refusing", tmp_path / "squares.py"
    refusing.mkdir()
    (refusing / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refusing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {sorted(others - {'launcher', 'tests', 'workloads'})}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Refusing())\n"
    )
    script.write_text(
        "import submitit\n"
        f"executor = submitit.AutoExecutor({str(tmp_path / 'logs')!r}, cluster='pbs')\n"
        "executor.update_parameters(timeout_min=5, nodes=2)\n"
        "print(executor.submit(lambda x: x * x, 3).results())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": f"{refusing}:{ROOT}", "API_TOKEN": "secret"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "[9, 9]\n", done.stderr


def test_all_files_are_private_and_nothing_unneeded_is_left(site: Site, tmp_path: Path) -> None:
    made = executor(tmp_path)
    jobs = [made.submit(functions.double, 1), *made.map_array(functions.double, [2, 3])]
    made.update_parameters(nodes=2)
    jobs.append(made.submit(functions.double, 4))
    for job in jobs:
        job.results()
    until(lambda: all(map(over, jobs)), "they are done")
    folder = tmp_path / "logs"
    assert folder.stat().st_mode & 0o777 == 0o700
    until(lambda: not list(folder.glob(".tasks-*")), "the tasks' folder is removed")
    kinds = {path.name.split("_")[-1] for path in folder.iterdir() if not path.name.startswith(".")}
    assert kinds == {"submission.sh", "submitted.pkl", "result.pkl", "log.out", "log.err"}
    hidden = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert sum(name.startswith(".environment-") for name in hidden) == 1
    kinds = [name.partition(".")[2] for name in (each[1:] for each in hidden)]
    assert sorted(kinds) == ["json"] * 3 + ["sh"] * 4  # and a script for each qsub, with what its driver reads
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir() if "result" not in path.name} == {0}


def test_secrets_reach_the_function_and_not_qsub(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's qsub may hand its environment on (-V), to where `qstat -f` shows it to everybody."""
    monkeypatch.setenv("MY_TOKEN", "for nobody else")
    given: list[Mapping[str, str]] = []
    send = PBS.submit

    def seen(self: PBS, script: str, environment: Mapping[str, str], *arguments: str, **options: Any) -> str:
        given.append(environment)
        return send(self, script, environment, *arguments, **options)

    monkeypatch.setattr(PBS, "submit", seen)
    assert executor(tmp_path).submit(os.getenv, "MY_TOKEN").result() == "for nobody else"
    assert given and all("MY_TOKEN" not in each and "PATH" in each for each in given)


@pytest.mark.parametrize("name", ["logs/%j", 'it\'s a "folder" $(touch oops)', "back\\slash, comma; 50%"])
def test_the_folder_may_have_any_name(site: Site, tmp_path: Path, name: str) -> None:
    made = submitit.AutoExecutor(tmp_path / name, cluster="pbs")
    job = made.submit(functions.double, 4)
    assert job.result() == 8
    assert job.paths.result_pickle.exists()
    assert not Path("oops").exists()


def test_the_environment_arrives_to_the_letter(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "COMMA": "a,b", "QUOTES": """ "a" 'b' """, "BACKSLASH": "\\\\ \\n \\", "LINES": "one\ntwo\n",
        "SHELL_CODE": "$(id) `id`", "JSON": '{"k": [1, 2]}', "EMPTY": "", "UNICODE": "größe ☃",
    }  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PBS_ARRAY_INDEX", "77")  # as from inside of another job
    monkeypatch.setenv("RANK", "5")
    job = executor(tmp_path).submit(functions.tell, [*values, "PBS_ARRAY_INDEX", "RANK"])
    assert job.result() == [*values.values(), None, None]


def test_a_job_starts_where_it_was_submitted_with_the_users_umask(site: Site, tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        jobs = [executor(tmp_path, tasks_per_node=tasks).submit(functions.umask_and_folder) for tasks in (1, 2)]
    finally:
        os.umask(previous)
    assert [job.results() for job in jobs] == [[(0o027, os.getcwd())], [(0o027, os.getcwd())] * 2]


def test_a_batch_of_functions_is_one_array(site: Site, tmp_path: Path) -> None:
    made = executor(tmp_path)
    with made.batch():
        jobs = [made.submit(functions.double, number) for number in range(3)]
    assert [job.result() for job in jobs] == [0, 2, 4]
    assert {job.job_id.rpartition("_")[0] for job in jobs} == {jobs[0].job_id.rpartition("_")[0]}


def test_set_up_and_teardown_lines_run_around_the_function(site: Site, tmp_path: Path) -> None:
    setup = [f"set -e\nexport MARK='two words'\ntouch {tmp_path}/before"]
    teardown = [f"sleep 1.5 && touch {tmp_path}/after"]  # it takes longer than the guard needs
    job = executor(tmp_path, pbs_setup=setup, pbs_teardown=teardown).submit(functions.tell, ["MARK"])
    assert job.result() == ["two words"]
    until((tmp_path / "after").exists, "the teardown has run")
    assert (tmp_path / "before").exists()


def test_a_set_up_line_that_fails_ends_the_job(site: Site, tmp_path: Path) -> None:
    job = executor(tmp_path, pbs_setup=["true", "ls /no/such/folder"]).submit(functions.double, 4)
    until(lambda: over(job), "it is done")
    job._results_timeout_s = 0
    assert isinstance(job.exception(), UncompletedJobError)
    said = (tmp_path / f"logs/{job.job_id}.OU").read_text()
    assert "set-up line 2 failed on" in said


@pytest.mark.ci
def test_what_calls_setsid_does_not_outlive_the_job(site: Site, tmp_path: Path) -> None:
    seconds = f"100{os.getpid()}"
    made = executor(tmp_path)
    made.submit(functions.leaves_a_session, seconds).result()
    made.update_parameters(nodes=2, tasks_per_node=2)
    made.submit(functions.leaves_a_session, seconds).results()
    until(lambda: not sleeping(seconds), "nothing is left", 10)


def sleeping(seconds: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


# -- checkpoints


def test_elements_of_an_array_go_on_alone(site: Site, tmp_path: Path) -> None:
    made = executor(tmp_path, pbs_walltime="00:00:12", pbs_signal_delay_s=9)
    short, long = made.map_array(functions.Counter(), [2, 90], [str(tmp_path)] * 2)
    assert len(short.result()) == 1
    log = long.result()
    assert len(log) >= 2
    assert "[1]" in log[0][0]
    assert "[" not in log[1][0]


@pytest.mark.slow
def test_out_of_time_too_often_ends_with_the_reason(site: Site, tmp_path: Path) -> None:
    made = submitit.AutoExecutor(tmp_path / "logs", cluster="pbs", pbs_max_num_timeout=1)
    made.update_parameters(pbs_walltime="00:00:06", pbs_signal_delay_s=5)
    job = made.submit(functions.Counter(), 1000, str(tmp_path))
    with pytest.raises(FailedJobError, match="timed-out too many times"):
        job.result()


@pytest.mark.slow
def test_elements_in_folders_of_their_own_go_on(site: Site, tmp_path: Path) -> None:
    made = submitit.AutoExecutor(tmp_path / "logs/%j", cluster="pbs", pbs_max_num_timeout=100)
    made.update_parameters(pbs_walltime="00:00:12", pbs_signal_delay_s=9)
    jobs = made.map_array(functions.Counter(), [2, 90], [str(tmp_path)] * 2)
    assert [len(job.result()) > 1 for job in jobs] == [False, True]


@pytest.mark.slow
def test_a_submitter_that_comes_late_does_not_undo_a_checkpoint(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it is stopped with Ctrl-Z between qsub's answer and the naming of the payload."""
    link_as = functions_executor.link_as

    def late(file: Path, name: Path) -> None:
        if name.name.endswith("_submitted.pkl"):
            until(lambda: list((tmp_path / "logs").glob("*_resubmitted.txt")), "the job goes on as another")
        link_as(file, name)

    monkeypatch.setattr(functions_executor, "link_as", late)
    made = executor(tmp_path, pbs_walltime="00:00:12", pbs_signal_delay_s=9)
    job = made.submit(functions.Counter(), 90, str(tmp_path))
    log = job.result()
    assert len(log) >= 2
    assert log[-1][1] > 0
    assert not list((tmp_path / "logs").glob(".*.pkl"))


@pytest.mark.ci
def test_a_job_goes_on_although_the_server_pauses(stand_in: PbsCluster, tmp_path: Path) -> None:
    made = executor(tmp_path, pbs_walltime="00:00:30", pbs_signal_delay_s=28)
    job = made.submit(functions.Counter(), 200, str(tmp_path))
    until((tmp_path / "runs").exists, "it runs")
    stand_in.down()  # when it is checkpointed, after 15 s
    threading.Timer(18, stand_in.up).start()
    assert len(job.result()) >= 2


def test_a_preempted_job_goes_on_from_its_checkpoint(stand_in: PbsCluster, tmp_path: Path) -> None:
    """PBS queues it again by itself: the same job, told by SIGTERM only."""
    job = executor(tmp_path).submit(functions.Counter(), 30, str(tmp_path))
    until((tmp_path / "runs").exists, "it runs")
    time.sleep(1)
    stand_in.rerun(job.job_id)
    log = job.result()
    assert [name for name, _ in log] == [job.job_id] * 2
    assert log[1][1] > 5


# -- states


def test_a_thousand_jobs_cost_one_qstat(stand_in: PbsCluster, tmp_path: Path) -> None:
    stand_in.freeze_scheduler()
    jobs = executor(tmp_path).map_array(functions.double, range(1000))
    assert stand_in.submissions() == 1
    before = len(stand_in.calls("qstat"))
    assert {job.state for job in jobs} == {"PENDING"}
    assert len(stand_in.calls("qstat")) - before == 1


def test_a_server_without_history_forgets_and_that_is_no_success(stand_in: PbsCluster, tmp_path: Path) -> None:
    stand_in.set(history=False)
    job = executor(tmp_path).submit(functions.waits, str(tmp_path))
    until((tmp_path / "runs").exists, "it runs")
    subprocess.run(["qdel", "-W", "force", job.job_id], check=True)
    until(lambda: over(job), "it is done")
    assert job.state == "FORGOTTEN"
    job._results_timeout_s = 0
    assert isinstance(job.exception(), UncompletedJobError)


def test_out_of_time_without_a_checkpoint_is_told(site: Site, tmp_path: Path) -> None:
    job = executor(tmp_path, pbs_walltime="00:00:03").submit(functions.waits, str(tmp_path))
    until(lambda: over(job), "it is done", 120)
    assert job.state in ("TIMEOUT", "FORGOTTEN")  # a site may keep no history
    job._results_timeout_s = 0
    assert "TIMEOUT" in str(job.exception()) or job.state == "FORGOTTEN"


def test_a_server_that_does_not_answer_changes_nothing(stand_in: PbsCluster, tmp_path: Path) -> None:
    job = executor(tmp_path).submit(functions.waits, str(tmp_path), 3)
    until((tmp_path / "runs").exists, "it runs")
    until(lambda: job.watcher.update() or job.state == "RUNNING", "its state is known")
    stand_in.down()
    assert not job.done(force_check=True)
    assert job.state == "RUNNING"
    stand_in.up()
    assert job.result() == job.job_id


# -- requests


@pytest.mark.ci
def test_an_array_over_the_servers_limit_becomes_several(stand_in: PbsCluster, tmp_path: Path) -> None:
    stand_in.set(max_array_size=4)
    jobs = executor(tmp_path).map_array(functions.double, range(9))
    assert [job.result() for job in jobs] == [2 * number for number in range(9)]
    assert len({job.job_id.partition("_")[0] for job in jobs}) == 3  # 4 + 4 + 1, the last of which is a plain job
    assert stand_in.submissions() == 3


def test_a_part_that_is_refused_takes_the_others_with_it(
    stand_in: PbsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.set(max_array_size=4)
    stand_in.freeze_scheduler()
    made = PBSExecutor(tmp_path / "logs")
    submit, sent = PBS.submit, []

    def second_fails(self: PBS, *arguments: Any, **options: Any) -> str:
        if sent:
            raise SubmissionRefused("no more", definite=True)
        sent.append(submit(self, *arguments, **options))
        return sent[-1]

    monkeypatch.setattr(PBS, "submit", second_fails)
    with pytest.raises(SubmissionRefused, match="no more"):
        made.map_array(functions.double, range(9))
    until(lambda: not PBS().jobs(), "the first part is gone")


@pytest.mark.slow
def test_threads_may_submit(site: Site, tmp_path: Path) -> None:
    made = executor(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(lambda number: made.submit(functions.umask_and_folder), range(6)))
    umask = os.umask(0o022)
    os.umask(umask)
    assert {job.result()[0] for job in jobs} == {umask}


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"pbs_queue": "no-such-queue"}, r"Unknown queue \(`qstat -Q` lists the queues\)"),
        ({"pbs_chunk": {"nosuch": 1}}, r"Unknown resource: nosuch \(`pbsnodes -av`"),
        ({"pbs_queue": "debug", "timeout_min": 600}, r"violates queue and/or server resource limits \(`qstat -Qf`"),
        ({"pbs_chunk": {"ngpus": "many"}}, r"Illegal attribute or resource value"),
    ],
)
def test_a_refusal_tells_where_to_look_and_leaves_nothing(
    site: Site, tmp_path: Path, parameters: dict[str, Any], words: str
) -> None:
    made = executor(tmp_path, **parameters)
    for submit in (lambda: made.submit(functions.double, 1), lambda: made.map_array(functions.double, [1, 2])):
        with pytest.raises(SubmissionRefused, match=words):
            submit()
    with pytest.raises(TypeError, match="pickle"):
        made.submit(functions.double, threading.Lock())
    assert [path.name for path in (tmp_path / "logs").iterdir() if not path.name.startswith(".environment")] == []


def test_a_job_that_can_never_run_says_why(site: Site, tmp_path: Path) -> None:
    job = executor(tmp_path, cpus_per_task=5000).submit(functions.double, 1)
    until(lambda: "Can Never Run" in job.get_info().get("Reason", ""), "PBS says so")
    assert job.state == "PENDING"
    job.cancel()


@pytest.mark.ci
def test_cancelling_an_element_that_is_over_is_no_error(site: Site, tmp_path: Path) -> None:
    over_soon, waiting = executor(tmp_path).map_array(functions.waits, [str(tmp_path)] * 2, [0, 600])
    over_soon.result()
    until(lambda: over(over_soon), "it is over, and its array is not")
    over_soon.cancel()
    assert not over(waiting)
    waiting.cancel()
    until(lambda: over(waiting), "it is over")


@pytest.mark.parametrize("history", [True, False])
def test_a_lost_answer_makes_no_second_job(
    stand_in: PbsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    stand_in.set(history=history)
    made = PBSExecutor(tmp_path / "logs")
    monkeypatch.setattr(made, "_queries", PBS(timeout=2))
    stand_in.hang(5)  # qsub hears of it only when nobody listens any more
    job = made.submit(functions.double, 4)
    stand_in.hang(0)
    assert job.result() == 8
    assert stand_in.submissions() == 1


@pytest.mark.ci
def test_a_server_that_is_down_is_waited_for(stand_in: PbsCluster, tmp_path: Path) -> None:
    made = executor(tmp_path)
    stand_in.down()
    threading.Timer(2, stand_in.up).start()
    assert made.submit(functions.double, 4).result() == 8
    stand_in.down()
    threading.Timer(2, stand_in.up).start()
    assert [job.result() for job in made.map_array(functions.double, [4, 5])] == [8, 10]


def test_a_folder_whose_name_pbs_does_not_take_is_told(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="qsub takes only ASCII"):
        submitit.AutoExecutor(tmp_path / "größe", cluster="pbs").submit(functions.double, 4)


def test_a_folder_that_others_can_write_to_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs").chmod(0o777)
    with pytest.raises(RunError, match="others can write to"):
        executor(tmp_path).submit(functions.double, 4)


def test_another_qsub_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qsub").write_text(
        "#!/usr/bin/perl\n# qsub - submit a batch job in familiar PBS format\nuse Slurmdb;\n"
    )
    (tmp_path / "qsub").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(
        RuntimeError, match=r"is not PBS's qsub but Slurm's wrapper around sbatch .*: use cluster=slurm"
    ):
        submitit.AutoExecutor(tmp_path, cluster="pbs")
    assert PBSExecutor.affinity() == -1


def test_a_misspelt_parameter_is_named(site: Site, tmp_path: Path) -> None:
    with pytest.raises(NameError, match="walltme"):
        executor(tmp_path, pbs_walltme="1:00:00")
    with pytest.raises(ValueError, match="Did you mean walltime"):
        PBSExecutor(tmp_path).update_parameters(walltme="1:00:00")


def test_nobody_hears_for_long_whether_there_is_a_job(
    stand_in: PbsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.schedulers.functions.submit_once", functools.partial(submit_once, timeout=1))
    made = executor(tmp_path)
    stand_in.down()
    with pytest.raises(SubmissionError, match="it is unknown whether it accepted the job"):
        made.submit(functions.double, 4)
