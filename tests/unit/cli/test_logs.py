"""`logs`: across attempts, of some ranks, and how often it looks while nothing comes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.cli import commands, logs, progress_bars
from launcher.errors import RunError
from launcher.paths import PACKAGE
from launcher.runs import event_files
from launcher.runs import events as kinds
from launcher.runs.directory import Run
from tests.unit.faults import FileServer
from tests.unit.plans import plan_of


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    run = Run.create(tmp_path / "a")
    run.write_record(plan_of(), {}, {"launcher": "1", "token": "t"})
    return run


def attempt(run: Run, number: int, job: str, **ranks: str) -> None:
    """An attempt whose job and ranks (`out_0="text"`) have printed."""
    folder = run.path / "attempts" / str(number)
    for name in ("events", "logs"):
        (folder / name).mkdir(parents=True)
    event_files.append(folder / "events" / "script.jsonl", kinds.Started(job=job, output=0))
    for name, text in ranks.items():
        stream, _, rank = name.partition("_")
        (folder / "logs" / f"rank-{rank}.{stream}").write_text(text)
        with open(run.path / f"output-{job}.log", "a") as file:
            file.write(f"[{rank}] {text}")


def attempt_prints(run: Run, *names: str) -> None:
    for name in names:
        (run.path / "attempts/0/logs" / name).write_text("x\n")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def show(*words: str) -> str:
        assert commands.main(["logs", *words]) == 0
        return re.sub(r"([\d-]{10} )?\d\d:\d\d ---", "12:03 ---", capsys.readouterr().out)

    return show


def test_ranks_and_attempts(run: Run, shown: Callable[..., str]) -> None:
    attempt(run, 0, "7", out_0="a\n", out_1="b\n", err_1="oh\n")
    attempt(run, 1, "8", out_0="c\n", out_1="d\n")
    between = "--- attempt 1, job 8, 12:03 ---\n"
    assert shown("a") == f"[0] a\n[1] b\n[1] oh\n{between}[0] c\n[1] d\n"
    assert shown("a", "--attempt", "1") == "[0] c\n[1] d\n"
    assert shown("a", "--rank", "0,1", "--attempt", "0") == "[0] a\n[1] b\n[1] oh\n"
    assert shown("a", "--rank", "1") == f"b\noh\n{between}d\n"
    assert shown("a", "--rank", "1", "--attempt", "0") == "b\noh\n"
    assert shown("a", "--rank", "1", "--tail", "2") == f"oh\n{between}d\n"
    assert shown("a", "--tail", "1") == "[1] d\n"


def test_a_rank_can_be_read_though_the_events_of_another_attempt_cannot(run: Run, shown: Callable[..., str]) -> None:
    attempt(run, 0, "7", out_0="a\n")
    attempt(run, 1, "8", out_0="c\n")
    damaged = run.path / "attempts" / "0" / "events" / "script.jsonl"
    damaged.unlink()
    damaged.mkdir()
    assert shown("a", "--rank", "0", "--attempt", "1") == "c\n"


def test_the_logs_of_many_ranks_are_listed_once(
    run: Run, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(run, 0, "7", **{f"out_{rank}": "a\n" for rank in range(20)})
    listed, glob = [], Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, pattern: listed.append(path.name) or glob(path, pattern))
    assert shown("a", "--rank", "0-19").count("a\n") == 20
    assert listed.count("logs") == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--rank", "0-2"], "a has no rank 2 in attempt 0: it has 2 ranks"),
        (["--attempt", "1"], "a has no attempt 1, only 0"),
    ],
)
def test_what_is_not_there(run: Run, words: list[str], problem: str) -> None:
    attempt(run, 0, "7", out_0="a\n", out_1="b\n")
    with pytest.raises(RunError, match=problem):
        commands.main(["logs", "a", *words])


@pytest.mark.parametrize("words", [(), ("-f",), ("-f", "--rank", "3")])
def test_a_run_that_has_not_started_is_told_as_such(
    run: Run, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "_is_over", lambda _: lambda: True)  # its job was lost, say
    monkeypatch.setattr(logs, "QUIET", 0.0)
    assert commands.main(["logs", "a", *words]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "", "launcher: a has not started, so it has printed nothing: see `why a`\n"
    )  # fmt: skip
    attempt(run, 0, "7")
    assert commands.main(["logs", "a"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "problem", "steps_left"),
    [
        (["--attempt", "5"], "a has no attempt 5, only 0", 1),  # told when it starts
        (["--rank", "1,99"], "a has no rank 99 in attempt 0: it has 2 ranks", 0),
    ],
)
def test_what_a_run_that_had_not_started_turns_out_not_to_have(
    run: Run, words: list[str], problem: str, steps_left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([
        lambda: attempt(run, 0, "7"),
        lambda: attempt_prints(run, "rank-0.out", "rank-1.out"),
    ])  # fmt: skip

    def over() -> bool:
        step = next(steps, None)
        if step is not None:
            step()
        return step is None

    monkeypatch.setattr(logs, "_is_over", lambda _: over)
    monkeypatch.setattr(logs, "QUIET", 0.0)
    monkeypatch.setattr("launcher.schedulers.job_cache.interval", lambda *_: 0.0)
    with pytest.raises(RunError, match=problem):
        commands.main(["logs", "a", "-f", *words])
    assert len(list(steps)) == steps_left


def test_a_rank_whose_attempt_has_only_begun_is_waited_for(
    run: Run, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(run, 0, "7")
    answers = iter([lambda: attempt_prints(run, "rank-0.out"), None])

    def over() -> bool:
        if (step := next(answers)) is not None:
            step()
        return step is None

    monkeypatch.setattr(logs, "_is_over", lambda _: over)
    monkeypatch.setattr(logs, "QUIET", 0.0)
    monkeypatch.setattr("launcher.schedulers.job_cache.interval", lambda *_: 0.0)
    with pytest.raises(RunError, match="a has no rank 1 in attempt 0: it has 0 ranks"):  # the plan has one rank
        commands.main(["logs", "a", "-f", "--rank", "1"])
    assert shown("a", "-f", "--rank", "0") == "x\n"


@pytest.mark.parametrize(("words", "printed"), [([], "[0] a\n"), (["--rank", "0"], "a\n")])
def test_a_file_server_that_is_silent_at_first_ends_nothing(
    run: Run, words: list[str], printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    server: FileServer,
) -> None:  # fmt: skip
    attempt(run, 0, "7", out_0="a\n")
    monkeypatch.setattr(logs, "_is_over", lambda _: lambda: True)
    monkeypatch.setattr(progress_bars.time, "sleep", lambda _: server.recover())
    server.fail(run.path / "attempts")
    monkeypatch.setattr(logs, "find_either", lambda *_: run)
    assert commands.main(["logs", "a", "-f", *words]) == 0
    assert capsys.readouterr().out == printed


def test_it_follows_from_one_attempt_to_the_next(
    run: Run, shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(run, 0, "7", out_0="a\n")
    steps = iter([
        lambda: event_files.append(run.attempts()[0].events_file("script"), kinds.Ended(code=75)),
        lambda: attempt(run, 1, "8", out_0="b\n"),
        lambda: event_files.append(run.attempts()[1].events_file("script"), kinds.Ended(code=0)),
    ])  # fmt: skip
    queried = []

    def over() -> bool:
        step = next(steps, None)
        queried.append(step)
        if step is not None:
            step()
        return step is None

    monkeypatch.setattr(logs, "_is_over", lambda _: over)
    monkeypatch.setattr("launcher.schedulers.job_cache.interval", lambda *_: 0.0)
    assert shown("a", "-f") == "[0] a\n--- attempt 1, job 8, 12:03 ---\n[0] b\n"
    assert len(queried) == 4  # whenever the record changed, and never else


def test_a_file_server_that_is_silent_for_a_while_ends_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: FileServer
) -> None:
    attempt(run, 0, "7", out_0="a\n")
    answers = iter([False, False, True])

    def over() -> bool:
        server.fail(run.path)
        return next(answers)

    pauses = []

    def sleep(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
            server.recover()

    monkeypatch.setattr(logs, "_is_over", lambda _: over)
    monkeypatch.setattr(logs, "QUIET", 0.0)
    monkeypatch.setattr("launcher.schedulers.job_cache.interval", lambda *_: 0.0)
    monkeypatch.setattr(progress_bars.time, "sleep", sleep)
    assert commands.main(["logs", "a", "-f"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "[0] a\n"
    assert printed.err.count("launcher: waiting: ") == len(pauses) == 3


def test_output_alone_asks_no_scheduler_and_loads_nothing_heavy(run: Run, tmp_path: Path) -> None:
    attempt(run, 0, "7", out_0="a\n")
    heavy = ("torch", "hydra", "omegaconf", "submitit", "rich", "yaml", "subprocess", "launcher.monitoring.run_status")
    code = (
        f"import sys; from launcher.cli.commands import main; main(['logs', 'a', '--runs-dir', {str(tmp_path)!r}])\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[0] a\n", "[]\n")


def test_a_progress_bar_is_one_line(run: Run, shown: Callable[..., str]) -> None:
    bars = "[0] begins\n[0]   0%\r[1]  10%\r[0]  50%\r[1] one says hello\n[0] 100%\n[1]  60%\r"
    attempt(run, 0, "7", out_0="begins\n", out_1="")
    (run.path / "output-7.log").write_text(bars)
    (run.path / "attempts/0/logs/rank-1.err").write_text("\r  0%\r 10%\none says hello\n\r 60%")
    assert shown("a") == "[0] begins\n[1] one says hello\n[0] 100%\n[1]  60%\n"
    assert shown("a", "--rank", "0,1", "--tail", "2") == "[1] one says hello\n[0] 100%\n[1]  60%\n"
    assert shown("a", "--rank", "1") == " 10%\none says hello\n 60%"
