"""The code as it was at submission: what is copied, what is not, and where the job then works."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from launcher.config.schema import Config, Env, Function, Program, Workload
from launcher.environment import snapshot
from launcher.environment.code_files import tree
from launcher.errors import ConfigError, RunError, UnavailableError
from launcher.plan.build import PlanFacts
from launcher.plan.plan import JobPlan
from launcher.runs.directory import Run
from launcher.submission.prepare import Inputs, make_plan
from tests.unit.faults import FileServer
from tests.unit.plans import SITE, make_config
from tests.unit.sandbox import Sandbox


def git(folder: Path, *arguments: str) -> None:
    names = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
    subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments], cwd=folder, check=True, capture_output=True,
        env={**os.environ, **dict.fromkeys(names, "me")},
    )  # fmt: skip


def files(root: Path, **contents: str) -> None:
    for name, text in contents.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One with committed, changed, deleted, untracked and ignored files, and links."""
    root = tmp_path / "re po"
    root.mkdir()
    git(root, "init", "--quiet")
    files(root, train="old", gone="x", sub__module="m", ignore="")
    (root / ".gitignore").write_text("ignored*\n")
    (root / "train").chmod(0o755)
    (root / "inside").symlink_to(root / "sub/module")
    (root / "outside").symlink_to("/etc/hostname")
    (root / "folder").symlink_to("sub")
    (root / "sub/beside").symlink_to("../../elsewhere/data")
    (root / "sub/up").symlink_to("../..")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "all")
    files(root, train="new", ignored_data="much", ignored__weights="much", sub__untracked="u", **{"naïve\nname": "n"})
    (root / "gone").unlink()
    return root


def site_in(folder: Path, runs: Path) -> PlanFacts:
    return dataclasses.replace(SITE, workdir=str(folder), run_dir=str(runs / "run-1"))


def planned(folder: Path, runs: Path, inputs: Inputs | None = None, *, again: bool = False, **keys: Any) -> JobPlan:
    env = keys.pop("env", Env(snapshot=True))
    config = make_config(runs_dir=str(runs), env=env, **keys)
    return snapshot.into_plan(
        make_plan(config, (inputs or Inputs()).with_code(config, site_in(folder, runs), new_snapshot=again))
    )


def test_what_git_has_or_would_have_is_copied_as_it_stands(repository: Path, tmp_path: Path) -> None:
    plan = planned(repository / "sub", tmp_path / "runs")
    Run.create(Path(plan.run_dir))
    snapshot.take(plan)
    code = tmp_path / "runs/run-1/code"
    assert (plan.code.snapshot, plan.workdir, plan.submitted_in) == (str(code), f"{code}/sub", str(repository / "sub"))
    found = {str(path.relative_to(code)) for path in code.rglob("*") if path.is_symlink() or path.is_file()}
    assert found == {
        ".gitignore", "train", "ignore", "inside", "outside", "folder", "sub/module", "sub/untracked", "naïve\nname",
        "sub/beside", "sub/up",
    }  # fmt: skip
    assert (code / "train").read_text() == "new"
    assert {path: stat.S_IMODE((code / path).stat().st_mode) for path in (".", "train", "ignore")} == {
        ".": 0o700, "train": 0o700, "ignore": 0o600,
    }  # fmt: skip
    assert os.readlink(code / "outside") == "/etc/hostname"
    assert (code / "inside").resolve() == code / "sub/module"  # not the one that is edited later
    assert os.readlink(code / "folder") == "sub"
    assert os.readlink(code / "sub/beside") == f"{tmp_path}/elsewhere/data"
    assert os.readlink(code / "sub/up") == str(tmp_path)


def test_repositories_within_it_are_copied_too(repository: Path, tmp_path: Path) -> None:
    for name in ("library", "beside"):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "--quiet")
        files(tmp_path / name, code=name)
        git(tmp_path / name, "add", "--all")
        git(tmp_path / name, "commit", "--quiet", "-m", name)
    git(repository, "submodule", "--quiet", "add", str(tmp_path / "library"), "third/library")
    (tmp_path / "beside").rename(repository / "beside")  # a repository that the other does not know
    found = tree(str(repository / "sub")).files
    assert {"third/library/code", "beside/code", "train"} <= found.keys()
    assert not any("/.git/" in name or name.endswith("/.git") for name in found)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EACCES, ConfigError), (errno.ELOOP, ConfigError), (errno.EIO, UnavailableError)],
)
def test_a_file_of_the_code_that_cannot_be_looked_at_is_told(
    repository: Path, server: FileServer, number: int, kind: type[Exception]
) -> None:
    (repository / "beside").mkdir()
    git(repository / "beside", "init", "--quiet")
    files(repository / "beside", code="x")
    for name in ("sub/module", "beside/.git"):
        server.recover()
        server.fail(repository / name, number=number)
        with pytest.raises(kind, match=f"{name} cannot be read.*{os.strerror(number)}"):
            tree(str(repository))


