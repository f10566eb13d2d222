"""Whose a folder is, and what is not done in one that is not the user's own."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.cli.status import Rows
from launcher.errors import ConfigError, RunError
from launcher.files import folder_checks, safe_io
from launcher.files.folder_checks import Folder, User, problem, replaceable, why_not_own
from launcher.monitoring.run_status import JobMonitor
from launcher.processes import Process
from launcher.runs import events as kinds
from launcher.runs import live_runs_index
from launcher.runs.directory import Run
from launcher.runs.sweep_directory import Sweep
from launcher.schedulers import functions as functions_executor
from launcher.schedulers.pbs.executor import PBSExecutor
from launcher.schedulers.qsub import Qsub, QsubKind
from tests.unit.plans import bare_plan

pytestmark = pytest.mark.root

ME, OTHER, GROUP, MINE = 1000, 2000, 500, 1000
USER = User(ME, private_group=MINE)
ROOT = Folder("/", 0, 0, 0o755)
HOME = Folder("/home", 0, 0, 0o755)
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make what belongs to somebody else")


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "trusted", "words"),
    [
        (ME, GROUP, 0o755, (), None),
        (ME, GROUP, 0o700, (), None),
        (0, 0, 0o755, (), None),
        (0, 0, 0o1777, (), None),
        (0, 0, 0o777, (), "everybody can replace what is in /x"),
        (ME, GROUP, 0o777, (), "everybody can replace what is in /x"),
        (ME, GROUP, 0o2770, (), "group 500 can replace what is in /x"),
        (ME, GROUP, 0o3770, (), None),
        (ME, MINE, 0o775, (), None),
        (0, GROUP, 0o2775, (), "group 500 can replace what is in /x"),
        (0, GROUP, 0o2775, ("/x",), None),
        (0, GROUP, 0o2775, ("/",), "group 500 can replace what is in /x"),
        (OTHER, GROUP, 0o755, (), "/x belongs to user 2000, who can replace what is in it"),
        (OTHER, GROUP, 0o1777, (), "/x belongs to user 2000, who can replace what is in it"),
        (OTHER, GROUP, 0o2770, ("/x",), None),
    ],
)
def test_who_could_replace_a_folder_on_the_way(
    uid: int, gid: int, mode: int, trusted: tuple[str, ...], words: str | None
) -> None:
    way = [ROOT, Folder("/x", uid, gid, mode)]
    assert replaceable(way, USER, trusted) == words
    last = Folder("/x/run", ME, MINE, 0o700)
    assert problem([*way, last], USER, trusted) == words


def test_nobody_else_gets_below_a_folder_that_only_the_user_may_enter() -> None:
    open_to_all = Folder("/home/me/shared", ME, GROUP, 0o777)
    assert replaceable([ROOT, HOME, Folder("/home/me", ME, MINE, 0o700), open_to_all], USER) is None
    assert replaceable([ROOT, HOME, Folder("/home/me", ME, MINE, 0o711), open_to_all], USER) is not None


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "words"),
    [
        (ME, GROUP, 0o700, None),
        (ME, GROUP, 0o755, None),
        (ME, MINE, 0o770, None),
        (ME, GROUP, 0o770, "group 500 can write to /run (`chmod 700 /run` after a look into it)"),
        (ME, GROUP, 0o1777, "everybody can write to /run (`chmod 700 /run` after a look into it)"),
        (0, 0, 0o755, "/run belongs to root, not to you"),
        (OTHER, GROUP, 0o700, "/run belongs to user 2000, not to you"),
    ],
)
def test_whose_the_last_folder_is(uid: int, gid: int, mode: int, words: str | None) -> None:
    assert problem([ROOT, Folder("/run", uid, gid, mode)], USER) == words


def test_a_link_to_a_folder_is_not_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    (tmp_path / "way").symlink_to(tmp_path)
    assert why_not_own(tmp_path / "own") is None
    assert why_not_own(tmp_path / "way" / "own") is None
    assert not folder_checks.is_own(tmp_path / "link")
    assert not folder_checks.is_own(tmp_path / "nothing")


walked = folder_checks._walked


def trust(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(folder_checks.TRUSTED_FOLDERS, f"/elsewhere:{folder}")


@pytest.fixture
def open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the way to everything in it, as if it were not in one that nobody else may enter."""
    monkeypatch.setattr(folder_checks, "_user", lambda: User(os.getuid()))
    tmp_path.chmod(0o755)
    shared = tmp_path / "project"
    shared.mkdir()
    shared.chmod(0o2770)
    # pytest's own folder, which nobody else may enter, would make everything below it safe
    monkeypatch.setattr(folder_checks, "_walked", lambda path: [
        replace(each, mode=each.mode | 0o011) if each.uid == os.getuid() else each for each in walked(path)
    ])  # fmt: skip
    return shared


