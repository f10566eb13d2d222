"""Points are checked as a whole, and each is handed over once: against stand-ins for Slurm's commands."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose_points import space_of
from launcher.config.schema import BestIs, Checkpoint, Limits, ResumeHow, SearchBudget
from launcher.config.search_space import Goal, Method
from launcher.environment import snapshot
from launcher.errors import ConfigError, SubmissionError
from launcher.monitoring import run_status
from launcher.monitoring.sweep_status import point_statuses
from launcher.runs import events as kinds
from launcher.runs import lookup
from launcher.runs.directory import Run
from launcher.runs.history import read_history
from launcher.runs.point_claims import Claims, EntryKind, Manager, State
from launcher.runs.sweep_directory import SearchRecord, Sweep
from launcher.schedulers.slurm.client import Slurm
from launcher.submission.submit import Interrupted
from launcher.sweeps import control, submit
from launcher.sweeps.prepare import id_of, prepare_search, prepare_sweep, representatives
from launcher.sweeps.submit import resubmit
from tests.unit.slurm_stand_in import SlurmStandIn
from tests.unit.sweep_runs import begin, end
from tests.unit.sweep_site import COMMAND, Site, seeds, submitted_points


@pytest.mark.parametrize(
    ("command", "same"),
    [
        (["-m", "workload=p2p", "seed=1,2"], True),
        (["seed=1,2", "--multirun", "workload=p2p"], True),
        (["workload=p2p", "seed=1,2", "-m", "sweep.parallelism=3", "wait=true", "dry_run=true", "runs_dir=/x"], True),
        (["-m", "workload=p2p", "seed=1,2", "++sweep.parallelism=3"], True),
        (["-m", "workload=p2p", "seed=1,2", "~track"], False),
        (["-m", "workload=p2p", "seed=1,3"], False),
        (["-m", "workload=p2p", "seed=1,2", "nodes=2"], False),
        (["-m", "workload=collective", "seed=1,2"], False),
        (["-m", "workload=p2p", "workload.seed=1,2"], False),
    ],
)
def test_the_same_overrides_mean_the_same_sweep(command: list[str], same: bool) -> None:
    first = id_of(["-m", "workload=p2p", "seed=1,2"], "p2p")
    assert (id_of(command, "p2p") == first) is same
    assert id_of(command, "other") != first
    assert first.startswith("p2p-")


@pytest.mark.parametrize("length", [55, 56, 64])
def test_a_sweep_with_a_long_name_has_an_id_that_is_allowed(site: Site, length: int) -> None:
    name = "n" * length
    assert prepare_sweep(site.requested(seeds(2), name=name), COMMAND).path.name.startswith(f"{name[:55]}-")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    slurm = SlurmStandIn(tmp_path / "slurm")
    monkeypatch.setenv("PATH", slurm.path)
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    return Site(tmp_path, slurm)


# -- submissions


def test_points_that_ask_for_the_same_are_one_array(site: Site) -> None:
    done = site.submit([*seeds(3), "seed=9 nodes=2", *[f"seed={seed} nodes=4" for seed in (7, 8)]])
    assert [(job.array, job.nodes, job.points) for job in site.slurm.jobs()] == [
        ("0-2", 1, [0, 1, 2]), ("-", 2, [3]), ("0-1", 4, [4, 5]),
    ]  # fmt: skip
    assert done.jobs == (("100", (0, 1, 2)), ("101", (3,)), ("102", (4, 5)))
    ids = [read_history(done.sweep.run(index)).job_id for index in range(6)]
    assert ids == ["100_0", "100_1", "100_2", "101", "102_0", "102_1"]
    for index in range(6):
        run = done.sweep.run(index)
        assert (run.plan().run_id, run.plan().run_dir) == (f"{done.sweep.id}/{index}", str(run.path))
        assert (run.submitit_folder / "payload.pkl").exists()
        assert run.record()["overrides"] == list(done.sweep.manifest().points[index])


def test_what_is_there_is_not_submitted_again(site: Site) -> None:
    first = site.submit(seeds(3))
    again = site.submit(seeds(3))
    assert (again.jobs, again.already_submitted, again.not_accepted) == ((), (0, 1, 2), ())
    assert again.sweep == first.sweep
    assert len(site.slurm.jobs()) == 1


def test_a_sweep_kept_elsewhere_is_found_by_its_id_though_its_submission_was_interrupted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(site.folder / "index"))
    note = Sweep.submitting

    def interrupted(*args: Any, **how: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        note(*args, **how)

    monkeypatch.setattr(Sweep, "submitting", interrupted)
    with pytest.raises(Interrupted, match="2 points of lr submitted"):
        site.submit(seeds(2), sweep=_sweep(id="lr"))
    assert lookup.find_sweep("lr", None) == Sweep(site.folder / "runs/lr")


@pytest.mark.parametrize("keys", [{}, {"slots": 1}])
def test_points_that_lost_their_records_in_a_crash_get_them_again_and_are_not_submitted_again(
    site: Site, keys: dict[str, Any]
) -> None:
    """The files of points are not waited for until they are on disk."""
    sweep = site.submit(seeds(3), sweep=_sweep(id="lr", **keys)).sweep
    record, submitted = sweep.run(1).record(), len(site.slurm.jobs())
    (sweep.run(1).path / "record.json").write_text("")
    again = site.submit(seeds(3), sweep=_sweep(id="lr", **keys))
    assert (again.already_submitted, len(site.slurm.jobs())) == ((0, 1, 2), submitted)
    assert {**sweep.run(1).record(), "submitted": 0} == {**record, "submitted": 0}


def test_a_command_that_is_killed_before_it_writes_such_a_record_can_be_repeated(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = site.submit(seeds(3), sweep=_sweep(id="lr")).sweep
    (sweep.run(1).path / "record.json").write_text("")
    sweep.run(1).write_result({"loss": 1.0})

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Run, "write_record", kill)
        with pytest.raises(KeyboardInterrupt):
            site.submit(seeds(3), sweep=_sweep(id="lr"))
    assert site.submit(seeds(3), sweep=_sweep(id="lr")).already_submitted == (0, 1, 2)
    assert (sweep.run(1).path / ".record.json.damaged").read_text() == ""


def test_new_points_are_added_and_keep_the_numbers_of_the_old_ones(site: Site) -> None:
    site.submit(seeds(3), sweep=_sweep(id="lr"))
    more = site.submit(["seed=7", "seed=1", "seed=8", "seed=7"], sweep=_sweep(id="lr"))
    assert (more.already_submitted, more.jobs) == ((1,), (("101", (3, 4)),))
    assert [point.overrides for point in more.sweep.points()] == [(f"seed={seed}",) for seed in (0, 1, 2, 7, 8)]


def test_a_point_that_is_there_with_other_values_is_refused(site: Site) -> None:
    """The defaults have changed since."""
    site.submit(seeds(2))
    with pytest.raises(ConfigError, match=r"with other values of time: choose another sweep\.id"):
        site.submit(seeds(2), time="2h")
    assert len(site.slurm.jobs()) == 1


def test_a_pilot_that_is_too_large_is_explained_by_its_slots(site: Site) -> None:
    told = site.refused(seeds(2), sweep=_sweep(slots=8), cluster={"limits": Limits(cpus_per_node=4)})
    assert told.startswith("sweep.slots=8: a pilot asks for 8 times what a point does: ")
    assert "8 CPUs" in told


def test_an_array_is_split_at_the_sites_limit(site: Site) -> None:
    site.slurm.set(most_elements=4)
    done = site.submit(seeds(9), sweep=_sweep(parallelism=5))
    assert [job.array for job in site.slurm.jobs()] == ["0-3%2", "0-3%2", "-"]
    assert [job.points for job in site.slurm.jobs()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert [points for _, points in done.jobs] == [(0, 1, 2, 3), (4, 5, 6, 7), (8,)]


def test_a_single_point_that_is_refused_waits_and_the_whole_sweep_can_be_cancelled(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slurm, "cancel", lambda *_: None)
    site.slurm.set(most_jobs=2)
    sweep = site.submit(["seed=1 nodes=1", "seed=2 nodes=2", "seed=3 nodes=3"]).sweep
    assert [each.state for each in point_statuses(sweep)][2] == "waiting"
    assert list(control.cancel(sweep)) == [0, 1, 2]
    assert point_statuses(sweep)[2].state == "cancelled"


def test_a_point_whose_submission_was_interrupted_is_looked_up_and_cancelled(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slurm, "cancel", lambda *_: None)
    site.slurm.set(most_jobs=1)
    sweep = site.submit(["seed=1 nodes=1", "seed=2 nodes=2"]).sweep
    sweep.run(1).journal(kinds.Submitting(token=sweep.run(1).record()["token"]))  # and its submitter was killed
    assert point_statuses(sweep)[1].state == "unconfirmed"
    assert list(control.cancel(sweep)) == [0, 1]
    assert point_statuses(sweep)[1].state == "cancelled"


@pytest.mark.parametrize(("count", "limit"), [(4, 1), (10, 5), (10, 7), (10, 10)])
def test_points_beyond_the_submit_limit_are_left_for_the_next_call(site: Site, count: int, limit: int) -> None:
    site.slurm.set(most_jobs=limit)
    done = site.submit(seeds(count))
    left, words = done.not_accepted, done.limit
    assert len(submitted_points(site)) == count - len(left)
    assert bool(left) is (limit < count)
    assert (not left) or "submit limit" in words
    assert site.slurm.calls() <= 10  # not one for each point
    for _ in range(count):
        if not left:
            break
        for job in site.slurm.jobs():
            site.slurm.end(job.id)  # those are over, and forgotten
        left = site.submit(seeds(count)).not_accepted
    assert not left
    known = [index for each in done.sweep.submissions() for index in each.points]
    assert all(read_history(done.sweep.run(index)).job_id for index in range(count))
    assert len(known) == len(set(known))


def test_what_the_submit_limit_splits_is_throttled_as_a_whole(site: Site) -> None:
    site.slurm.set(most_jobs=6)
    site.submit(seeds(8), sweep=_sweep(parallelism=4))
    arrays = [job.array for job in site.slurm.jobs()]
    assert sum(int(array.partition("%")[2] or 1) for array in arrays) <= 4, arrays


def test_no_group_is_refused_because_another_one_is_full(site: Site) -> None:
    """What is left is told with all that stand behind it."""
    site.slurm.set(most_jobs=3)
    done = site.submit([*seeds(4), *[f"seed={seed} nodes=2" for seed in range(4)]])
    left = done.not_accepted
    assert sorted([*left, *submitted_points(site)]) == list(range(8))


def test_of_many_groups_few_are_tried_once_no_more_jobs_are_accepted(site: Site) -> None:
    """With MaxJobCount of Slurm, each refusal takes minutes."""
    site.slurm.set(most_jobs=2)
    done = site.submit([f"seed={number} time={number + 1}h" for number in range(12)])
    assert (submitted_points(site), done.not_accepted) == ([0, 1], tuple(range(2, 12)))
    assert site.slurm.calls() == 3


def test_a_refused_group_leaves_the_others_and_is_tried_again(site: Site) -> None:
    site.slurm.set(refusal="--nodes=2")
    points = [*seeds(2), *[f"seed={seed} nodes=2" for seed in range(2)]]
    words = "Invalid license specification\n2 other points submitted before, as 100"
    with pytest.raises(SubmissionError, match=words):
        site.submit(points)
    assert submitted_points(site) == [0, 1]
    site.slurm.set(refusal=None)
    done = site.submit(points)
    assert (done.already_submitted, done.jobs) == ((0, 1), (("101", (2, 3)),))


def test_a_point_that_is_refused_adds_no_others(site: Site) -> None:
    sweep = site.submit(seeds(2), sweep=_sweep(id="lr")).sweep
    with pytest.raises(ConfigError, match="lr/0 is there already with other values of time"):
        site.submit(["seed=0", "seed=9"], sweep=_sweep(id="lr"), time="2h")
    assert [point.overrides for point in sweep.points()] == [("seed=0",), ("seed=1",)]


@pytest.mark.parametrize("keys", [{}, {"slots": 2}])
def test_of_a_sweep_whose_first_job_is_refused_nothing_is_left(site: Site, keys: dict[str, Any]) -> None:
    site.slurm.set(refusal="--nodes=1")
    with pytest.raises(SubmissionError, match="Invalid license specification"):
        site.submit(seeds(2), sweep=_sweep(id="lr", **keys))
    assert [path.name for path in (site.folder / "runs").iterdir() if not path.name.startswith(".")] == []


def test_a_folder_that_was_there_before_a_refused_sweep_stays(site: Site) -> None:
    (site.folder / "runs/lr").mkdir(mode=0o700, parents=True)
    site.slurm.set(refusal="--nodes=1")
    with pytest.raises(SubmissionError, match="Invalid license specification"):
        site.submit(seeds(2), sweep=_sweep(id="lr"))
    assert (site.folder / "runs/lr").is_dir()


@pytest.mark.parametrize("keys", [{}, {"slots": 2}])
def test_points_whose_jobs_are_refused_are_not_added(site: Site, keys: dict[str, Any]) -> None:
    sweep = site.submit(seeds(2), sweep=_sweep(id="lr", **keys)).sweep
    end(sweep.pilot(0) if keys else sweep.run(0), job="100")
    site.slurm.end("100")
    before = sweep.manifest()
    sweep.mark_cancelled(True)
    site.slurm.set(refusal="--nodes=1")
    with pytest.raises(SubmissionError, match="Invalid license specification"):
        site.submit(seeds(4), sweep=_sweep(id="lr", **keys))
    assert (sweep.manifest(), sweep.run(2).path.exists(), sweep.cancelled()) == (before, False, True)
    assert sweep.run(1).recorded()


def test_a_throttle_is_shared_between_groups(site: Site) -> None:
    site.submit([*seeds(6), *[f"seed={seed} nodes=2" for seed in range(3)]], sweep=_sweep(parallelism=3))
    assert [job.array for job in site.slurm.jobs()] == ["0-5%2", "0-2%1"]


def test_more_arrays_than_points_may_run_at_once_wait_for_each_other(site: Site) -> None:
    points = [f"seed={seed} nodes={nodes}" for nodes in (1, 2, 3, 4) for seed in range(2)]
    site.submit(points, sweep=_sweep(parallelism=2))
    assert [job.array for job in site.slurm.jobs()] == ["0-1%1"] * 4
    assert [job.dependency for job in site.slurm.jobs()] == ["-", "-", "afterany:100", "afterany:101"]


def test_the_scheduler_is_not_asked_anew_for_each_job_that_waits_for_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, jobs = list[Slurm](), Slurm.jobs
    monkeypatch.setattr(run_status, "SCHEDULER_INTERVAL", 1000.0)
    monkeypatch.setattr(Slurm, "jobs", lambda queries: (asked.append(queries), jobs(queries))[1])
    site.submit([f"seed={number} nodes={number + 1}" for number in range(16)], sweep=_sweep(parallelism=4))
    assert [job.dependency for job in site.slurm.jobs()] == ["-"] * 4 + [f"afterany:{100 + n}" for n in range(12)]
    assert len(asked) < 6


def test_arrays_of_earlier_commands_share_what_may_run_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(Slurm, "throttle", lambda _, job, most: told.append((job, most)))
    site.submit(seeds(4), sweep=_sweep(id="lr", parallelism=4))
    site.submit(seeds(8), sweep=_sweep(id="lr"))
    assert [job.array for job in site.slurm.jobs()] == ["0-3%4", "0-3%2"]
    assert told == [("100", 2)]
    site.submit(seeds(10), sweep=_sweep(id="lr", parallelism=1))
    assert [(job.array, job.dependency) for job in site.slurm.jobs()][2:] == [("0-1%1", "afterany:101")]
    assert told[1:] == [("100", 1), ("101", 1)]
    site.submit(seeds(10), sweep=_sweep(id="lr", parallelism=6))
    assert told[3:] == [("100", 3), ("101", 2), ("102", 1)]


def test_while_slurm_does_not_tell_nothing_is_submitted_twice(site: Site) -> None:
    done = site.submit(seeds(2))
    done.sweep.submitting("launcher-x-9", [0, 1])  # as one who was killed leaves it
    site.slurm.set(down="yes")
    with pytest.raises(Exception, match="squeue failed"):
        site.submit(seeds(2))
    site.slurm.set(down=None)
    assert site.submit(seeds(2)).already_submitted == (0, 1)
    assert len(site.slurm.jobs()) == 1


def test_an_array_whose_submitter_was_killed_is_taken_over(site: Site) -> None:
    first = site.submit(seeds(3))
    journal = first.sweep.path / "journal.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])  # `submitted` was not written
    again = site.submit(seeds(3))
    assert (again.already_submitted, again.jobs, len(site.slurm.jobs())) == ((0, 1, 2), (), 1)
    assert read_history(again.sweep.run(2)).job_id == "100_2"


def test_an_array_that_began_and_was_forgotten_is_taken_over(site: Site) -> None:
    first = site.submit(seeds(3))
    journal = first.sweep.path / "journal.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    end(first.sweep.run(1), job="100_1")
    site.slurm.end("100")
    again = site.submit(seeds(3))
    assert (again.already_submitted, again.jobs) == ((0, 1, 2), ())
    assert [each.job for each in again.sweep.submissions()] == ["100"]


def test_an_announced_array_that_never_came_is_submitted(site: Site) -> None:
    first = site.submit(seeds(3))
    journal = first.sweep.path / "journal.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    site.slurm.end("100")
    again = site.submit(seeds(3))
    assert (again.already_submitted, again.jobs) == ((), (("100", (0, 1, 2)),))
    assert len({job.token for job in site.slurm.jobs()}) == 1
    assert len(again.sweep.tokens()) == 2


# -- once more


def test_points_are_started_again_as_arrays_of_their_own(site: Site) -> None:
    first = site.submit(seeds(5))
    for index in (1, 3, 4):
        end(first.sweep.run(index), 1, job=f"100_{index}")
    (first.sweep.run(1).path / "cancelled").touch()
    again = resubmit(first.sweep, [1, 3])
    assert again.jobs == (("101", (1, 3)),)
    assert [job.points for job in site.slurm.jobs()] == [[0, 1, 2, 3, 4], [1, 3]]
    assert len({job.token for job in site.slurm.jobs()}) == 2
    assert not (first.sweep.run(1).path / "cancelled").exists()
    assert resubmit(first.sweep, [4]).jobs == (("102", (4,)),)
    assert [read_history(first.sweep.run(index)).job_id for index in range(5)] == [
        "100_0",
        "101_0",
        "100_2",
        "101_1",
        "102",
    ]


def test_points_are_started_again_with_the_secrets_that_their_config_sets(site: Site) -> None:
    sweep = site.submit(seeds(2), cluster={"environment": {"API_TOKEN": "typed"}}).sweep
    for index in range(2):
        end(sweep.run(index), 1, job=f"100_{index}")
    with pytest.raises(SubmissionError, match="API_TOKEN: secrets are in no record"):
        resubmit(sweep, [0, 1])
    assert resubmit(sweep, [0, 1], lambda run: {"API_TOKEN": f"of {run.id}"}).jobs == (("101", (0, 1)),)


def test_an_array_of_those_that_ran_before_is_not_taken_for_their_old_one(site: Site) -> None:
    """Its submitter was killed before sbatch was started, and the attempts of the first array are still there."""
    first = site.submit(seeds(2))
    for index in range(2):
        end(first.sweep.run(index), 1, job=f"100_{index}")
    first.sweep.submitting("launcher-x-1", [0, 1])
    submit.recover(first.sweep, {})
    assert [each.job for each in first.sweep.submissions()] == ["100"]


def test_a_single_point_that_is_started_again_is_not_taken_for_its_old_job(site: Site) -> None:
    first = site.submit(seeds(1))
    run = first.sweep.run(0)
    end(run, 1, job="100")
    run.journal(kinds.Submitting(token=f"{run.record()['token']}-r1"))  # and its submitter was killed
    assert resubmit(first.sweep, [0]).jobs == (("101", (0,)),)
    assert read_history(run).job_id == "101"


def test_a_job_that_began_before_its_submitter_said_so_is_found(site: Site) -> None:
    first = site.submit(seeds(1))
    run = first.sweep.run(0)
    end(run, 1, job="100")
    run.journal(kinds.Submitting(token=f"{run.record()['token']}-r1"))
    begin(run, "105", number=1)
    assert resubmit(first.sweep, [0]).jobs == (("105", (0,)),)
    assert len(site.slurm.jobs()) == 1


# -- bad input


def _sweep(**keys: Any) -> Any:
    from launcher.config.schema import Sweep as Keys

    return Keys(**keys)


def test_a_wrong_point_of_many_is_named_and_nothing_is_done(site: Site) -> None:
    points = seeds(100)
    points[70] += " time=25:99"
    words = site.refused(points)
    assert words.startswith("point 70 (seed=70 time=25:99): ")
    assert "25:99" in words


def test_a_limit_that_one_group_exceeds_refuses_all(site: Site) -> None:
    words = site.refused([*seeds(2), "seed=5 nodes=9"], cluster={"limits": Limits(nodes=4)})
    assert words.startswith("point 2 (seed=5 nodes=9): nodes=9")


def test_what_cannot_be_a_script_is_refused_with_its_point(site: Site) -> None:
    wanted = site.requested(seeds(2))
    wanted.append(site.requested(["seed=5"], cluster={"directives": {"nodes": 7}})[0])
    with pytest.raises(ConfigError, match=r"^point 2 \(seed=5\): .*nodes"):
        prepare_sweep(wanted, COMMAND)


@pytest.mark.parametrize(
    ("points", "keys", "words"),
    [
        (["seed=1 run_id=x", "seed=2 run_id=x"], {}, "run_id=x names one run"),
        (["seed=1 sweep.id=a", "seed=1 sweep.id=b"], {}, "sweep.id is for the whole sweep"),
        (["seed=1 wait=true", "seed=1 wait=false"], {}, "wait is for the whole sweep"),
        (["seed=1 runs_dir=/a", "seed=1 runs_dir=/b"], {}, "runs_dir is for the whole sweep"),
        (["seed=1"], {"sweep": _sweep(parallelism=0)}, "sweep.parallelism=0: it must be 1 or more"),
        (["seed=1"], {"sweep": _sweep(slots=0)}, "sweep.slots=0: it must be 1 or more"),
        (["seed=1"], {"sweep": _sweep(pack=-1)}, "sweep.pack=-1: it must be 1 or more"),
        (["seed=1"], {"sweep": _sweep(budget=SearchBudget(points=0))}, "sweep.budget.points=0: it must be 1 or more"),
        (["seed=1"], {"sweep": _sweep(id="")}, "sweep.id is empty: give it a value, or leave it out"),
        (["seed=1"], {"sweep": _sweep(id="a/b")}, "sweep.id='a/b'"),
        (["seed=1"], {"sweep": _sweep(id="a b")}, "letters, digits"),
        (["seed=1 name=a/b"], {}, "name='a/b'"),
    ],
)
def test_keys_of_a_sweep(site: Site, points: list[str], keys: dict[str, Any], words: str) -> None:
    assert words in site.refused(points, **keys)


def test_a_chain_of_jobs_is_for_one_run(site: Site) -> None:
    from launcher.config.schema import Resume

    assert "point 0" in (words := site.refused(seeds(2), resume=Resume(how=ResumeHow.chain, max_attempts=3)))
    assert "resume.how=chain is for single runs" in words


def test_a_race_is_for_one_run(site: Site) -> None:
    cluster = {"race": ["time=1h", "time=2h"]}
    assert "cluster.race is for single runs" in site.refused(seeds(2), cluster=cluster)


def test_points_do_not_share_checkpoints(site: Site) -> None:
    words = site.refused(seeds(2), checkpoint=Checkpoint(dir=str(site.folder / "shared")))
    assert "point 1 (seed=1): checkpoint.dir" in words
    assert "point 0 has the same one" in words
    site.submit(seeds(1), checkpoint=Checkpoint(dir=str(site.folder / "shared")))


def test_a_sweep_is_not_made_where_a_run_is(site: Site) -> None:
    run = Run.create(site.folder / "runs" / "lr")
    (run.path / "record.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"choose another sweep\.id"):
        site.submit(seeds(2), sweep=_sweep(id="lr"))
    assert site.slurm.calls() == 0


def test_without_sbatch_nothing_is_made(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(site.folder))
    with pytest.raises(SubmissionError, match="sbatch is not on this machine's PATH"):
        site.submit(seeds(2))
    assert not (site.folder / "runs").exists()


def test_a_sweep_that_another_command_changes_is_left_alone(site: Site) -> None:
    prepared = prepare_sweep(site.requested(seeds(2)), COMMAND)
    site.submit(seeds(2))
    with pytest.raises(SubmissionError, match="was changed by another command meanwhile: repeat this one"):
        submit.submit_sweep(prepared)
    assert len(site.slurm.jobs()) == 1


def test_points_of_several_clusters(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes to its own: those of this machine to a process that runs a few at a time."""
    started: list[Sweep] = []
    monkeypatch.setattr(submit, "start_local_runner", started.append)
    wanted = [
        *site.requested(["seed=1 cluster=slurm", "seed=2 cluster=slurm"]),
        *site.requested(["seed=1 cluster=local", "seed=2 cluster=local"], cluster={"scheduler": "local"}),
    ]
    done = submit.submit_sweep(prepare_sweep(wanted, COMMAND))
    assert (done.jobs, done.local) == ((("100", (0, 1)),), (2, 3))
    assert started == [done.sweep]
    assert list(done.sweep.local_requests()) == [2, 3]
    assert lookup.all_sweeps(site.folder / "runs") == [done.sweep]


