"""What Slurm's commands print is read as it is meant.

The texts below were printed by Slurm 22.05, unless something else is said.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.failures.codes import NextReason
from launcher.files import retried_reads
from launcher.plan.limits import NodeGroup
from launcher.schedulers.base import AnswerLost, Ending, JobState, QueryError, SchedulerJob
from launcher.schedulers.executor import JobWatcher
from launcher.schedulers.registry import job_environment
from launcher.schedulers.run_command import NoAnswer, SubmissionRefused, submit_once
from launcher.schedulers.slurm import scheduler
from launcher.schedulers.slurm.client import (
    STATES,
    Slurm,
    history,
    parse_accounting,
    parse_counts,
    parse_jobs,
    quiet_environment,
)
from launcher.schedulers.slurm.limits import Partition, parse_partitions, partitions_of
from launcher.schedulers.slurm.scheduler import SlurmScheduler
from tests.unit.clock import Clock
from tests.unit.plans import plan_of

MIB = 1024**2
SINFO = """\
gpu*|2:00:00|1-infinite|4|4|6000|gpu:2
debug|10:00|1|2|4|6000|gpu:2
tmpempty|infinite|1-infinite|0|0|0|(null)
one|1-00:00:00|1-2|1|4|6000|gpu:2
"""


def test_partitions_are_read() -> None:
    node = (4, 6000 * MIB, 2)
    assert parse_partitions(SINFO) == [
        Partition("gpu", True, 7200, None, (NodeGroup(4, *node),)),
        Partition("debug", False, 600, 1, (NodeGroup(2, *node),)),
        Partition("tmpempty", False, None, None, ()),
        Partition("one", False, 86400, 2, (NodeGroup(1, *node),)),
    ]


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:2", 2),
        ("gpu:a100:4", 4),
        ("gpu:a100:4(S:0-3)", 4),
        ("gpu:a100:4(S:0,2),shard:16", 4),
        ("gpu:a100:2,gpu:v100:1", 3),
        ("shard:8,craynetwork:4", 0),
        ("gpu", 0),
        ("", 0),
    ],
)
def test_gpus_are_counted_as_sites_write_them(gres: str, gpus: int) -> None:
    (partition,) = parse_partitions(f"p|infinite|1-infinite|1|4|1000|{gres}\n")
    assert partition.groups[0].gpus == gpus


def test_a_partition_of_several_kinds_of_nodes_is_one() -> None:
    text = "mix*|infinite|1-4|2|8|1000|(null)\nmix*|infinite|1-4|1|64|2000|gpu:8\nother|n/a|1|1|64+|2000+|gpu:8\n"
    groups = (NodeGroup(2, 8, 1000 * MIB, 0), NodeGroup(1, 64, 2000 * MIB, 8))
    assert parse_partitions(text) == [
        Partition("mix", True, None, 4, groups),
        Partition("other", False, None, 1, (groups[1],)),
    ]


def columns(job_id: str, state: str, reason: str, comment: str) -> str:
    """A line of squeue in the columns that we ask for; long values are cut off, as squeue does."""
    return f"{job_id[:64]:64}{state[:32]:32}{reason[:64]:64}{comment[:256]:256}\n"


SQUEUE = "".join(
    columns(*line)
    for line in [
        ("159", "COMPLETED", "None", "launcher-d349197932bb86cf1560"),
        ("164", "PENDING", "BeginTime", "(null)"),
        ("162_0", "PENDING", "JobHeldUser", "tok-array"),
        ("163", "RUNNING", "None", "it's a b"),
        ("26", "FAILED", "NonZeroExitCode", 'it\'s $(x) `id` ; "x"  # y'),
        ("5", "CANCELLED", "BeginTime", "N/A"),
        ("6", "PENDING", "ReqNodeNotAvail, UnavailableNodes:node[1-3]", "c"),
        ("7", "NEW_STATE_OF_2031", "None", "x" * 256),
        ("8", "EXPEDITING", "BeginTime", "(null)"),
        ("9", "RESV_DEL_HOLD", "ReservationDeleted", "(null)"),
        ("10", "REVOKED", "None", "(null)"),
    ]
)


@pytest.mark.parametrize(
    ("reason", "number"), [("RaisedSignal:9(Killed)", 9), ("RaisedSignal:53(Real-time_signal_19)", 53), ("None", None)]
)
def test_the_signal_that_ended_a_job_is_read(reason: str, number: int | None) -> None:
    (job,) = parse_jobs(f"{'7':64}{'FAILED':32}{reason:64}").values()
    assert job.signal == number


def test_jobs_are_read() -> None:
    jobs = parse_jobs(SQUEUE)
    assert jobs == {
        "159": SchedulerJob("159", JobState.DONE, "COMPLETED", "", "launcher-d349197932bb86cf1560"),
        "164": SchedulerJob("164", JobState.PENDING, "PENDING", "BeginTime", ""),
        "162_0": SchedulerJob("162_0", JobState.PENDING, "PENDING", "JobHeldUser", "tok-array"),
        "163": SchedulerJob("163", JobState.RUNNING, "RUNNING", "", "it's a b"),
        "26": SchedulerJob("26", JobState.FAILED, "FAILED", "NonZeroExitCode", 'it\'s $(x) `id` ; "x"  # y'),
        "5": SchedulerJob("5", JobState.CANCELLED, "CANCELLED", "BeginTime", ""),
        "6": SchedulerJob("6", JobState.PENDING, "PENDING", "ReqNodeNotAvail, UnavailableNodes:node[1-3]", "c"),
        "7": SchedulerJob("7", JobState.UNKNOWN, "NEW_STATE_OF_2031", "", "x" * 256),
        "8": SchedulerJob("8", JobState.PENDING, "EXPEDITING", "BeginTime", ""),
        "9": SchedulerJob("9", JobState.PENDING, "RESV_DEL_HOLD", "ReservationDeleted", ""),
        "10": SchedulerJob("10", JobState.UNKNOWN, "REVOKED", "", ""),
    }
    assert parse_jobs("") == {}


# sacct --noheader --parsable2 --format=JobID,End,State,Reason,Comment; 8 holds a site's own comment
SACCT = """\
1|2026-11-21T20:00:00|COMPLETED|None|
1.batch|2026-11-21T20:00:00|COMPLETED||
2|2026-11-21T20:00:00|FAILED|None|
4|2026-11-21T20:00:00|CANCELLED by 0|JobHeldUser|
5.0|2026-11-21T20:00:00|CANCELLED||
3_0|2026-11-21T20:00:00|COMPLETED|None|
7|Unknown|PENDING|JobHeldUser|
8|2026-11-21T20:00:00|OUT_OF_MEMORY|None|tok a|b
9|2026-11-21T20:00:00|NEW_STATE_OF_2031|None|
10|Unknown|NEW_STATE_OF_2031|None|
11|2026-11-21T20:00:00|REVOKED|None|
a site's own remark
"""


def test_accounting_is_read_without_the_steps() -> None:
    assert {
        job.id: (job.state, job.raw_state, job.reason, job.comment) for job in parse_accounting(SACCT).values()
    } == {
        "1": (JobState.DONE, "COMPLETED", "", ""),
        "2": (JobState.FAILED, "FAILED", "", ""),
        "4": (JobState.CANCELLED, "CANCELLED", "JobHeldUser", ""),
        "3_0": (JobState.DONE, "COMPLETED", "", ""),
        "7": (JobState.PENDING, "PENDING", "JobHeldUser", ""),
        "8": (JobState.FAILED, "OUT_OF_MEMORY", "", "tok a|b"),
        "9": (JobState.GONE, "NEW_STATE_OF_2031", "", ""),  # it has an end, so it is over
        "10": (JobState.UNKNOWN, "NEW_STATE_OF_2031", "", ""),
        "11": (JobState.UNKNOWN, "REVOKED", "", ""),  # over here: another cluster of the federation has it
    }


def test_only_completed_is_done() -> None:
    assert [word for word, state in STATES.items() if state is JobState.DONE] == ["COMPLETED"]
    assert JobState.UNKNOWN not in STATES.values()


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o700)


def test_one_question_answers_for_all_jobs(commands: Path) -> None:
    (commands / "printed").write_text(SQUEUE)
    put(
        commands,
        "squeue",
        f'echo "$@" >>{commands}/asked; while IFS= read -r line; do echo "$line"; done <{commands}/printed',
    )
    slurm = Slurm()
    assert len(slurm.jobs()) == 11
    assert slurm.find("tok-array", "any") == "162"
    assert slurm.find("tok", "any") is None
    asked = (commands / "asked").read_text().splitlines()
    assert len(asked) == 3
    assert all("--me" in line and "--states=all" in line and "--jobs" not in line for line in asked)


@pytest.mark.parametrize(
    ("script", "timeout", "words"),
    [
        (None, 5.0, "squeue is not on this machine's PATH"),
        ("", 5.0, "squeue is not on this machine's PATH"),  # not to be run: as in a folder that may not be searched
        ("echo 'Unable to contact slurm controller' >&2; exit 1", 5.0, r"squeue failed \(exit 1\): Unable to contact"),
        ("exit 3", 5.0, r"squeue failed \(exit 3\): no message"),
        ("exec /bin/sleep 5", 0.05, r"squeue did not answer within 0\.05 s"),
    ],
)
def test_a_slurm_that_does_not_answer_is_told_and_never_taken_for_an_empty_one(
    commands: Path, script: str | None, timeout: float, words: str
) -> None:
    if script is not None:
        put(commands, "squeue", script)
        (commands / "squeue").chmod(0o700 if script else 0o600)
    slurm = Slurm(timeout)
    for question in (slurm.jobs, lambda: slurm.find("token", "any")):
        with pytest.raises(QueryError, match=words):
            question()


def test_no_sbatch_that_can_be_run_is_a_refusal(commands: Path) -> None:
    for _ in range(2):
        with pytest.raises(SubmissionRefused, match="sbatch is not on this machine's PATH"):
            Slurm().submit("script.sh", {"PATH": str(commands)})
        (commands / "sbatch").touch(0o600)


def test_a_jobs_id_is_found_in_what_a_sites_wrapper_prints(commands: Path) -> None:
    put(commands, "sbatch", "echo '2 nodes will be charged to team'; echo '17;cluster'")
    assert Slurm().submit("script.sh", os.environ) == "17"
    put(commands, "sbatch", "echo '2 nodes will be charged to team'")
    with pytest.raises(SubmissionRefused):
        Slurm().submit("script.sh", os.environ)
    put(commands, "sbatch", "echo 17; echo 250")  # the job's id, or what is left of a budget: its token tells
    with pytest.raises(NoAnswer, match="several numbers: 17 250"):
        Slurm().submit("script.sh", os.environ)


def test_an_sbatch_that_waits_for_room_in_the_queue_says_that_there_are_too_many_jobs(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, retried_reads)
    full = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying."
    put(commands, "sbatch", f"echo '{full}' >&2; exec sleep 60")
    slurm, looks = Slurm(timeout=0.2), list[int]()

    def send() -> str:
        return slurm.submit("script.sh", {"PATH": f"{commands}:/usr/bin:/bin"})

    with pytest.raises(SubmissionRefused, match=r"takes no more jobs now: .*temporarily unable") as refused:
        submit_once(send, lambda: looks.append(1), timeout=1.2)
    assert (refused.value.job_limit, refused.value.slow, len(looks) > 0) == (True, True, True)


@pytest.mark.parametrize(
    ("word", "done"),
    [("PENDING", False), ("CONFIGURING", False), ("SUSPENDED", False), ("COMPLETING", False), ("EXPEDITING", False),
     ("RESV_DEL_HOLD", False), ("NEW_STATE_OF_2031", False), ("COMPLETED", True), ("TIMEOUT", True)],
)  # fmt: skip
def test_submitit_waits_for_a_job_that_slurm_still_lists(commands: Path, word: str, done: bool) -> None:
    put(commands, "squeue", f"echo '{columns('7', word, 'None', '').strip()}'")
    watcher = JobWatcher(Slurm())
    watcher.register_job("7")
    assert watcher.is_done("7", mode="force") is done


def test_a_site_without_accounting_remembers_nothing(commands: Path) -> None:
    assert Slurm().accounting(["1"]) == {}
    put(commands, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert Slurm().accounting(["1"]) == {}


def test_a_database_that_does_not_answer_for_all_jobs_says_nothing_about_any(commands: Path) -> None:
    down = "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1"
    put(commands, "sacct", f"case $* in *,4005,*) {down};; esac; echo '1|2026-11-21T20:00:00|COMPLETED|None|'")
    assert Slurm().ended_all(["1"])["1"].state is JobState.DONE
    with pytest.raises(QueryError, match="Problem talking to the database"):
        Slurm().ended_all([str(each) for each in range(1, 4010)])


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ("scancel: error: Kill job error on job id 7: Job/step already completing or completed", False),
        ("scancel: error: Kill job error on job id 7: Invalid job id specified", False),
        ("scancel: error: Kill job error on job id 7: Access/permission denied", True),
        (
            "scancel: error: Kill job error on job id 6: Invalid job id specified\n"
            "scancel: error: Kill job error on job id 7: Access/permission denied",
            True,
        ),
    ],
)
def test_cancelling_what_has_ended_is_no_error(commands: Path, said: str, raised: bool) -> None:
    put(commands, "scancel", f"echo '{said}' >&2; exit 1")
    if raised:
        with pytest.raises(QueryError, match="permission denied"):
            Slurm().cancel("7")
    else:
        Slurm().cancel("7")


def test_a_users_own_formats_do_not_change_what_is_read(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = (
        "SQUEUE_FORMAT",
        "SQUEUE_STATES",
        "SINFO_FORMAT",
        "SACCT_FORMAT",
        "SCONTROL_ALL",
        "SCANCEL_QOS",
        "SLURM_TIME_FORMAT",
    )
    for name in (*noise, "SLURM_CONF", "MY_SQUEUE_FORMAT"):
        monkeypatch.setenv(name, "x")
    left = quiet_environment()
    assert not set(noise) & left.keys()
    assert {"SLURM_CONF", "MY_SQUEUE_FORMAT", "PATH"} <= left.keys()
    put(commands, "sinfo", 'echo "p${SINFO_FORMAT-}|infinite|1|1|1|1|"')
    assert [partition.name for partition in partitions_of(Slurm())] == ["p"]


@pytest.mark.parametrize("clusters", ["a,b", "all"])
def test_jobs_of_several_clusters_are_no_answer(commands: Path, monkeypatch: pytest.MonkeyPatch, clusters: str) -> None:
    put(commands, "squeue", "echo CLUSTER: a")
    put(commands, "scancel", f"touch {commands}/cancelled")
    monkeypatch.setenv("SLURM_CLUSTERS", clusters)
    for ask in (Slurm().jobs, lambda: Slurm().cancel("7")):
        with pytest.raises(QueryError, match=f"SLURM_CLUSTERS={clusters}: a job's number is that of one cluster"):
            ask()
    assert not (commands / "cancelled").exists()


def test_the_line_with_the_name_of_the_cluster_is_no_answer(commands: Path) -> None:
    put(commands, "squeue", 'echo "CLUSTER: other"; case "$*" in *--jobs*) echo "PENDING|Priority" ;; esac')
    assert Slurm().jobs() == {}
    assert Slurm().state_and_reason("7") == ("PENDING", "Priority")
    assert not Slurm().count_jobs()


@pytest.mark.parametrize(
    ("shown", "size"),
    [
        ("MaxArraySize            = 1001", 1001),
        ("MaxArraySize            = 100001\nSchedulerParameters     = defer,max_array_tasks=1000,bf_continue", 1000),
        ("MaxArraySize            = 500\nSchedulerParameters     = max_array_tasks=1000", 500),
        ("SchedulerParameters     = (null)", None),
    ],
)
def test_an_array_is_as_large_as_both_limits_allow(commands: Path, shown: str, size: int | None) -> None:
    put(commands, "scontrol", f"echo '{shown}'")
    assert Slurm().max_array_size(plan_of()) == size


@pytest.mark.parametrize(("restarts", "requeued"), [("0", False), ("1", True), ("", True)])
def test_who_continues_a_preempted_job_is_known(
    commands: Path, monkeypatch: pytest.MonkeyPatch, restarts: str, requeued: bool
) -> None:
    """Slurm cancels it, by its partition, QOS or since it may not be requeued, or has requeued it already."""
    answers = f"*%T*) echo 'COMPLETING|None';; *Preempt*) echo 2026-11-30T14:00:00;; *Restart*) echo {restarts};;"
    put(commands, "squeue", f'case "$*" in {answers} esac')
    monkeypatch.setenv("LAUNCHER_JOB_ID", "7")
    ending = SlurmScheduler().ending(plan_of(), stop_requested=True, left=100.0)
    assert ending == (Ending(NextReason.PREEMPTED, "Slurm", "COMPLETING") if requeued else None)


@pytest.mark.parametrize(
    ("squeue", "requested", "reason"),
    [
        ("echo 'RUNNING|None'", True, None),
        ("echo 'COMPLETING|TimeLimit'", True, None),
        ("echo 'COMPLETING|None'", True, NextReason.SCHEDULER_ENDS),
        ("exit 1", True, NextReason.STOP_REQUESTED),  # scancel, perhaps: a requeue would bring the job back
        ("exit 1", False, None),
        ("[ -e asked ] && echo 'RUNNING|None' || { : >asked; exit 1; }", True, None),
    ],
)
def test_an_end_that_slurm_cannot_tell_is_what_the_stop_request_says(
    commands: Path, squeue: str, requested: bool, reason: NextReason | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(commands, "squeue", f"cd {commands}; {squeue}")
    monkeypatch.setenv("LAUNCHER_JOB_ID", "7")
    monkeypatch.setattr(scheduler, "ASKED_FOR", 0.01)
    Clock(monkeypatch, retried_reads)
    found = SlurmScheduler().ending(plan_of(), stop_requested=requested, left=60.0)
    assert (found and found.reason) == reason


LOST = "echo 'Socket timed out on send/recv operation' >&2; exit 1"


@pytest.mark.parametrize(
    ("scontrol", "squeue", "error"),
    [
        ("true", "exit 1", None),
        (LOST, "echo 'PENDING|BeginTime'", None),  # it was received, and nothing else may be submitted
        (LOST, "echo 'COMPLETING|None'", None),
        (LOST, "echo 'RUNNING|None'", QueryError),
        ("echo 'Requested operation is presently disabled' >&2; exit 1", "echo 'PENDING|None'", QueryError),
        (LOST, "exit 1", AnswerLost),
    ],
)
def test_a_requeue_whose_answer_is_lost_is_looked_for(
    commands: Path, scontrol: str, squeue: str, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "REQUEUES", 0.01)
    Clock(monkeypatch, retried_reads)
    put(commands, "scontrol", scontrol)
    put(commands, "squeue", squeue)
    if error is None:
        SlurmScheduler().requeue("7")
        return
    with pytest.raises(QueryError) as raised:
        SlurmScheduler().requeue("7")
    assert type(raised.value) is error


@pytest.mark.parametrize("squeue", ["echo 'RUNNING|None'", "exit 1"])
def test_a_requeue_that_a_busy_controller_has_not_answered_is_asked_for_again(
    commands: Path, squeue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new job would be a second one of the run if the requeue was only late."""
    Clock(monkeypatch, retried_reads)
    second, third = commands / "second", commands / "third"
    put(commands, "scontrol", f"[ ! -e {third} ] || exit 0; [ ! -e {second} ] || : >{third}; : >{second}; {LOST}")
    put(commands, "squeue", squeue)
    SlurmScheduler().requeue("7")
    assert third.exists()