@pytest.mark.parametrize("mode", [0o777, 0o2770])
@pytest.mark.parametrize("make", [Run.create, Sweep.create])
def test_no_run_is_made_where_others_could_exchange_it(
    open_to_others: Path, mode: int, make: type[Run] | type[Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = open_to_others
    shared.chmod(mode)
    with pytest.raises(ConfigError, match=f"runs_dir={shared}/runs: .* can replace what is in {shared}"):
        make(shared / "runs" / "run-1")  # type: ignore[operator]
    assert not (shared / "runs").exists()
    trust(monkeypatch, shared)
    path = make(shared / "runs" / "run-1").path  # type: ignore[operator]
    assert folder_checks.is_own(path), "commands that have no config know it as well"


def test_no_function_is_submitted_from_a_folder_that_others_could_exchange(
    open_to_others: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions_executor, "detect", lambda: Qsub(QsubKind.PBS))
    executor = PBSExecutor(open_to_others / "jobs")
    words = f"folder={open_to_others}/jobs: .* can replace what is in {open_to_others}"
    with pytest.raises(ConfigError, match=words):
        executor.submit(print)
    assert not (open_to_others / "jobs").exists()
    trust(monkeypatch, open_to_others)
    monkeypatch.setattr(functions_executor, "submit_once", lambda *_: "7.pbs-srv")
    assert executor.submit(print).job_id == "7.pbs-srv"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_folders_on_the_way_are_the_users_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        run = Run.create(tmp_path / "a" / "b" / "run-1")
        sweep = Sweep.create(tmp_path / "c" / "d" / "sweep-1")
        run.link(tmp_path / "e" / "f")
    finally:
        os.umask(before)
    for path in (*run.path.parents[:2], *sweep.path.parents[:2], tmp_path / "e", tmp_path / "e/f", run.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_what_is_written_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    page = tmp_path / "report.html"
    page.symlink_to(victim)
    safe_io.replace(page, b"a page")
    assert victim.read_text() == "mine"
    assert not page.is_symlink()
    assert page.read_bytes() == b"a page"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "report.html"}


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="it is a FIFO, and not a regular file"):
        safe_io.replace(tmp_path / "fifo", b"")


def test_temporary_names_cannot_be_guessed() -> None:
    names = {safe_io.temporary_name("report.html") for _ in range(100)}
    assert len(names) == 100
    assert len(safe_io.temporary_name("x" * 255).encode()) <= 255


def strangers(folder: Path, name: str = "theirs") -> Run:
    """A run of somebody else, who lets all read it."""
    run = Run.create(folder / name)
    plan = bare_plan(run_id=name, run_dir=str(run.path), cluster={"scheduler": "local"}, python=f"{run.path}/python")
    record = {"launcher": "1", "token": "t", "overrides": ["workload=collective"]}
    run.write_record(plan, {}, record)
    return run


def give_away(run: Run) -> None:
    for path in (run.path, *run.path.rglob("*")):
        os.chown(path, 12345, 12345)
        path.chmod(0o755 if path.is_dir() else 0o644)


@as_root
@pytest.mark.parametrize(
    "words",
    [["attach"], ["attach", "--shell"], ["attach", "--debug"], ["resume"], ["resume", "nodes=2"], ["cancel"]],
)
def test_nothing_of_a_strangers_run_is_executed_or_signalled(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        run = strangers(tmp_path)
        process = Process.of(sleeper.pid)
        run.journal(kinds.ProcessStarted(pid=process.pid, start=process.start, host=process.host))
        run.journal(kinds.Submitted(job="local-launcher-1"))
        give_away(run)
        before = sorted(path for path in run.path.rglob("*"))
        command, *options = words
        assert main([command, str(run.path), *options]) == 1
        told = capsys.readouterr()
        assert f"{run.path} belongs to user 12345, not to you: {run.path} is only shown" in told.err
        assert told.out == ""
        with pytest.raises(RunError, match="not to you"):
            JobMonitor().cancel(run)
        assert process.alive()
        assert sorted(path for path in run.path.rglob("*")) == before
        assert main(["status", str(run.path)]) == 0
    finally:
        sleeper.communicate(b"\n")


@as_root
@pytest.mark.parametrize("words", [["cancel"], ["rerun"], ["throttle", "2"]])
def test_a_strangers_sweep_is_not_changed(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from tests.unit.sweep_runs import make_sweep

    sweep = make_sweep(tmp_path, 2)
    give_away(Run(sweep.path))
    action, *rest = words
    assert main(["sweep", action, str(sweep.path), *rest]) == 1
    assert "belongs to user 12345, not to you" in capsys.readouterr().err
    assert main(["cancel", str(sweep.path)]) == 1


def test_an_index_that_is_a_link_has_nothing_made_or_removed_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis").write_text("mine")
    os.utime(home / "thesis", (0, 0))
    shared = tmp_path / "shared"
    strangers(shared)
    (shared / live_runs_index.FOLDER).symlink_to(home)
    for _ in range(3):
        Rows([], shared, False).look()
        live_runs_index.add_to(shared, "new")
    assert {path.name for path in home.iterdir()} == {"thesis"}


def test_a_link_that_somebody_else_can_turn_makes_a_way_unsafe() -> None:
    """What a link leads to now may be fine; who can replace the link decides what it leads to later."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are below one that nobody else may enter
        folder = Path(os.path.realpath(name))
        folder.chmod(0o755)
        (folder / "mine").mkdir(mode=0o700)
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)
        (folder / "open" / "link").symlink_to(folder / "mine")
        (folder / "link").symlink_to("mine")
        (folder / "loop").symlink_to("loop")
        assert folder_checks.why_replaceable(folder / "link" / "runs") is None
        why = f"everybody can replace what is in {folder}/open"
        assert folder_checks.why_replaceable(folder / "open" / "link" / "runs") == why
        folder_checks.why_replaceable(folder / "loop")  # comes to an end


def test_a_list_of_names_makes_a_private_group_public() -> None:
    way = Folder("/", 0, 0, 0o40755), Folder("/home", 7, 7, 0o40775), Folder("/home/shared", 7, 7, 0o40775, True)
    assert replaceable(way[:2], User(7, 7)) is None
    assert replaceable(way, User(7, 7)) == "whoever its access control list names can replace what is in /home/shared"


def test_what_names_no_folder_is_no_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv(folder_checks.TRUSTED_FOLDERS, f"relative::~/x:{tmp_path}/link")
    assert folder_checks.trusted_folders() == [str(tmp_path)]