@pytest.mark.parametrize("to", ["{tmp}/scratch", "other"])
def test_files_that_git_had_in_a_folder_that_is_a_link_now_are_gone(repository: Path, tmp_path: Path, to: str) -> None:
    (repository / "sub").rename(repository / "other")
    if to != "other":
        (repository / "other").rename(tmp_path / "scratch")
    (repository / "sub").symlink_to(to.format(tmp=tmp_path))
    assert "sub" in (found := tree(str(repository)).files) and not [name for name in found if name.startswith("sub/")]
    Run.create(Path((plan := planned(repository, tmp_path / "runs")).run_dir))
    snapshot.take(plan)
    assert (Path(plan.code.snapshot or "") / "sub").is_symlink()
    assert (Path(plan.code.snapshot or "") / "sub/module").read_text() == "m"


def test_run_directories_in_the_repository_are_no_code(repository: Path) -> None:
    files(repository, runs__old__record="x")
    plan = planned(repository, repository / "runs")
    Run.create(Path(plan.run_dir))
    snapshot.take(plan)
    assert plan.code.snapshot is not None
    assert not (Path(plan.code.snapshot) / "runs").exists()


def test_a_file_that_cannot_be_looked_at_now_is_not_left_out(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileServer(monkeypatch).fail("train")
    with pytest.raises(OSError, match="Input/output"):
        planned(repository, tmp_path / "runs")


def test_one_that_is_too_large_names_the_largest_files(repository: Path, tmp_path: Path) -> None:
    (repository / "weights.pt").write_bytes(bytes(3 << 20))
    with pytest.raises(ConfigError, match=r"(?s)env.snapshot_limit=2M.*largest:\n +3M  weights.pt\n.*\.gitignore"):
        planned(repository, tmp_path / "runs", env=Env(snapshot=True, snapshot_limit="2M"))
    with pytest.raises(ConfigError, match=r"^env.snapshot_limit: '2X' is not a size"):
        planned(repository, tmp_path / "runs", env=Env(snapshot=True, snapshot_limit="2X"))


def test_a_folder_without_git_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(ConfigError, match="plain is in no git repository: `git init` there"):
        planned(tmp_path / "plain", tmp_path / "runs")


def program(**keys: Any) -> Program:
    return Program("program", "launcher.worker.main:main", seed=0, **keys)


def function(target: str) -> Function:
    return Function("function", "launcher.worker.main:function", seed=0, target=target)


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        (program(script="ignored_data"), r"workload\.script=ignored_data: git ignores .*/re po/ignored_data: "),
        (program(module="ignored.mod"), r"workload\.module=ignored\.mod: git ignores .*/re po/ignored/mod\.py: "),
        (function("ignored.mod:f"), r"workload\.target=ignored\.mod:f: git ignores .*/re po/ignored/mod\.py: "),
        (function("far:f"), r"workload\.target=far:f: git ignores .*/re po/ignored/far\.py: "),
    ],
)
def test_what_the_copy_would_lack_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: Workload, told: str
) -> None:
    files(repository, **{"ignored__mod.py": "def f(): ...", "ignored__far.py": "def f(): ..."})
    monkeypatch.setenv("PYTHONPATH", f"{repository}/ignored")
    with pytest.raises(ConfigError, match=told):
        planned(repository, tmp_path / "runs", workload=workload)


