"""What the launcher finds out about a real Grid Engine, and resources that runs ask it for."""

from __future__ import annotations

import re

import yaml

from launcher.runs.directory import Run
from launcher.runs.events import Submitted, every
from launcher.runs.history import journal_events
from launcher.schedulers.sge.client import attributes
from tests.launch import Launcher
from tests.sge.sge_cluster import SgeCluster

FINE = ("workload=collective", "workload.entry=tests.chaos.faults:fine")
SLEEPS = ("workload=collective", "workload.entry=tests.chaos.faults:sleeps")


def job_of(run: Run) -> str:
    return next(event.job for event in every(journal_events(run), Submitted))


def test_a_profile_made_from_the_site_runs_and_agrees_with_it(launcher: Launcher) -> None:
    made = launcher("site", "init", "mine")
    assert made.returncode == 0, made.stderr
    profile = yaml.safe_load((launcher.config_dir / "cluster" / "mine.yaml").read_text())
    assert profile["queue"] == "all.q"
    assert (profile["parallel_environment"], profile["slots"]) == ("nodes", 1)
    assert profile["gpu_resource"] == "gpu"
    assert profile["limits"]["nodes"] == 2
    assert profile["limits"]["gpus_per_node"] == 2
    checked = " ".join(launcher("doctor", "--cluster", "mine").stdout.split())
    assert " agree with " in checked and "PROBLEM site" not in checked, checked
    done = launcher("workload=collective", "workload.entry=tests.chaos.faults:fine", "nodes=2", "wait=true",
                    "cluster=mine")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_doctor_names_the_scheduler_and_what_does_not_fit(launcher: Launcher) -> None:
    folder = launcher.config_dir / "cluster"
    folder.mkdir(parents=True)
    for name in ("nope", "nodes"):
        (folder / f"{name}.yaml").write_text(f"defaults: [sge, _self_]\nname: {name}\nparallel_environment: {name}\n")
    checked = launcher("doctor", "--cluster", "nope")
    assert "Grid Engine 8.1.9" in checked.stdout, checked.stdout + checked.stderr
    printed = " ".join(checked.stdout.split())
    assert "cluster.parallel_environment=nope: there is none of that name. Did you mean nodes?" in printed
    assert "there are fill, nodes, smp" in printed
    assert checked.returncode == 1
    fits = launcher("doctor", "--cluster", "nodes")
    assert "parallel environment nodes (allocation_rule 1): runs on any number of nodes" in " ".join(
        fits.stdout.split()
    )


def test_limits_of_a_queue_may_differ_by_host(launcher: Launcher, sge: SgeCluster) -> None:
    """Both the wall time and the parallel environment of the job are those of one of its hosts only."""
    common = {
        key: values[key] for values in [attributes(sge.run("qconf", "-sq", "all.q"))] for key in ("h_rt", "pe_list")
    }
    sge.run("qconf", "-rattr", "queue", "h_rt", "00:01:00,[node2=INFINITY]", "all.q")
    sge.run("qconf", "-rattr", "queue", "pe_list", "fill,[node2=smp]", "all.q")
    try:
        done = launcher.submit("time=2h", "cluster.parallel_environment=smp", "cluster.slots=2", *FINE)
        assert done.returncode == 0, done.stdout + done.stderr
        assert launcher("wait", "latest", "-q").returncode == 0
    finally:
        sge.run("qconf", "-purge", "queue", "h_rt,pe_list", "all.q@node2")
        for key, value in common.items():
            sge.run("qconf", "-rattr", "queue", key, value, "all.q")
    assert attributes(sge.run("qconf", "-sq", "all.q")).items() >= common.items()


def test_gpus_and_memory_are_asked_for_by_the_sites_resources(launcher: Launcher, sge: SgeCluster) -> None:
    asks = ("gpus_per_node=2", "cluster.gpu_resource=gpu", "mem=1G", "cluster.mem_resource=h_vmem", "wait=false",
            "workload.device=cpu", "procs_per_node=1", "cluster.parallel_environment=nodes", "nodes=2")  # fmt: skip
    done = launcher.submit(*SLEEPS, *asks)
    assert done.returncode == 0, done.stdout + done.stderr
    launcher.until(lambda: launcher.status()["state"] == "running", "it runs")
    first = launcher.last()
    described = sge.run("qstat", "-j", job_of(first))
    assert re.search(r"^hard resource_list:\s+\S*gpu=2", described, re.MULTILINE), described
    assert "h_vmem=1048576K" in described
    second = launcher.submit(*SLEEPS, *asks, "run_id=second")
    assert second.returncode == 0, second.stderr
    launcher.until(lambda: "gpu" in launcher("why", "second").stdout, "why names the resource that is taken")
    assert launcher.status()["state"] == "queued"
    launcher("cancel", "second", first.path.name)
