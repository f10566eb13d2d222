"""Why a job of Slurm waits: reasons in words, recorded answers, and which changes are tried."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from launcher.schedulers.base import QueryError, QueryTimeout
from launcher.schedulers.pending import Option, Waiting, Why, sooner
from launcher.schedulers.slurm import client, limits, pending
from launcher.schedulers.slurm.client import NodeCounts, Pending, Reservation
from launcher.schedulers.slurm.limits import Partition
from launcher.schedulers.slurm.pending import alone, in_words
from tests.unit.plans import plan_of, with_fields

# All reasons of job_state_reason.c (26.05), and what 22.05 printed besides.
RESOURCES = ("BB", "Billing", "Energy", "GRES", "License", "Unknown")
CODES = [
    "None", "Resources", "Priority", "Dependency", "DependencyNeverSatisfied", "BeginTime", "JobArrayTaskLimit",
    "JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "JobLaunchFailure", "Reservation", "ReservationDeleted",
    "ReqNodeNotAvail", "NodeDown", "BadConstraints", "Constraints", "PartitionConfig", "PartitionDown",
    "PartitionInactive", "PartitionNodeLimit", "PartitionTimeLimit", "AccountNotAllowed", "QOSNotAllowed",
    "InvalidAccount", "InvalidQOS", "Licenses", "MaxMemPerLimit", "QOSUsageThreshold", "DeadLine", "Prolog", "Cleaning",
    "SchedDefer", "FedJobLock", "BurstBufferResources", "BurstBufferStageIn", "BurstBufferOperation", "SystemFailure",
    "AssociationJobLimit", "AssociationResourceLimit", "AssociationTimeLimit", "AccountingPolicy", "QOSJobLimit",
    "QOSResourceLimit", "QOSTimeLimit",
    *(f"{scope}Grp{what}{minutes}" for scope in ("Assoc", "QOS") for what in RESOURCES
      for minutes in ("", "Minutes", "RunMinutes")),
    *(f"{scope}Max{what}{per}" for scope in ("Assoc", "QOS") for what in RESOURCES
      for per in ("MinutesPerJob", "PerJob", "PerNode")),
    *(f"QOSMax{what}PerUser" for what in RESOURCES), *(f"QOSMin{what}" for what in (*RESOURCES, "Memory", "Node")),
    *(f"Max{what}RunMinsPer{whose}" for what in (*RESOURCES, "Cpu", "Memory", "Node") for whose in ("Account", "User")),
    "Reservation_short_was_deleted", "ReservationInvalid", "Reservation_short_is_invalid", "MaxPoweredUpNodes",
    "MpiPortsBusy", "NvidiaImexChannels",
    "NonZeroExitCode", "RaisedSignal", "TimeLimit", "InactiveLimit", "OutOfMemory",  # of its attempt before
    *(f"Max{what}PerAccount" for what in (*RESOURCES, "Cpu", "Jobs", "Memory", "Node", "SubmitJobs")),
    *(f"{scope}Grp{rest}" for scope in ("Assoc", "QOS") for rest in (
        "CpuLimit", "CPUMinutesLimit", "CPURunMinutesLimit", "JobsLimit", "MemLimit", "NodeLimit", "NodeMinutes",
        "NodeRunMinutes", "SubmitJobsLimit", "WallLimit")),
    "AssocGrpMemMinutes", "AssocGrpMemRunMinutes", "QOSGrpMemoryMinutes", "QOSGrpMemoryRunMinutes",
    *(f"{scope}Max{rest}" for scope in ("Assoc", "QOS") for rest in (
        "CpuMinutesPerJobLimit", "CpuPerJobLimit", "CpuPerNode", "NodeMinutesPerJob", "NodePerJobLimit",
        "WallDurationPerJobLimit")),
    "AssocMaxJobsLimit", "AssocMaxMemPerJob", "AssocMaxMemPerNode", "AssocMaxMemMinutesPerJob",
    "AssocMaxSubmitJobLimit", "QOSMaxJobsPerUserLimit",
    "QOSMaxCpuPerUserLimit", "QOSMaxNodePerUserLimit", "QOSMaxMemoryPerUser", "QOSMaxSubmitJobPerUserLimit",
    "QOSMinCpuNotSatisfied", "QOSMaxMemoryPerJob", "QOSMaxMemoryPerNode", "QOSMaxMemoryMinutesPerJob",
    "ReqNodeNotAvail, Reserved for maintenance", "ReqNodeNotAvail,_Reserved_for_maintenance",
    "ReqNodeNotAvail, May be reserved for other job", "ReqNodeNotAvail, UnavailableNodes:node[1-2]",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
    # slurm_errno.c of 26.05: a job that no part of the topology can take
    "Required_nodes_lack_available_resources", "Required_nodes_do_not_fit_topology",
    "No_suitable_topology_unit_found", "No_suitable_topology_unit_found_for_segment",
    "Insufficient_resources_in_topology_unit", "No_available_nodes_in_topology",
    "Weight-based_selection_could_not_satisfy_request_within_topology_unit",
    "Exceeded_maximum_node_limit_during_topology_allocation",
    "launch_failed_requeued_held", "launch failed requeued held", "job requeued in held state",
    "user env retrieval failed requeued held", "Job's account not permitted to use this partition (gpu allows x)",
]  # fmt: skip

SHOWN = """\
JobId=2 JobName=collective
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901758 Nice=0 Account=root QOS=normal
   JobState=PENDING Reason=Resources Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A
   SubmitTime=2026-11-21T21:05:00 EligibleTime=2026-11-21T21:05:00
   AccrueTime=2026-11-21T21:05:00
   StartTime=2026-11-21T21:34:59 EndTime=2026-11-21T22:34:59 Deadline=N/A
   Partition=gpu AllocNode:Sid=localhost:6107
   ReqNodeList=(null) ExcNodeList=(null)
   NumNodes=4-4 NumCPUs=16 NumTasks=4 CPUs/Task=4 ReqB:S:C:T=0:0:*:*
   TRES=cpu=16,mem=24000M,node=4,billing=16
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Comment=launcher-3add361977c0d8c1ca76 
"""  # noqa: W291  as scontrol prints it
PARTITIONS = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=NONE Hidden=NO MaxNodes=UNLIMITED MaxTime=02:00:00 MinNodes=0 Nodes=node[1-4] PriorityTier=1 "
    "RootOnly=NO State=UP TotalCPUs=16 TotalNodes=4\n"
    "PartitionName=debug AllowAccounts=a,b DenyAccounts=c Default=NO QoS=part MaxNodes=2 MaxTime=1-00:00:00 MinNodes=1 "
    "Nodes=node[1-2] PriorityTier=1 RootOnly=NO State=DOWN TotalCPUs=8 TotalNodes=2\n"
)
NODES = "gpu*|1|planned|(null)|node4|none\ngpu*|2|allocated|a100,ib|node[1-2]|none\ngpu*|1|down*|a100|node3|bad | GPU\n"
RESERVATIONS = (
    "ReservationName=maint StartTime=2026-11-21T21:48:12 EndTime=2026-11-21T22:48:12 Duration=01:00:00 "
    "Nodes=node[1-4] NodeCnt=4 Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES,ALL_NODES Users=root "
    "Accounts=(null) State=INACTIVE\n"
)
NOW = time.mktime((2026, 11, 21, 21, 8, 0, 0, 0, -1))


def test_every_reason_that_slurm_documents_has_words() -> None:
    found = {code: in_words(code) for code in CODES}
    without = {code for code, reason in found.items() if reason.kind is Why.UNKNOWN or not reason.words}
    assert without == set()
    assert [code for code, reason in found.items() if "{what}" in reason.words] == []


@pytest.mark.parametrize(
    ("code", "words", "column"),
    [
        ("QOSMaxJobsPerUserLimit", "limit of jobs that its QOS gives one user", "MaxJobsPU"),
        ("QOSMaxSubmitJobPerUserLimit", "submitted jobs", "MaxSubmitPU"),
        ("QOSMaxCpuPerUserLimit", "CPUs", "MaxTRESPU"),
        ("QOSMaxNodePerJobLimit", "more nodes than its QOS gives one job, so it will never start", "MaxTRES"),
        ("QOSMaxWallDurationPerJobLimit", "wall time", "MaxWall"),
        ("QOSMaxGRESPerNode", "on one node", "MaxTRESPerNode"),
        ("QOSGrpNodeLimit", "all jobs of its QOS together", "GrpTRES"),
        ("QOSMinGRES", "less than its QOS wants", "MinTRES"),
        ("AssocGrpCPURunMinutesLimit", "minutes of CPUs of running jobs", "GrpTRESRunMins"),
        ("AssocGrpGRESMinutes", "minutes of GPUs", "GrpTRESMins"),
        ("AssocGrpJobsLimit", "your account (association)", "GrpJobs"),
        ("AssocMaxJobsLimit", "one user", "MaxJobs"),
        ("AssocMaxCpuMinutesPerJobLimit", "minutes of CPUs", "MaxTRESMins"),
        ("MaxCpuRunMinsPerUser", "minutes of CPUs of running jobs that its QOS gives one user", "MaxTRESRunMinsPU"),
        ("MaxGRESRunMinsPerAccount", "minutes of GPUs (or other GRES) of running jobs", "MaxTRESRunMinsPA"),
        ("MaxNodePerAccount", "one account", "MaxTRESPA"),
        ("MaxJobsPerAccount", "one account", "MaxJobsPA"),
    ],
)
def test_a_limit_says_what_it_limits_and_where_its_value_is(code: str, words: str, column: str) -> None:
    reason = in_words(code)
    assert words in reason.words
    assert reason.column == column
    assert reason.scope == ("association" if code.startswith("Assoc") else "qos")


@pytest.mark.parametrize(
    ("code", "never", "of_nodes"),
    [
        ("PartitionTimeLimit", True, False), ("BadConstraints", True, False), ("ReservationDeleted", True, False),
        ("DependencyNeverSatisfied", True, False), ("QOSMaxNodePerJobLimit", True, False),
        ("PartitionNodeLimit", False, False), ("Resources", False, False), ("MpiPortsBusy", False, True),
    ],
)  # fmt: skip
def test_what_never_starts_is_known_by_a_field(code: str, never: bool, of_nodes: bool) -> None:
    reason = in_words(code)
    assert (reason.never, reason.of_nodes) == (never, of_nodes)
    assert reason.words.endswith(", so it will never start") is never


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    assert in_words("Something_new").words == "Slurm says Something new"


def test_nodes_that_are_not_available_are_named() -> None:
    assert "node[1-2]" in in_words("ReqNodeNotAvail, UnavailableNodes:node[1-2]").words


def test_a_job_is_read_from_scontrol() -> None:
    job = client.parse_pending(SHOWN)
    assert (job.id, job.state, job.reason, job.partition) == ("2", "PENDING", "Resources", "gpu")
    assert (job.nodes, job.cpus, job.time, job.account, job.qos) == (4, 16, 3600, "root", "normal")
    assert (job.features, job.dependency, job.throttle) == ("", "", None)
    assert job.starts == time.mktime((2026, 11, 21, 21, 34, 59, 0, 0, -1))
    with pytest.raises(QueryError, match="could not be read"):
        client.parse_pending("slurm_load_jobs error")


def test_of_an_array_the_first_record_counts() -> None:
    text = (
        "JobId=71 ArrayJobId=71 ArrayTaskId=1-3%1 ArrayTaskThrottle=1\n   JobState=PENDING Reason=JobArrayTaskLimit\n"
    )
    job = client.parse_pending(text + "\nJobId=72 ArrayJobId=71\n   JobState=RUNNING Reason=None\n")
    assert (job.id, job.throttle, job.reason) == ("71", 1, "JobArrayTaskLimit")


def test_partitions_nodes_and_reservations_are_read() -> None:
    gpu, debug = limits.parse_partition_records(PARTITIONS)
    assert gpu == Partition("gpu", True, 7200, None, (), "UP", 0, 4, 16, tier=1)
    assert debug == Partition("debug", False, 86400, 2, (), "DOWN", 1, 2, 8, ("a", "b"), ("c",), "part", 1)
    assert client.parse_nodes(NODES) == [
        NodeCounts("gpu", 1, "planned", (), "node4"),
        NodeCounts("gpu", 2, "allocated", ("a100", "ib"), "node[1-2]"),
        NodeCounts("gpu", 1, "down*", ("a100",), "node3", "bad | GPU"),
    ]
    (window,) = client.parse_reservations(RESERVATIONS)
    assert (window.name, window.maintenance, window.nodes, window.who) == ("maint", True, "node[1-4]", "root")
    assert client.parse_reservations("No reservations in the system\n") == []


@pytest.mark.parametrize(
    ("text", "trial"),
    [
        (
            "sbatch: Job 4 to start at 2026-11-21T21:08:00 using 16 processors on nodes node[1-4] in partition gpu\n",
            (NOW, ""),
        ),
        (
            "allocation failure: Requested node configuration is not available\n",
            (None, "Requested node configuration is not available"),
        ),
        ("sbatch: error: no such x\nsbatch: error: allocation failure: Invalid", (None, "Invalid")),
        ("", (None, "sbatch did not say why")),
    ],
)  # fmt: skip
def test_a_trial_is_read(text: str, trial: tuple[float | None, str]) -> None:
    assert client.parse_trial(text) == trial


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("few|1\n", "QOS few: MaxJobsPU=1"),
        ("few|\n", ""),
        ("root|me|\nroot||cpu=4\n", "QOS root: MaxJobsPU=cpu=4"),
        ("root|me|7\n", "QOS root, user me: MaxJobsPU=7"),
        ("", ""),
    ],
)
def test_a_limit_of_sacctmgr_is_told_with_its_owner(text: str, told: str) -> None:
    assert client.parse_limit(text, "QOS", "MaxJobsPU") == told


GPU = Partition("gpu", True, 7200, None, (), "UP", 0, 4, 16, tier=1)
DEBUG = Partition("debug", False, 600, None, (), "UP", 0, 2, 8, tier=1)
LONG = Partition("long", False, None, None, (), "UP", 0, 4, 16, tier=1)
URGENT = Partition("urgent", False, 7200, None, (), "UP", 0, 4, 16, tier=9)
IDLE = [NodeCounts(name, 3, "idle", ("a100",)) for name in ("gpu", "long", "urgent")] + [NodeCounts("debug", 2, "idle")]
BUSY = [NodeCounts(name, 4, "allocated") for name in ("gpu", "long", "urgent")]
WINDOW = Reservation("maint", NOW + 2400, NOW + 6000, flags=("MAINT",))


@pytest.mark.parametrize(
    ("keys", "partitions", "nodes", "windows", "tried"),
    [
        # 3 of 4 nodes are idle; of none idle, half
        ({"nodes": 4}, [GPU], IDLE, [], ["nodes=3", "time=00:30:00"]),
        ({"nodes": 4}, [GPU], BUSY, [], ["nodes=2", "time=00:30:00"]),
        ({"nodes": 1}, [GPU], BUSY, [], ["time=00:30:00"]),
        # the run's own least
        ({"nodes": 4, "min_nodes": 3}, [GPU], BUSY, [], ["time=00:30:00"]),
        # other partitions: debug is too short, urgent is dearer than long, nobody waits in a queue for another one
        ({"nodes": 3}, [GPU, DEBUG, URGENT, LONG], IDLE, [],
         ["cluster.partition=long", "cluster.partition=urgent", "time=00:30:00"]),
        ({"nodes": 4}, [GPU, LONG], BUSY, [], ["nodes=2", "time=00:30:00"]),
        ({"nodes": 2, "time": "10m"}, [GPU, DEBUG], IDLE, [], ["cluster.partition=debug", "time=00:05:00"]),
        ({"nodes": 3}, [GPU, replace(LONG, state="DOWN")], IDLE, [], ["time=00:30:00"]),
        ({"nodes": 3}, [GPU, replace(LONG, accounts=("x",))], IDLE, [], ["time=00:30:00"]),
        ({"nodes": 3}, [GPU, replace(LONG, accounts=("mine",))], IDLE, [],
         ["cluster.partition=long", "time=00:30:00"]),
        ({"nodes": 3}, [GPU, replace(LONG, denied=("mine",))], IDLE, [], ["time=00:30:00"]),
        ({"nodes": 3}, [GPU, replace(LONG, max_nodes=2)], IDLE, [], ["time=00:30:00"]),
        # a maintenance window: as long as there is time before it
        ({"nodes": 2}, [GPU], BUSY, [WINDOW], ["time=00:39:00", "nodes=1"]),
        ({"nodes": 2, "time": "30m"}, [GPU], BUSY, [WINDOW], ["nodes=1", "time=00:15:00"]),
        # more than the partition allows
        ({"nodes": 1, "time": "3h"}, [GPU], BUSY, [], ["time=02:00:00"]),
        ({"nodes": 4, "time": "3h"}, [GPU], BUSY, [], ["time=02:00:00"]),  # not two nodes for three hours
        ({"nodes": 3, "time": "3h", "cluster": {"exclude": "node3"}}, [GPU, LONG], IDLE, [],
         ["time=02:00:00", "cluster.partition=long"]),
        # fewer nodes than the partition gives
        ({"nodes": 4}, [replace(GPU, min_nodes=3)], BUSY, [], ["time=00:30:00"]),
        # what it was kept from
        ({"nodes": 1, "cluster": {"exclude": "node3", "constraint": "a100"}}, [GPU], IDLE, [],
         ["cluster.exclude=null", "cluster.constraint=null", "time=00:30:00"]),
        ({"nodes": 1, "cluster": {"reservation": "course"}}, [GPU], BUSY, [],
         ["cluster.reservation=null", "time=00:30:00"]),
    ],
)  # fmt: skip
def test_changes_begin_with_the_smallest(
    keys: dict[str, Any], partitions: list[Partition], nodes: list[NodeCounts], windows: list[Reservation],
    tried: list[str],
) -> None:  # fmt: skip
    plan = plan_of(**keys)
    job = Pending("1", "PENDING", "Resources", partition="gpu", nodes=plan.nodes, account="mine")
    found = pending.changes(plan, job, partitions, nodes, windows, now=NOW)
    assert [" ".join(each.overrides) for each in found] == tried


def test_fewer_nodes_are_not_offered_below_what_the_user_or_the_workload_wants() -> None:
    plan = plan_of(nodes=4)
    job = Pending("1", "PENDING", "Resources", partition="gpu", nodes=4)
    for given, fixed in ((plan, True), (with_fields(plan, workload={"params": {"min_ranks": 4}}), False)):
        found = pending.changes(given, job, [GPU], BUSY, [], now=NOW, fixed_nodes=fixed)
        assert not any("nodes=" in each.overrides[0] for each in found)


def test_a_trial_asks_for_what_the_script_asks_for() -> None:
    plan = plan_of(
        nodes=2, cpus_per_proc=3, time="90m", cluster={"partition": "gpu", "directives": {"licenses": "a:1"}}
    )
    options = pending.arguments(plan)
    for option in ("--nodes=2", "--cpus-per-task=3", "--time=01:30:00", "--partition=gpu", "--licenses=a:1"):
        assert option in options
    assert not any(option.startswith(("--output", "--array", "--comment")) for option in options)


def test_nodes_are_counted_by_state_and_broken_ones_are_named() -> None:
    nodes = client.parse_nodes(NODES)
    assert pending.node_lines(nodes, "gpu", "") == (
        "partition gpu: 4 nodes: 2 allocated, 1 planned, 1 down",
        "node3 is down: bad | GPU",
    )
    with_feature = pending.usable(nodes, ["gpu"], "a100&ib")
    assert [each.names for each in with_feature] == ["node[1-2]"]
    assert pending.node_lines([], "gpu", "h100") == ("partition gpu has no nodes with h100",)


@pytest.mark.parametrize(
    ("before", "after", "better"),
    [
        (None, None, False),
        (None, NOW + 9000, True),
        (NOW + 600, None, False),
        (NOW + 600, NOW, True),
        (NOW + 600, NOW + 550, False),  # less than a minute
        (NOW + 6000, NOW + 5500, False),  # less than a tenth
        (NOW + 6000, NOW + 5300, True),
    ],
)
def test_a_change_is_worth_it_when_it_starts_clearly_sooner(
    before: float | None, after: float | None, better: bool
) -> None:
    tried = (Option((), before), Option(("nodes=1",), after))
    assert sooner(tried, NOW) == (tried[1:] if better else ())


def test_a_trial_does_not_wait_for_the_job_that_it_replaces() -> None:
    """Recorded: 4 nodes for an hour at the end of the queue, of which the job itself is an hour."""
    job = Pending("1", "PENDING", "Resources", partition="gpu", nodes=4, cpus=16, time=3600)
    tried = (Option(("nodes=2",), NOW + 5400), Option(("cluster.partition=x",), NOW + 5400),
             Option(("nodes=1",), NOW + 60))  # fmt: skip
    starts = [each.starts for each in pending.corrected(tried, job, [GPU], [], NOW)]
    assert starts == [NOW + 1800, NOW + 5400, NOW + 60]
    window = Reservation("maint", NOW + 900, NOW + 4500)
    starts = [each.starts for each in pending.corrected(tried, job, [GPU], [window], NOW)]
    assert starts[0] == NOW + 4500  # not into the window


class Recorded(client.Slurm):
    """Answers from records."""

    answers: Mapping[str, str] = {}
    asked: int = 0

    def run(self, *command: str) -> str:
        vars(self)["asked"] += 1
        for words, text in self.answers.items():
            if words in " ".join(command):
                return text
        raise QueryTimeout(f"{command[0]} did not answer within 10 s")

    def trial(self, options: object, environment: object) -> tuple[float | None, str]:
        vars(self)["asked"] += 1
        return NOW if "--nodes=1" in options else NOW + 5400, ""  # type: ignore[operator]


def explained(trials: int = 1, **answers: str) -> tuple[pending.Explanation, Recorded]:
    told = {"show job": SHOWN, "show partition": PARTITIONS, "sinfo": NODES, "show reservation": RESERVATIONS}
    resources = Recorded(answers={**told, **answers})
    plan = plan_of(nodes=4, cpus_per_proc=4)
    return pending.explain(Waiting("run-1", "2", plan, "launcher", trials=trials), resources), resources


def test_a_job_that_waits_for_nodes_gets_the_smallest_change_that_starts_sooner() -> None:
    found, resources = explained()
    assert "nodes it asks for are in use" in found.facts.meaning
    assert found.code == "Resources"
    assert [each.overrides for each in found.tried][:2] == [(), ("nodes=1",)]
    assert found.options[0].overrides == ("nodes=1",)
    assert found.commands == ("launcher cancel run-1", "launcher resume run-1 nodes=1")
    assert "node3 is down: bad | GPU" in found.nodes
    assert resources.asked <= 5


def test_one_change_is_tried_and_more_on_request() -> None:
    for trials, starts in ((1, [NOW, None]), (2, [NOW, NOW + 5400])):
        found, _ = explained(trials)
        assert [each.overrides for each in found.tried[1:]] == [("nodes=1",), ("time=00:30:00",)]
        assert [each.starts for each in found.tried[1:]] == starts
        assert ("--trials 2" in found.notes[-1]) == (trials == 1)


def test_a_job_that_slurm_has_not_looked_at_and_that_fits_is_offered_no_changes() -> None:
    new = SHOWN.replace("Reason=Resources", "Reason=None")
    free = NODES.replace("allocated", "idle").replace("planned", "idle").replace("down", "idle")
    assert explained(**{"show job": new, "sinfo": free})[0].tried == ()
    assert explained(**{"show job": new})[0].tried


def test_what_is_not_answered_is_said_and_the_rest_is_told() -> None:
    told = {"show job": SHOWN}
    resources = Recorded(answers=told)
    found = pending.explain(Waiting("run-1", "2", plan_of(nodes=4), "launcher"), resources)
    assert "in use" in found.facts.meaning
    assert [note for note in found.notes if "did not answer" in note] == [
        "not answered: scontrol did not answer within 10 s"
    ]
    assert resources.asked == 2  # nobody waits for a third one
    with pytest.raises(QueryError):
        pending.explain(Waiting("run-1", "2", plan_of(), "launcher"), Recorded())


@pytest.mark.parametrize(
    ("reason", "answers", "limit"),
    [
        ("QOSMaxJobsPerUserLimit", {"show qos name=normal": "normal|2\n"}, "QOS normal: MaxJobsPU=2"),
        ("AssocGrpNodeLimit", {"show associations": "root|somebody|node=9\nroot||node=1\n"},
         "account root: GrpTRES=node=1"),
        ("PartitionTimeLimit", {"show partition": PARTITIONS.replace("02:00:00", "00:30:00")},
         "partition gpu: MaxTime=00:30:00, and it asks for 01:00:00"),
        ("PartitionNodeLimit", {"show partition": PARTITIONS.replace("MaxNodes=UNLIMITED", "MaxNodes=3")},
         "partition gpu: MaxNodes=3, and it asks for 4"),
        ("PartitionDown", {"show partition": PARTITIONS.replace("State=UP", "State=DOWN")},
         "partition gpu: State=DOWN"),
    ],
)  # fmt: skip
def test_the_limit_that_binds_has_its_value_and_where_it_is_set(
    reason: str, answers: dict[str, str], limit: str
) -> None:
    found, _ = explained(**{"show job": SHOWN.replace("Reason=Resources", f"Reason={reason}"), **answers})
    assert limit in found.limits


@pytest.mark.parametrize(
    ("code", "value", "never"),
    [
        ("QOSGrpNodeLimit", "cpu=64,node=3", True),
        ("QOSGrpNodeLimit", "cpu=64,node=4", False),
        ("QOSGrpCpuLimit", "cpu=15,gres/gpu=1", True),
        ("QOSGrpCpuLimit", "cpu=16,gres/gpu=1", False),
        ("MaxNodePerAccount", "node=3", True),
        ("AssocGrpCPURunMinutesLimit", "cpu=959", True),  # 16 CPUs for an hour
        ("AssocGrpCPURunMinutesLimit", "cpu=960", False),
        ("AssocGrpCPUMinutesLimit", "cpu=959", False),  # what was used decays
        ("QOSGrpCpuLimit", "cpu=15 and of its partition's QOS cpu=16", False),
        ("QOSMinCpuNotSatisfied", "cpu=1,node=5", False),
        ("QOSMaxJobsPerUserLimit", "2", False),
    ],
)
def test_a_job_that_exceeds_a_limit_by_itself_never_starts(code: str, value: str, never: bool) -> None:
    """Slurm takes it unless the QOS has DenyOnLimit, and waits for other jobs to end, of which there need be none."""
    job = Pending("1", "PENDING", code, nodes=4, cpus=16, time=3600)
    reason = in_words(code)
    found = alone(job, reason, (f"QOS q: {reason.column}={value}",))
    assert (found.never, "so it will never start" in found.words) == (never, never)
    assert found.do == ("cancel it, and resume it with less" if never else reason.do)


def test_a_limit_that_the_jobs_qos_lifts_is_not_named() -> None:
    asks = {
        "show job": SHOWN.replace("QOS=normal", "QOS=long"),
        "show partition": PARTITIONS.replace("02:00:00", "00:30:00"),
        "show config": "AccountingStorageEnforce = limits,qos\nAccountingStorageType = accounting_storage/slurmdbd\n",
    }
    found, _ = explained(**asks, **{"show qos format": "normal|||\nlong|PartitionTimeLimit|1-00:00:00|\n"})
    assert not [limit for limit in found.limits if "MaxTime" in limit]
    found, _ = explained(**asks, **{"show qos format": "normal|||\nlong|PartitionTimeLimit|00:45:00|\n"})
    assert "partition gpu: MaxTime=00:45:00, and it asks for 01:00:00" in found.limits


def test_no_qos_is_asked_for_a_minimum_that_none_lifts() -> None:
    found, _ = explained(**{"show partition": PARTITIONS.replace("MinNodes=0", "MinNodes=5")})
    assert "partition gpu: MinNodes=5, and it asks for 4" in found.limits
    assert not [note for note in found.notes if "not answered" in note]


def test_what_never_starts_is_not_said_to_start() -> None:
    """A trial accepts a time that is more than the partition allows."""
    found, _ = explained(**{"show job": SHOWN.replace("Reason=Resources", "Reason=PartitionTimeLimit")})
    assert found.tried[0].starts is None
    assert found.options


@pytest.mark.parametrize(
    ("reason", "waited", "words"),
    [
        ("", 10, "Slurm has not looked at it yet"),
        ("", 299, "Slurm has not looked at it yet"),
        ("", 301, "no reason since Sat 21 Nov 21:08:00: its queue is long, or there is no such account (nope) or QOS"),
        ("Priority", 10_000, "jobs of higher priority are in front of it"),
    ],
)  # fmt: skip
def test_a_job_that_never_gets_a_reason_is_not_just_new(reason: str, waited: int, words: str) -> None:
    """24.05 without accounting, and an account that does not exist: `Reason=None` for ever."""
    job = Pending("1", "PENDING", reason, submitted=NOW, eligible=NOW, account="nope")
    assert words in pending.reason_of(job, NOW + waited).words


def test_time_before_a_job_may_begin_does_not_count() -> None:
    job = Pending("1", "PENDING", "", submitted=NOW, eligible=NOW + 9000)
    assert pending.reason_of(job, NOW + 9100) == in_words("")


def test_a_held_job_is_not_offered_changes() -> None:
    found, resources = explained(**{"show job": SHOWN.replace("Reason=Resources", "Reason=JobHeldUser")})
    assert found.do == "`scontrol release 2` lets it go on"
    assert found.tried == ()
    assert resources.asked <= 2


def test_a_point_that_its_arrays_throttle_holds_back_is_told_so() -> None:
    job = SHOWN.replace("Reason=Resources", "ArrayTaskThrottle=1 Reason=JobArrayTaskLimit")
    found = pending.explain(Waiting("lr-1/2", "2", plan_of(), "launcher"), Recorded(answers={"show job": job}))
    assert (found.why, found.tried) == (Why.THROTTLED, ())
    assert found.limits == ("its array: 1 at once (ArrayTaskThrottle, sweep.parallelism)",)