def test_packages_of_an_environment_in_the_repository_are_used_from_there(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(repository, **{"ignored__site-packages__packed.py": "def f(): ..."})
    monkeypatch.setenv("PYTHONPATH", f"{repository}/ignored/site-packages")
    assert planned(repository, tmp_path / "runs", workload=function("packed:f")).code.path == ()


@pytest.mark.parametrize(
    ("script", "runs", "noted"),
    [
        ("module", "module", False),
        ("../train", "../train", False),
        ("../../re po/train", "{code}/train", False),
        ("{root}/train", "{code}/train", False),
        ("{link}/train", "{code}/train", False),
        ("{code}/train", "{code}/train", False),
        ("/x.py", "/x.py", True),
        ("../../x.py", "{beside}/x.py", True),
    ],
)
def test_a_script_of_the_repository_is_that_of_the_copy(
    repository: Path, tmp_path: Path, script: str, runs: str, noted: bool
) -> None:
    names = {"root": repository, "code": tmp_path / "runs/run-1/code", "beside": tmp_path, "link": tmp_path / "link"}
    (tmp_path / "link").symlink_to(repository)
    plan = planned(repository / "sub", tmp_path / "runs", workload=program(script=script.format(**names)))
    assert plan.workload.params["script"] == runs.format(**names)
    assert [*map(str, snapshot.notes(plan))] == noted * [
        f"workload.script={plan.workload.params['script']} is not in {repository}, so in no snapshot: the job uses its "
        "later changes"
    ]


def test_folders_of_the_repository_on_pythons_path_are_those_of_the_copy(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the shell, the profile or a set-up line has put them there."""
    sites = f"{repository}/.venv/lib/site-packages"
    (tmp_path / "link").symlink_to(repository)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/link/sub:/elsewhere:{repository}-other:{sites}")
    monkeypatch.setattr("sys.path", [str(repository), sites, *sys.path])
    plan = planned(repository, tmp_path / "runs")
    assert plan.code.path == (f"{plan.code.snapshot}/sub", str(plan.code.snapshot))
    sandbox = Sandbox(tmp_path / "box")
    setup = (f"export PYTHONPATH={tmp_path}/link/more:{plan.code.snapshot}/mine::$PYTHONPATH",)
    kept = f"/elsewhere:{repository}-other:{sites}"
    outcome = sandbox.execute(sandbox.plan(code=plan.code, env={"setup": setup}), PYTHONPATH=os.environ["PYTHONPATH"])
    assert outcome.environment["PYTHONPATH"] == ":".join(
        [
            f"{plan.code.snapshot}/sub",
            str(plan.code.snapshot),
            f"{plan.code.snapshot}/more",
            f"{plan.code.snapshot}/mine",
            "",
            kept,
        ]
    )


def test_so_are_those_that_the_profile_names(repository: Path, tmp_path: Path) -> None:
    named = f"{repository}/sub:sub:/elsewhere"
    plan = planned(repository, tmp_path / "runs", cluster={"environment": {"PYTHONPATH": named, "A": str(repository)}})
    assert plan.cluster.environment == {"PYTHONPATH": f"{plan.code.snapshot}/sub:sub:/elsewhere", "A": str(repository)}
    assert plan.code.path[:1] == (f"{plan.code.snapshot}/sub",)


def test_without_any_python_path_there_is_none(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "box")
    assert "PYTHONPATH" not in sandbox.execute(sandbox.plan(code={"snapshot": "/c", "repository": "/r"})).environment


def recorded(plan: JobPlan) -> Run:
    run = Run.create(Path(plan.run_dir))
    snapshot.take(plan)
    run.write_record(plan, {}, {})
    return run


def test_a_run_that_goes_on_has_the_same_copy_unless_another_is_wanted(repository: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first = planned(repository, runs)
    run = recorded(first)
    files(repository, train="newer")
    again = planned(repository, runs)
    snapshot.take(again)
    assert again.code.snapshot == first.code.snapshot
    assert (run.path / "code/train").read_text() == "new"
    another = planned(repository, runs, again=True)
    snapshot.take(another)
    assert another.code.snapshot == f"{first.code.snapshot}-1"
    assert (run.path / "code-1/train").read_text() == "newer"
    (run.path / "code").rename(run.path / "lost")
    with pytest.raises(RunError, match="--new-snapshot"):
        planned(repository, runs)
    assert planned(repository, runs, again=True).code.snapshot == first.code.snapshot  # not code-1, which is older code


def into(config: Config, run: Run) -> Any:
    return Inputs().with_workload(config, run)[0].workload


def test_what_goes_on_with_a_copy_needs_no_more_than_that(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(repository, **{"sub__gen.py": "def f(): ...", "sub__new.py": "x = 1"})
    monkeypatch.chdir(repository / "sub")
    run = recorded(planned(repository / "sub", tmp_path / "runs"))
    (repository / "sub/new.py").rename(repository / "sub/newer.py")
    files(repository, **{"sub__gen.py": "def f(:"})
    for workload in (function("gen:f"), program(script="new.py"), program(script=f"{repository}/sub/new.py")):
        config = make_config(env=Env(snapshot=True), workload=workload)
        assert into(config, run).name == workload.name
        with pytest.raises(ConfigError, match=r"line 1|there is no file new\.py"):
            Inputs().with_workload(config)
    script = into(make_config(env=Env(snapshot=True), workload=program(script=f"{repository}/sub/new.py")), run).script
    assert script == f"{run.path}/code/sub/new.py"
    with pytest.raises(ConfigError, match=r"there is no file newer\.py in .*/runs/run-1/code/sub"):
        into(make_config(env=Env(snapshot=True), workload=program(script="newer.py")), run)


def test_one_that_goes_on_in_the_copy_stays_in_its_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the folder of submission is gone, `resume` is in that of the copy, which may be in the repository."""
    monkeypatch.setenv("PYTHONPATH", f"{repository}/sub")
    runs = repository / "runs"
    first = planned(repository / "sub", runs)
    recorded(first)
    monkeypatch.delenv("PYTHONPATH")
    again = planned(Path(first.workdir), runs)
    assert (again.workdir, again.submitted_in) == (first.workdir, first.submitted_in)
    assert again.code.path == first.code.path  # of a shell that may have had another one
    (tmp_path / "link").symlink_to(runs)
    assert snapshot.moved(first.workdir, str(repository), f"{tmp_path}/link/run-1/code").endswith("link/run-1/code/sub")


def test_the_launchers_own_folder_of_a_run_is_not_looked_for_in_the_copy(repository: Path) -> None:
    runs = repository / "runs"
    site = dataclasses.replace(site_in(repository, runs), code_root=f"{runs}/run-1/lib")
    config = make_config(runs_dir=str(runs), env=Env(snapshot=True))
    assert Inputs().with_code(config, site).code_root == f"{runs}/run-1/lib"
    site = dataclasses.replace(site, code_root=str(repository))
    assert Inputs().with_code(config, site).code_root == f"{runs}/run-1/code"


def test_a_point_that_had_none_gets_one_of_its_own(repository: Path, tmp_path: Path) -> None:
    """Another point's, however old, is not taken for it."""
    folder = tmp_path / "runs/lr/3"
    site = dataclasses.replace(SITE, workdir=str(repository), run_dir=str(folder))
    folder.parent.mkdir(parents=True)
    recorded(make_plan(make_config(runs_dir=str(tmp_path / "runs")), site))
    config = make_config(runs_dir=str(tmp_path / "runs"), env=Env(snapshot=True))
    assert snapshot.into_plan(make_plan(config, Inputs().with_code(config, site))).code.snapshot == f"{folder}/code"


def test_points_of_a_sweep_share_one(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Inputs()
    config = make_config(runs_dir=str(tmp_path / "runs"), env=Env(snapshot=True))
    plans = []
    for number in range(3):
        site = dataclasses.replace(SITE, workdir=str(repository), run_dir=str(tmp_path / f"runs/lr/{number}"))
        plans.append(snapshot.into_plan(make_plan(config, inputs.with_code(config, site))))
    assert {plan.code.snapshot for plan in plans} == {str(tmp_path / "runs/lr/code")}
    (tmp_path / "runs/lr").mkdir(parents=True)
    recorded(plans[0])
    files(repository, train="newer")
    site = dataclasses.replace(SITE, workdir=str(repository), run_dir=str(tmp_path / "runs/lr/7"))
    inputs = Inputs()
    added_later = snapshot.into_plan(make_plan(config, inputs.with_code(config, site)))
    monkeypatch.setattr(Path, "glob", lambda *_: pytest.fail("the points are listed again"))
    inputs.with_code(config, dataclasses.replace(site, run_dir=str(tmp_path / "runs/lr/8")))
    assert added_later.code.snapshot == plans[0].code.snapshot


def test_a_copy_that_was_cut_short_is_made_again(repository: Path, tmp_path: Path) -> None:
    plan = planned(repository, tmp_path / "runs")
    Run.create(Path(plan.run_dir))
    (Path(plan.run_dir) / ".code-99/sub").mkdir(parents=True)
    Run.create(Path(plan.run_dir))  # its submitter was killed before it had written the record
    snapshot.take(plan)
    assert (Path(plan.run_dir) / "code/train").read_text() == "new"


def test_an_interrupted_copy_leaves_nothing(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(repository, tmp_path / "runs")
    run = Run.create(Path(plan.run_dir))
    before = {*run.path.iterdir()}
    monkeypatch.setattr(snapshot, "_copy", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        snapshot.take(plan)
    assert {*run.path.iterdir()} == before


def test_a_copy_that_another_submission_of_the_run_makes_meanwhile_is_taken(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(repository, tmp_path / "runs")
    run = Run.create(Path(plan.run_dir))

    def another(*_: object) -> None:
        files(run.path / "code", train="its")

    monkeypatch.setattr(snapshot, "_copy", another)
    snapshot.take(plan)
    assert (run.path / "code/train").read_text() == "its"
    assert not [*run.path.glob(".code*")]


def test_without_it_nothing_is_copied_and_git_is_not_asked(tmp_path: Path) -> None:
    plan = planned(tmp_path, tmp_path / "runs", env=Env())
    snapshot.take(plan)
    assert (plan.code.snapshot, plan.workdir, plan.submitted_in) == (None, str(tmp_path), str(tmp_path))
    assert not (tmp_path / "runs").exists()
