"""What the real commands of Son of Grid Engine 8.1.9 printed, as the launcher reads it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.schedulers.base import AnswerLost, AnswerTooLong, JobState, QueryError
from launcher.schedulers.run_command import NoAnswer, SubmissionRefused
from launcher.schedulers.sge import client
from launcher.schedulers.sge.client import SGE

Says = Callable[..., None]
RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Makes a command that prints something; the folder is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(name: str, output: str = "", errors: str = "", code: int = 0) -> None:
        for stream, text in (("out", output), ("err", errors)):
            (tmp_path / f"{name}.{stream}").write_text(text)
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n/bin/cat {path}.out\n/bin/cat {path}.err >&2\nexit {code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make


def test_a_script_need_not_be_utf_8(tmp_path: Path) -> None:
    (tmp_path / "script.sh").write_bytes(b"#qsub -g team\nlauncher_workdir=/home/me/\xe4\n")
    assert SGE().request(str(tmp_path / "script.sh"), {}).command[:3] == ["qsub", "-g", "team"]


def test_jobs_and_elements_of_arrays_are_told_apart() -> None:
    jobs = client.parse_jobs(recorded("qstat-g-d.xml"))
    assert {job.id: job.raw_state for job in jobs.values()} == {
        "5": "r", "15": "r", "9": "qw", "17": "qw", "7": "hqw",
        "6_0": "r", "6_1": "r", "6_2": "qw", "6_3": "qw", "8_0": "hqw", "8_1": "hqw", "8_2": "hqw", "8_3": "hqw",
    }  # fmt: skip
    assert {job.state for job in jobs.values()} == {JobState.RUNNING, JobState.PENDING}


def test_jobs_count_in_the_queue_where_they_run_or_which_they_ask_for() -> None:
    assert client.parse_counts(recorded("qstat-r-g-d.xml")) == {"": 6, "all.q": 4}


@pytest.mark.parametrize(
    ("letters", "state"),
    [
        ("r", JobState.RUNNING), ("t", JobState.RUNNING), ("Rr", JobState.RUNNING), ("dr", JobState.RUNNING),
        ("qw", JobState.PENDING), ("hqw", JobState.PENDING), ("Eqw", JobState.PENDING), ("Rq", JobState.PENDING),
        ("s", JobState.SUSPENDED), ("S", JobState.SUSPENDED), ("T", JobState.SUSPENDED), ("Rs", JobState.SUSPENDED),
        ("z", JobState.GONE), ("?", JobState.UNKNOWN), ("", JobState.UNKNOWN),
    ],
)  # fmt: skip
def test_letters_of_states(letters: str, state: JobState) -> None:
    assert client.state_of(letters) is state


def test_a_job_is_found_by_the_token_in_its_context(says: Says) -> None:
    says("qstat", recorded("qstat-j.xml"))
    assert SGE().find("tok2", "arr") == "6"
    assert SGE().find("tok3", "arr") is None
    origins = SGE().origins(["5", "6", "7"])
    assert {number: (each.token, each.file) for number, each in origins.items()} == {
        "5": ("tok1", "/home/me/out.$JOB_ID.$TASK_ID"), "6": ("tok2", "/home/me/out.$JOB_ID.$TASK_ID"),
    }  # fmt: skip


def test_a_job_that_is_not_there_is_no_error(says: Says) -> None:
    says("qstat", recorded("qstat-j-unknown.xml"), code=1)
    assert SGE().find("tok2", "arr") is None
    assert SGE().origins(["99999"]) == {}


@pytest.mark.parametrize(
    ("ask", "output", "code"),
    [
        (lambda sge: sge.find("launcher-1", "job"),
         "<?xml version='1.0'?>\n<comunication_error >\n <AN_status>11</AN_status>\n</comunication_error>\n", 0),
        (lambda sge: sge.environment("mpi"), "", 1),
        (lambda sge: sge.environments(), "", 1),
        (lambda sge: sge.queues(), "", 1),
        (lambda sge: sge.verified("5"), "", 1),
    ],
)  # fmt: skip
def test_without_a_qmaster_it_is_not_known_what_there_is(
    says: Says, ask: Callable[[SGE], object], output: str, code: int
) -> None:
    reason = 'unable to send message to qmaster using port 6444 on host "head": got send error\n'
    for command in ("qstat", "qconf", "qalter"):
        says(command, output, f"error: commlib error: got select error (Connection refused)\n{reason}", code)
    with pytest.raises(QueryError, match="unable to send message to qmaster"):
        ask(SGE())


def test_what_is_no_xml_is_no_answer(says: Says) -> None:
    says("qstat", "Welcome to our cluster!\n")
    with pytest.raises(QueryError, match="could not be read"):
        SGE().jobs()


def test_ends_of_jobs() -> None:
    ends = {key: client.last_of(times) for key, times in client.records(recorded("qacct.txt")).items()}
    told = {key: (end.state, end.raw_state, end.reason) for key, end in ends.items()}
    assert told["6_0"] == told["6_1"] == (JobState.DONE, "COMPLETED", "")
    assert told["21"] == (JobState.FAILED, "FAILED", "exit status 3"), "the time after it was requeued counts"
    assert told["22"][:2] == (JobState.FAILED, "TIMEOUT")
    assert told["37"][:2] == (JobState.FAILED, "OUT_OF_MEMORY"), "maxvmem 455.676MB, with -l h_vmem=400M"
    assert told["38"] == (JobState.FAILED, "FAILED", "qmaster enforced h_rt, h_cpu, or h_vmem limit"), "it was h_cpu"
    assert told["29"] == (JobState.FAILED, "FAILED", "assumedly after job")


@pytest.mark.parametrize("others", [(), ("17", "18", "19")])
def test_an_array_whose_records_are_too_long_for_one_answer_is_asked_for_in_parts(
    monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...]
) -> None:
    asked: list[tuple[str, ...]] = []

    def run(self: SGE, *command: str) -> str:
        asked.append(command)
        if command[-1] == "-j":
            raise AnswerTooLong("qacct printed more than 64 MiB")
        tasks = range(*map(int, command[-1].split("-"))) if "-t" in command else ["undefined"]
        return "".join(f"====\njobnumber {command[2]}\ntaskid {task}\nfailed 0\nexit_status 3\n" for task in tasks)

    monkeypatch.setattr(SGE, "run", run)
    wanted = ["6_2", "6_5", "6_10001", "6_10007", *others]
    assert set(SGE().ended_all(wanted)) == {"6_2", "6_10001", *others}  # the stand-in leaves out the last of a range
    ranges = [("qacct", "-j", "6", "-t", "3-6"), ("qacct", "-j", "6", "-t", "10002-10008")]
    assert [each for each in asked if "-t" in each] == ranges
    SGE().ended_all(["6_2"])
    assert asked[-1] == ("qacct", "-j", "6", "-t", "3-3")


def test_records_of_tasks_on_nodes_are_no_executions_of_the_job() -> None:
    """As qacct prints them with accounting_summary FALSE, here of a job that was requeued once."""
    rows = [("16", "17", "0"), ("17", "17", "0"), ("16", "19", "25"), ("28", "29", "1"), ("26", "30", "0")]
    text = "".join(
        f"{'=' * 62}\njobnumber    1                   \ntaskid       undefined\nfailed       {failed}    \n"
        f"exit_status  0                   \nru_minflt    9\nstart_time   Sun Nov 29 03:47:{begin} 2026\n"
        f"granted_pe   nodes               \nend_time     Sun Nov 29 03:47:{end} 2026\n"
        for begin, end, failed in rows
    )
    executions = client.of_records(client.records(text)["1"])
    assert [(each.raw_state, each.end[-2:]) for each in executions] == [("REQUEUED", "19"), ("COMPLETED", "30")]


@pytest.mark.parametrize(
    ("record", "state"),
    [
        ({"failed": "25  : rescheduling", "exit_status": "99"}, JobState.GONE),
        ({"failed": "100 : assumedly after job", "exit_status": "137", "deleted_by": "me@head"}, JobState.CANCELLED),
        ({"failed": "0", "exit_status": "0", "deleted_by": "NONE"}, JobState.DONE),
        ({"failed": "0", "exit_status": "0", "ru_minflt": "279"}, JobState.DONE),
        ({"failed": "0", "exit_status": "0", "ru_minflt": "0"}, JobState.GONE),  # qdel -f: no node has told its end
        ({}, JobState.FAILED),
    ],
)
def test_a_record_of_accounting(record: dict[str, str], state: JobState) -> None:
    assert client.last_of([{"jobnumber": "1", **record}]).state is state


@pytest.mark.parametrize(
    ("output", "errors", "code", "job"),
    [
        ('Your job 5 ("plain") has been submitted\n', "", 0, "5"),
        ('Your job-array 6.1-4:1 ("arr") has been submitted\n', "", 0, "6"),
        ("", "Unable to run job: warning: me's job is not allowed to run in any queue\n"
         'Your job 1 ("j.sh") has been submitted\nExiting.\n', 1, "1"),
        ('Welcome!\nYour job 7 ("a") has been submitted\n', "", 0, "7"),
    ],
)  # fmt: skip
def test_a_job_is_there_whatever_else_qsub_says(says: Says, output: str, errors: str, code: int, job: str) -> None:
    says("qsub", output, errors, code)
    assert SGE().submit(os.devnull, os.environ) == job


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ('Unable to run job: job rejected: the requested parallel environment "nope" does not exist\nExiting.\n',
         'the requested parallel environment "nope" does not exist (`qconf -spl`'),
        ('Unable to run job: Job was rejected because job requests unknown queue "nope.q"\nExiting.\n', "`qconf -sql`"),
        ('Unable to run job: unknown resource "nope"\nExiting.\n', "`qconf -sc`"),
        ('Unable to run job: denied: "1bad" is not a valid object name (cannot start with a digit)\nExiting.\n',
         "cannot start with a digit"),
        ("qsub: argument to -N option must not contain / \n", "must not contain /"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_grid_engines_words(says: Says, errors: str, words: str) -> None:
    says("qsub", "", errors, 1)
    with pytest.raises(SubmissionRefused) as caught:
        SGE().submit(os.devnull, os.environ)
    assert words in str(caught.value)
    assert caught.value.definite


@pytest.mark.parametrize(
    "errors",
    [
        "error: commlib error: got select error (Connection refused)\nUnable to run job: unable to send message to "
        'qmaster using port 1 on host "head": got send error\nExiting.\n',
        "Unable to run job: failed receiving gdi request response for mid=1 (got syncron message receive timeout "
        "error)\n",
    ],
)
def test_nobody_knows_whether_there_is_a_job_when_the_qmaster_does_not_answer(says: Says, errors: str) -> None:
    says("qsub", "", errors, 1)
    with pytest.raises(NoAnswer):
        SGE().submit(os.devnull, os.environ)


@pytest.mark.parametrize(
    "words",
    [
        'denied: job "888" does not exist', "job 888 is already in deletion", 'job "888" task "2" does not exist',
        'root has deleted job-array task 888.3\njob "888" task "2" does not exist',
        "root has registered the job-array task 888.3 for deletion\ndenied: job \"888\" does not exist",
    ],
)  # fmt: skip
def test_a_job_that_has_ended_or_is_being_deleted_can_be_cancelled_again(says: Says, words: str) -> None:
    says("qdel", f"{words}\n", code=1)
    SGE().cancel("888")
    SGE().cancel("888_1")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("error: commlib error: got select error (Connection refused)\n", QueryError),
        ("failed receiving gdi request response for mid=1\n", AnswerLost),
        ("root - you do not have the necessary privileges to delete the job\n", QueryError),
        (
            "job 6 is already in deletion\nroot - you do not have the necessary privileges to delete the job\n",
            QueryError,
        ),
    ],
)
def test_a_cancellation_that_fails(says: Says, words: str, kind: type[Exception]) -> None:
    says("qdel", "", words, 1)
    with pytest.raises(kind) as caught:
        SGE().cancel("5")
    assert isinstance(caught.value, AnswerLost) is (kind is AnswerLost)


def test_what_an_array_may_have(says: Says) -> None:
    says("qconf", recorded("qconf-sconf.txt"))
    assert SGE().largest_array(None) == 75000


def test_ids() -> None:
    assert (client.array_of("17_3"), client.array_of("17")) == ("17", "17")
    assert (client.native_id("17_0"), client.native_id("17")) == ("17.1", "17")
    assert client.dependency(["5", "6_0", "6_1"]) == ["-hold_jid", "5,6"]
    assert client.dependency([]) == []


def test_options_for_the_command_line_are_noted_in_the_script() -> None:
    assert client.command_line("#!/bin/bash\n#$ -N a\n#qsub -g ours\necho '#qsub -g theirs'\n") == ["-g", "ours"]
    assert client.command_line("#!/bin/bash\n#$ -N a\n") == []


def test_a_command_is_not_looked_for_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a job there is no SGE_O_PATH."""
    (tmp_path / "qsub").touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("SGE_O_PATH", raising=False)
    assert client.find("qsub") is None