def pilots_of(site: Site) -> list[str]:
    return sorted(path.name for path in (site.folder / "runs").glob("lr-pilot-*"))


def packed(site: Site, pack: int = 1) -> Sweep:
    return site.submit(seeds(3), sweep=_sweep(id="lr", pack=pack)).sweep


def test_a_sweep_is_not_turned_over_to_pilots_or_back(site: Site) -> None:
    jobs = site.submit(seeds(2), sweep=_sweep(id="jobs")).sweep
    with pytest.raises(ConfigError, match=r"of jobs .* jobs of their own: leave sweep\.slots .* another sweep\.id"):
        site.submit(seeds(2), sweep=_sweep(id="jobs", slots=2))
    pilots = packed(site)
    with pytest.raises(ConfigError, match=r"of lr .* share pilots: set sweep\.slots .* another sweep\.id"):
        site.submit(seeds(3), sweep=_sweep(id="lr"))
    assert jobs.manifest().packing is None
    assert pilots.manifest().packing is not None
    assert len(site.slurm.jobs()) == 2


def test_points_that_are_added_ask_for_the_job_of_the_others_in_their_pilots(site: Site) -> None:
    packed(site)
    with pytest.raises(ConfigError, match="points 0 and 3 ask for different jobs, and cannot share pilots"):
        site.submit(["seed=9"], sweep=_sweep(id="lr", pack=1), cpus_per_proc=8)
    assert len(site.submit(["seed=9"], sweep=_sweep(id="lr", pack=1)).sweep.points()) == 4


