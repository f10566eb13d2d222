"""What commands print with --json about the runs in runs/, while schedulers answer as in answers/."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from launcher import Env
from launcher.checkpoint.checkpointer import Checkpointer
from launcher.cli import doctor
from launcher.runs import event_files
from launcher.runs.directory import token_of
from launcher.schedulers import site as findings
from tests.golden.formats.conftest import Site
from tests.golden.golden import check, check_json

OVER = [
    "exception", "out-of-gpu-memory", "gpu-error", "shared-memory", "disk-full", "limit", "import-error",
    "file-missing", "config-error", "out-of-memory", "killed", "exited", "wall-time", "time-limit", "cancelled",
    "cancelled-early", "stopped", "node-lost", "bad-node", "connection-lost", "collective-timeout",
    "rendezvous-timeout", "hang", "setup-failed", "no-progress", "never-started", "no-words", "lost", "done",
    "told-to-stop", "pruned", "exited-early", "no-gpu", "damaged-checkpoint",
]  # fmt: skip


def events_are_whole(run: Path) -> None:
    """Checks that readers skip no event of a recorded run."""
    for path in run.rglob("*.jsonl"):
        assert event_files.problems(path) == []


@pytest.mark.parametrize("name", OVER)
def test_a_run_that_is_over(site: Site, name: str) -> None:
    site.answer("slurm", "never-started" if name == "never-started" else "forgotten")
    run = site.unpack(name)
    events_are_whole(run)
    check_json("post-mortem", name, site.json_output("post-mortem", name, "--json"))
    check_json("status", name, site.json_output("status", name, "--json"))
    check_json("why", name, site.json_output("why", name, "--json"))


def check_all(site: Site, name: str, run: str) -> None:
    """Checks the output of three commands about a run."""
    for command in ("status", "why", "post-mortem"):
        check_json(command, name, site.json_output(command, run, "--json"))


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("queued", "PENDING", "Priority"), ("running", "RUNNING", "None"), ("smaller", "RUNNING", "None"),
        ("suspended", "SUSPENDED", "None"), ("unconfirmed", "RUNNING", "None"), ("unsubmitted", "RUNNING", "None"),
        ("unknown", "NEW_STATE", "None"), ("preempted", "PENDING", "BeginTime"), ("requeued", "PENDING", "BeginTime"),
    ],
)  # fmt: skip
def test_a_run_that_is_not_over(site: Site, name: str, state: str, reason: str) -> None:
    if state == "PENDING":
        site.answer("slurm", "pending", REASON=reason)
    else:
        site.answer("slurm", "queue", STATE=state, REASON=reason, LEFT="30:00")
    events_are_whole(site.unpack(name))
    check_all(site, name, name)


@pytest.mark.parametrize(
    ("name", "run", "state", "reason"),
    [
        ("accounting-time-limit", "lost", "TIMEOUT", "TimeLimit"),
        ("accounting-out-of-memory", "killed", "OUT_OF_MEMORY", "None"),
        ("accounting-cancelled", "told-to-stop", "CANCELLED by 0", "None"),
        ("accounting-preempted", "lost", "PREEMPTED", "None"),
    ],
)
def test_what_accounting_adds(site: Site, name: str, run: str, state: str, reason: str) -> None:
    site.answer("slurm", "accounting", STATE=state, REASON=reason)
    site.unpack(run)
    check_all(site, name, run)


def test_a_scheduler_that_does_not_answer(site: Site) -> None:
    site.answer("slurm", "down")
    site.unpack("lost")
    check_all(site, "unanswered", "lost")


@pytest.mark.parametrize("number", [0, 1])
def test_one_of_several_attempts(site: Site, number: int) -> None:
    site.answer("slurm", "forgotten")
    site.unpack("preempted")
    text = site.json_output("post-mortem", "preempted", "--json", "--attempt", str(number))
    check_json("post-mortem", f"attempt-{number}", text)


def test_a_run_of_this_machine_that_is_gone(site: Site) -> None:
    site.unpack("local-lost")
    check_all(site, "local-lost", "local-lost")


def test_a_job_of_pbs_that_is_over(site: Site) -> None:
    site.answer("pbs", "pbs-history")
    site.unpack("pbs-time-limit")
    check_all(site, "pbs-time-limit", "pbs-time-limit")


def test_all_runs(site: Site) -> None:
    site.answer("slurm", "orphan", TOKEN=token_of(str(site.runs / "gone")))
    for name in ("done", "exception", "damaged"):
        site.unpack(name)
    check_json("status", "all", site.json_output("status", "--all", "--json"))
    check_json("status", "failed", site.json_output("status", "--failed", "--json"))


# -- why a job waits


@pytest.mark.parametrize(
    "reason",
    [
        "Resources", "Priority", "QOSMaxJobsPerUserLimit", "AssocGrpNodeLimit", "JobHeldUser", "Dependency",
        "DependencyNeverSatisfied", "ReqNodeNotAvail,_UnavailableNodes:node3", "PartitionTimeLimit", "BeginTime",
        "Something_new",
    ],
)  # fmt: skip
def test_why_a_job_of_slurm_waits(site: Site, reason: str) -> None:
    site.answer("slurm", "pending", REASON=reason)
    site.unpack("queued")
    check_json("why", f"slurm-{reason.partition(',')[0]}", site.json_output("why", "queued", "--json"))


@pytest.mark.parametrize(
    ("name", "letter", "hold", "comment"),
    [
        ("room", "Q", "n", "Not Running: Not enough free nodes available"),
        ("never", "Q", "n", "Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 16 T: 16)"),
        ("limit", "Q", "n", "Not Running: User has reached queue workq running job limit."),
        ("reservation", "Q", "n", "Not Running: Job would interfere with a confirmed reservation"),
        ("held", "H", "u", "Job held by root on Sun Nov 22 11:00:00 2026"),
        ("unseen", "Q", "n", ""), ("new", "Q", "n", "Not Running: Something new"),
    ],
)  # fmt: skip
def test_why_a_job_of_pbs_waits(site: Site, name: str, letter: str, hold: str, comment: str) -> None:
    site.answer("pbs", "pbs-waits", LETTER=letter, HOLD=hold, COMMENT=comment)
    site.unpack("pbs-queued")
    check_json("why", f"pbs-{name}", site.json_output("why", "pbs-queued", "--json"))


# -- sweeps


@pytest.mark.parametrize(("name", "answer"), [("sweep-over", "forgotten"), ("sweep-runs", "array")])
def test_a_sweep(site: Site, name: str, answer: str) -> None:
    site.answer("slurm", answer)
    events_are_whole(site.unpack(name))
    check_json("sweep-status", name, site.json_output("sweep", "status", name, "--json"))
    check_json("sweep-results", name, site.json_output("sweep", "results", name, "--json"))
    check_json("status-of-a-sweep", name, site.json_output("status", name, "--json"))
    check_json("sweeps", name, site.json_output("sweep", "status", "--json"))
    check_json("why", f"point-{name}", site.json_output("why", f"{name}/1", "--json"))


# -- checkpoints, and this machine


def test_checkpoints(site: Site) -> None:
    site.answer("slurm", "forgotten")
    run = site.unpack("exited")
    env = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
    one = Checkpointer(run / "checkpoints", env, identity={"model": "linear"})
    for step in (100, 200, 300):
        state = {"model": {"weight": torch.zeros(4, 2), "bias": torch.ones(2)}, "lr": 0.5}
        one.save(step, state, metrics={"accuracy": step / 1000}, extra={"epoch": 1}, wait=True)
    one.close()
    (run / "checkpoints/step-000000200/manifest.json").write_text("{")
    manifest = (run / "checkpoints/step-000000300/manifest.json").read_text()
    check("formats/written/checkpoint/manifest.json", _steady(manifest))
    check_json("checkpoint-list", "exited", _steady(site.json_output("checkpoint", "list", "exited", "--json")))
    check_json("checkpoint-inspect", "exited", _steady(site.json_output("checkpoint", "inspect", "exited", "--json")))


def _steady(text: str) -> str:
    """Returns a manifest as text, with placeholders for versions, checksums and random values."""
    text = re.sub(r'"(torch|launcher|lineage|parent)": "[^"]*"', r'"\1": "<\1>"', text)
    text = re.sub(r'"crc32": \[[^]]*\]', '"crc32": [1234]', text)
    return re.sub(r'"(size|bytes|age|time|crc32)": -?[\d.]+', r'"\1": 1234', text)


def test_doctor(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds differs from machine to machine: only the form is compared."""
    found = [
        findings.ok("python", "3.12"),
        findings.warning("gpus", "none", "x"),
        findings.problem("runs_dir", "full", "y"),
    ]
    monkeypatch.setattr(doctor, "_all", lambda _: iter(found))
    values = json.loads(site.json_output("doctor", "--json"))
    check_json("doctor", "findings", json.dumps(values | {"launcher": "<launcher>", "python": "<python>"}))


# -- what commands write


@pytest.mark.parametrize("name", ["cancel", "cancel-fails"])
def test_a_cancellation_in_the_journal(site: Site, name: str) -> None:
    site.answer("slurm", name)
    run = site.unpack("running")
    site.call("cancel", "running")
    check(f"formats/written/journals/{name}.jsonl", site.neutral((run / "journal.jsonl").read_text()))


def test_a_resumption_in_the_journal(site: Site) -> None:
    site.answer("slurm", "submission")
    run = site.unpack("exited")
    code, text = site.call("resume", "exited", "wait=false")
    assert code == 0, text
    check("formats/written/journals/resumed.jsonl", site.neutral((run / "journal.jsonl").read_text()))


def test_a_sweep_that_is_refused(site: Site) -> None:
    site.answer("slurm", "refused")
    (site.runs / "s").mkdir(mode=0o700, parents=True)  # a folder of its own would be removed again
    site.call("-m", "workload=p2p", "nodes=2", "seed=1,2", "cluster=slurm", "cluster.check=false", "sweep.id=s",
              "env.snapshot=false")  # fmt: skip
    check("formats/written/journals/refused.jsonl", site.neutral((site.runs / "s/journal.jsonl").read_text()))
