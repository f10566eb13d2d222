"""One command of a scheduler: bounded in time and in what it prints."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from launcher import io_bounds
from launcher.schedulers.base import QueryError, QueryTimeout
from launcher.schedulers.run_command import NoAnswer, SubmitCommand, query, run_submission


@pytest.mark.parametrize("where", ["", ">&2"])
def test_what_goes_on_printing_is_ended(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_bounds, "QUERY_BYTES", 1 << 20)
    with pytest.raises(QueryError, match="sh printed more than 1 MiB, which is no answer"):
        query("sh", "-c", f"exec yes {where}", timeout=60, environment=os.environ)
    with pytest.raises(NoAnswer, match="sh printed more than 1 MiB, which is no answer"):
        run_submission(SubmitCommand(["sh", "-c", f"exec yes {where}"], os.environ), timeout=60)


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(QueryTimeout, match=r"sleep did not answer within 0\.01 s"):
        query("sleep", "1000", timeout=0.01, environment=os.environ)
    with pytest.raises(NoAnswer, match=r"sh did not answer within 0\.01 s"):
        run_submission(SubmitCommand(["sh", "-c", "exec >/dev/null 2>&1; exec sleep 1000"], os.environ), timeout=0.01)


def test_nothing_of_a_submission_that_takes_too_long_is_left(tmp_path: Path) -> None:
    """A site's wrapper has started the command that submits."""
    wrapper = f"(sleep 0.5; touch {tmp_path}/submitted) & wait"
    with pytest.raises(NoAnswer, match=r"sh did not answer within 0\.1 s"):
        run_submission(SubmitCommand(["sh", "-c", wrapper], os.environ), timeout=0.1)
    time.sleep(1.0)
    assert not (tmp_path / "submitted").exists()


def test_output_errors_code_and_input(tmp_path: Path) -> None:
    text = "größe\n" * 50_000  # more than a pipe holds
    done = run_submission(SubmitCommand(["sh", "-c", "cat; umask >&2; exit 3"], os.environ, text, 0o077), timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (text, "0077\n", 3)
    assert run_submission(SubmitCommand(["sh", "-c", "exit 1"], os.environ, text), timeout=60).returncode == 1
    assert (
        query("sh", "-c", r"printf 'a\377\r\n'", timeout=60, environment=os.environ).stdout
        == "a\N{REPLACEMENT CHARACTER}\n"
    )
    assert query("cat", timeout=60, environment=os.environ).stdout == ""
    with pytest.raises(QueryError, match=r"sh failed \(exit 2\): words"):
        query("sh", "-c", "echo words >&2; exit 2", timeout=60, environment=os.environ)
    with pytest.raises(QueryError, match="nothing-like-this is not on this machine's PATH"):
        query("nothing-like-this", timeout=60, environment=os.environ)


def test_descriptors_are_inherited_by_what_hands_over_alone() -> None:
    read, write = os.pipe()
    try:
        os.set_inheritable(write, True)
        shown = ["sh", "-c", f"test -e /proc/self/fd/{write} && echo there; true"]
        assert run_submission(SubmitCommand(shown, os.environ), timeout=60).stdout == "there\n"
        assert query(*shown, timeout=60, environment=os.environ).stdout == ""
    finally:
        os.close(read)
        os.close(write)


def test_the_line_for_a_shell_gives_the_command_its_environment_and_umask(tmp_path: Path) -> None:
    script = tmp_path / "it's a script.sh"
    script.write_text("umask; echo ${A-none} ${B-none}\n")
    shell = {"PATH": os.environ["PATH"], "A": "1", "B": "2"}
    line = SubmitCommand(["bash", str(script)], {"PATH": "", "B": "2"}, umask=0o027).line(shell)
    done = subprocess.run(["bash", "-c", line], env=shell, capture_output=True, text=True, check=True)
    assert done.stdout == "0027\nnone 2\n"
    assert SubmitCommand(["qsub", "a.sh"], shell).line(shell) == "qsub a.sh"