def search(site: Site, points: int, **keys: Any) -> Sweep:
    pytest.importorskip("optuna", reason="pip install 'launcher[optuna]'")
    space, fixed = space_of(["seed=1,2,3", "name=se"])
    batch = [" ".join(each) for each in representatives(space, fixed)]
    sweep = _sweep(
        id="se", search=Method.random, objective="loss", goal=Goal.minimize, budget=SearchBudget(points=points)
    )
    return submit.submit_sweep(prepare_search(site.requested(batch, sweep=sweep, **keys), space, COMMAND)).sweep


@pytest.mark.parametrize(
    ("keys", "other"), [({"checkpoint": Checkpoint(keep=7)}, "checkpoint.keep"), ({"time": "2h"}, "time")]
)
def test_a_search_goes_on_with_a_larger_budget_and_the_same_values_of_other_keys(
    site: Site, keys: dict[str, Any], other: str
) -> None:
    sweep = search(site, 2)
    assert SearchRecord(search(site, 3).path).settings().points == 3
    with pytest.raises(ConfigError, match=f"se is a search with other values of {other}: choose another sweep.id"):
        search(site, 4, **keys)
    assert SearchRecord(sweep.path).settings().points == 3


@pytest.mark.parametrize("killed", [(SearchRecord, "create"), (Sweep, "write"), (snapshot, "take")])
def test_the_command_of_a_search_that_was_killed_goes_on_where_it_was(
    site: Site, monkeypatch: pytest.MonkeyPatch, killed: tuple[Any, str]
) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(*killed, kill)
        with pytest.raises(KeyboardInterrupt):
            search(site, 2)
    assert len(search(site, 2).points()) == 1