def test_a_requeue_that_may_be_late_is_no_refusal(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ran after the first request; nobody knows what became of the last one."""
    Clock(monkeypatch, retried_reads)
    put(commands, "scontrol", LOST)
    put(commands, "squeue", f"[ ! -e {commands}/seen ] || exit 1; : >{commands}/seen; echo 'RUNNING|None'")
    with pytest.raises(AnswerLost):
        SlurmScheduler().requeue("7")


def test_a_trial_without_an_answer_says_nothing_of_the_job(commands: Path) -> None:
    put(commands, "sbatch", "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with pytest.raises(QueryError, match="Unable to contact"):
        Slurm().trial([], os.environ)
    put(commands, "sbatch", "echo 'sbatch: error: allocation failure: Invalid qos' >&2; exit 1")
    assert Slurm().trial([], os.environ) == (None, "Invalid qos")


def test_all_commands_ask_the_cluster_of_slurm_clusters(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch and sacct by an option, as sacct does not read the variable, and sbatch's job would get it."""
    for name in ("sbatch", "sacct", "squeue", "scontrol", "scancel"):
        put(commands, name, f'echo "{name} ${{SLURM_CLUSTERS-}} $*" >>{commands}/asked; echo "7;other"')
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    environment = job_environment(os.environ, plan_of())
    assert "SLURM_CLUSTERS" not in {*environment.environment, *environment.dropped}
    slurm = Slurm()
    assert slurm.submit("script.sh", environment.environment, "--nice") == "7"
    slurm.ended_all(["7"])
    history("7", slurm)
    slurm.trial([], environment.environment)
    slurm.jobs()
    slurm.find("token", "name")
    slurm.requeue("7")
    slurm.cancel("7")
    asked = (commands / "asked").read_text().splitlines()
    assert len(asked) == 8
    for each in asked:
        command, *words = each.split()
        assert ("--clusters=other" if command in ("sbatch", "sacct") else "other") in words, each


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, None),
        ({"SLURM_CLUSTERS": "a"}, None),
        ({"SLURM_CLUSTERS": "a", "SBATCH_CLUSTERS": "a"}, None),
        ({"SLURM_CLUSTERS": "a,b"}, "SLURM_CLUSTERS=a,b: a job's number is that of one cluster"),
        ({"SLURM_CLUSTERS": "all"}, "SLURM_CLUSTERS=all: a job's number is that of one cluster"),
        ({"SBATCH_CLUSTERS": "b"}, "set SLURM_CLUSTERS=b"),
        ({"SLURM_CLUSTERS": "a", "SBATCH_CLUSTERS": "b"}, "set SLURM_CLUSTERS=b"),
    ],
)
def test_jobs_go_to_one_cluster_that_all_commands_follow(
    commands: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], words: str | None
) -> None:
    put(commands, "sbatch", "")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    problem = SlurmScheduler().problem()
    assert problem is None if words is None else words in (problem or "")


def test_jobs_are_counted_by_each_partition_and_qos_that_they_may_run_in() -> None:
    assert parse_counts("gpu|normal\ngpu,debug|normal\n\nlow|low\n") == {
        "": 3, "gpu": 2, "debug": 1, "normal": 2, "low": 1,
    }  # fmt: skip