def test_a_search_whose_new_pilots_are_refused_keeps_its_budget(site: Site) -> None:
    sweep = search(site, 2)
    end(sweep.pilot(0), job="100")
    site.slurm.end("100")
    site.slurm.set(refusal="--nodes=1")
    with pytest.raises(SubmissionError, match="Invalid license specification"):
        search(site, 3)
    assert SearchRecord(sweep.path).settings().points == 2


def test_of_a_search_whose_pilots_are_refused_nothing_is_left(site: Site) -> None:
    site.slurm.set(refusal="--nodes=1")
    with pytest.raises(SubmissionError, match="Invalid license specification"):
        search(site, 2)
    assert [path.name for path in (site.folder / "runs").iterdir() if not path.name.startswith(".")] == []


def test_what_a_repeated_command_does_not_set_stays_as_it_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slurm, "throttle", lambda *_: None)
    sweep = site.submit(seeds(2), sweep=_sweep(id="jobs", objective="loss", best_is=BestIs.min)).sweep
    control.throttle(sweep, 2)
    site.submit(seeds(3), sweep=_sweep(id="jobs"))
    kept = sweep.manifest()
    assert (kept.parallelism, kept.objective, kept.best_is) == (2, ("loss",), "min")
    site.submit(seeds(3), sweep=_sweep(id="jobs", objective="accuracy", parallelism=3))
    changed = sweep.manifest()
    assert (changed.parallelism, changed.objective, changed.best_is) == (3, ("accuracy",), "max")
    submit.throttle_pilots(packed(site), 3)
    again = site.submit(seeds(3), sweep=_sweep(id="lr", slots=1)).sweep.manifest().packing
    assert again is not None
    assert again.pilots == 3


def test_points_that_run_in_a_pilot_keep_their_lease_when_the_command_is_repeated(site: Site) -> None:
    run = packed(site).run(0)
    (run.path / "lease").write_text("100 0 node1\n")
    packed(site)
    assert run.has("lease")


def test_points_that_a_slot_manager_holds_are_not_freed(site: Site) -> None:
    """It seems dead to a machine whose clock is ahead, and runs them."""
    sweep, mine = packed(site), Manager(0, 0, 0, 0)
    claims = Claims(sweep.path, 2)
    for point, kinds_ in enumerate(((EntryKind.CLAIMED,), (EntryKind.CLAIMED, EntryKind.FATAL))):
        (sweep.run(point).path / "lease").write_text("100 0 node1\n")
        for number, kind in enumerate(kinds_):
            assert claims.add(point, number, kind, mine)
    resubmit(sweep, [0, 1])
    assert {point: log.state for point, log in claims.logs().items()} == {0: State.HELD, 1: State.FREE}
    assert sweep.run(0).has("lease")


@pytest.mark.parametrize("mark", ["stop", "cancelled"])
def test_a_pilot_that_is_about_to_leave_is_replaced(site: Site, mark: str) -> None:
    sweep = packed(site, 2)
    assert pilots_of(site) == ["lr-pilot-0", "lr-pilot-1"]
    sweep.pilot(1).mark(mark)
    packed(site, 2)
    assert pilots_of(site) == ["lr-pilot-0", "lr-pilot-1", "lr-pilot-2"]


def test_a_pilot_that_is_submitted_again_has_the_size_that_is_asked_for_now(site: Site) -> None:
    sweep = packed(site)
    end(sweep.pilot(0), 1, job="100")
    site.slurm.end("100")
    site.submit(seeds(3), sweep=_sweep(id="lr", slots=3, nodes=2))
    [job], plan = site.slurm.jobs(), sweep.pilot(0).plan()
    assert (job.nodes, plan.nodes, plan.cpus_per_node) == (2, 2, 3 * sweep.run(0).plan().cpus_per_node)
    assert sweep.pilot(0).first_plan().nodes == 1
