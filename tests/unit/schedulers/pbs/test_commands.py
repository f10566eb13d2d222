"""What PBS's commands print is read as it is meant.

The texts below were printed by OpenPBS 23.06.06, unless something else is said.
"""

from __future__ import annotations

import getpass
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import ConfigError
from launcher.runs.sweep_directory import element_id
from launcher.schedulers.base import JobState, QueryError, SchedulerJob
from launcher.schedulers.pbs import limits
from launcher.schedulers.pbs.client import (
    HINTS,
    LETTERS,
    NEWEST,
    PBS,
    PBSNode,
    PBSQueue,
    array_of,
    native_id,
    parse_counts,
    parse_jobs,
    parse_record,
    section,
    short,
)
from launcher.schedulers.run_command import NoAnswer, SubmissionRefused
from tests.unit.plans import bare_plan

# -- ids


@pytest.mark.parametrize(
    ("job_id", "its_short", "its_pbs"),
    [
        ("136.pbs-srv", "136", "136.pbs-srv"),
        ("136", "136", "136"),
        ("150[].pbs-srv", "150[]", "150[].pbs-srv"),
        ("150[5].pbs-srv", "150[5]", "150[5].pbs-srv"),
        ("150.pbs-srv_5", "150[5]", "150[5].pbs-srv"),
        ("150_5", "150[5]", "150[5]"),
        ("9999999[10000].pbs-srv", "9999999[10000]", "9999999[10000].pbs-srv"),
        ("12345.pbs01.cluster.hpc.examp*", "12345", "12345.pbs01.cluster.hpc.examp*"),  # qstat's column is narrow
        ("1234567[10000].pbs01.cluster.*", "1234567[10000]", "1234567[10000].pbs01.cluster.*"),
    ],
)
def test_an_id_has_a_short_form_and_one_of_pbs(job_id: str, its_short: str, its_pbs: str) -> None:
    assert (short(job_id), native_id(job_id)) == (its_short, its_pbs)


@pytest.mark.parametrize("text", ["", "foo", ".pbs-srv", "[5].pbs-srv", "Job id"])
def test_what_is_no_id_has_no_short_form(text: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a PBS job"):
        short(text)


servers = st.from_regex(r"[a-z][a-z0-9-]{0,12}(\.[a-z0-9-]{1,12}){0,3}", fullmatch=True)
numbers = st.integers(0, 10**12)


@given(numbers, servers, numbers)
def test_an_element_has_the_same_short_id_in_submitits_words_and_in_those_of_pbs(
    number: int, server: str, index: int
) -> None:
    ours = element_id(f"{number}[].{server}", index)
    assert ours == f"{number}.{server}_{index}"
    assert native_id(ours) == f"{number}[{index}].{server}"
    assert short(ours) == short(native_id(ours)) == f"{number}[{index}]"
    assert native_id(native_id(ours)) == native_id(ours)


@given(numbers, servers, numbers)
def test_an_element_belongs_to_its_array(number: int, server: str, index: int) -> None:
    array = f"{number}[].{server}"
    assert array_of(element_id(array, index)) == array_of(f"{number}[{index}].{server}") == array_of(array) == array


@pytest.mark.parametrize(
    ("job_id", "array"),
    [("7.pbs-srv", "7.pbs-srv"), ("7", "7"), ("150_5", "150[]"), ("7.srv_a", "7.srv_a"), ("7[5]", "7[]")],
)
def test_a_plain_job_is_an_array_of_its_own(job_id: str, array: str) -> None:
    assert array_of(job_id) == array


@given(numbers, servers)
def test_an_id_of_pbs_stays_as_it_is(number: int, server: str) -> None:
    for job_id in (f"{number}.{server}", f"{number}[].{server}", f"{number}[7].{server}"):
        assert native_id(job_id) == job_id
        assert job_id == short(job_id) + f".{server}"


# -- qstat -x -t -w -s -u root

QSTAT = """
pbs-srv: 
                                                                                                   Req'd  Req'd   Elap
Job ID                         Username        Queue           Jobname         SessID   NDS  TSK   Memory Time  S Time
------------------------------ --------------- --------------- --------------- -------- ---- ----- ------ ----- - -----
5.pbs-srv                      root            workq           chk                  --     2     4    --    --  F 00:00
   Job run at Sat Nov 21 at 11:13 on (pbs-n1:ncpus=2)+(pbs-n2:ncpus=2) and finished
8.pbs-srv                      root            workq           my.job             10116    2     4    --  00:01 F 00:00
   Job run at Sat Nov 21 at 11:14 on (pbs-n1:ncpus=2)+(pbs-n2:ncpus=2) and failed
9[3].pbs-srv                   root            workq           arr                10255    1     1    --    --  F 00:00
   Job run at Sat Nov 21 at 11:14 on (pbs-n1:ncpus=1) and finished
10.pbs-srv                     root            workq           STDIN                --     1   500    --    --  F   -- 
   Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 32 T: 32) and terminated
11.pbs-srv                     root            workq           held                 --     1     1    --    --  F   -- 
    -- 
15[10000].pbs-srv              root            workq           b.sh                 --     1     1    --    --  F 00:00
   Job run at Sat Nov 21 at 11:14 on (pbs-n1:ncpus=1) and finished
21.pbs-srv                     root            workq           lowp               13022    2    32    --    --  F 00:00
   Not Running: Insufficient amount of resource: ncpus (R: 32 A: 31 T: 32) and terminated by root@vm
22.pbs-srv                     root            urgent          hip                13136    1     1    --    --  F 00:00
   Job run at Sat Nov 21 at 11:15 on (pbs-n1:ncpus=1) and terminated by root@vm
106[].pbs-srv                  root            workq           ut5                  --     1     1    --    --  H   -- 
    -- 
106[0].pbs-srv                 root            workq           ut5                  --     1     1    --    --  Q   -- 
    -- 
106[1].pbs-srv                 root            workq           ut5                  --     1     1    --    --  X   -- 
   Subjob finished
"""  # noqa: W291


def test_jobs_that_are_not_over_are_counted_by_queue_and_arrays_by_their_elements() -> None:
    assert parse_counts(QSTAT) == {"": 1, "workq": 1}
    running = QSTAT.replace(" F 00:", " R 00:")
    assert parse_counts(running) == {"": 7, "workq": 6, "urgent": 1}


def test_jobs_are_read() -> None:
    ran = "Job run at Sat Nov 21 at 11:14 on (pbs-n1:ncpus=1) and finished"
    two = "(pbs-n1:ncpus=2)+(pbs-n2:ncpus=2)"
    never = "Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 32 T: 32) and terminated"
    preempted = "Not Running: Insufficient amount of resource: ncpus (R: 32 A: 31 T: 32) and terminated by root@vm"
    deleted = "Job run at Sat Nov 21 at 11:15 on (pbs-n1:ncpus=1) and terminated by root@vm"
    assert list(parse_jobs(QSTAT).values()) == [
        SchedulerJob("5", JobState.DONE, "COMPLETED", f"Job run at Sat Nov 21 at 11:13 on {two} and finished"),
        SchedulerJob("8", JobState.FAILED, "FAILED", f"Job run at Sat Nov 21 at 11:14 on {two} and failed"),
        SchedulerJob("9[3]", JobState.DONE, "COMPLETED", ran),
        SchedulerJob("10", JobState.CANCELLED, "CANCELLED", never),
        SchedulerJob("11", JobState.GONE, "F"),
        SchedulerJob("15[10000]", JobState.DONE, "COMPLETED", ran),
        SchedulerJob("21", JobState.CANCELLED, "CANCELLED", preempted),
        SchedulerJob("22", JobState.CANCELLED, "CANCELLED", deleted),
        SchedulerJob("106[]", JobState.PENDING, "H"),
        SchedulerJob("106[0]", JobState.PENDING, "Q"),
        SchedulerJob("106[1]", JobState.GONE, "X", "Subjob finished"),
    ]


def test_jobs_are_found_by_their_short_id() -> None:
    jobs = parse_jobs(QSTAT)
    assert all(name == job.id for name, job in jobs.items())


@pytest.mark.parametrize("text", ["", "\n", "".join(QSTAT.splitlines(keepends=True)[:5])])
def test_no_jobs_are_no_jobs(text: str) -> None:
    assert parse_jobs(text) == {}


def row(job_id: str = "7.pbs-srv", letter: str = "R", comment: str = " -- ", name: str = "job") -> str:
    """A job as qstat -w -s prints it (altdsp_statjob in OpenPBS's qstat.c): what is too long ends in an asterisk."""
    if len(job_id) > 30:
        job_id = job_id[:29] + "*"
    if len(name) > 15:
        name = name[:14] + "*"
    if len(comment) > 114:
        comment = comment[:110] + "..."
    return (
        f"{job_id:<30} {'user':<15} {'workq':<15} {name:<15} {' -- ':>8} {'1':>4} {'1':>5} "
        f"{' -- ':>6} {'00:10':>5} {letter} {' -- ':>5}\n   {comment}\n"
    )


def test_the_stand_in_for_qstats_rows_prints_what_qstat_prints() -> None:
    assert row("18[0].pbs-srv", "F", "it is over") == (
        "18[0].pbs-srv                  user            workq           job                  --     1     1    --  "
        "00:10 F   -- \n   it is over\n"
    )


@pytest.mark.parametrize(
    ("job_id", "read"),
    [
        ("12345.pbs01.cluster.hpc.example.org", "12345"),
        ("1234567[10000].pbs01.cluster.hpc.example.org", "1234567[10000]"),
        ("12345[].pbs01.cluster.hpc.example.org", "12345[]"),
        ("0.pbs-srv", "0"),
    ],
)
def test_the_ids_of_servers_with_long_names_are_read(job_id: str, read: str) -> None:
    (job,) = parse_jobs(row(job_id, name="a_name_that_is_far_too_long")).values()
    assert (job.id, job.state) == (read, JobState.RUNNING)
    assert short(job_id) == read


@pytest.mark.parametrize(
    ("letter", "state"),
    [
        *((letter, JobState.PENDING) for letter in "QHWT"),
        *((letter, JobState.RUNNING) for letter in "REB"),
        *((letter, JobState.SUSPENDED) for letter in "SU"),
        *((letter, JobState.GONE) for letter in "XF"),
        *((letter, JobState.UNKNOWN) for letter in "MZ?"),
    ],
)
def test_every_letter_has_its_state(letter: str, state: JobState) -> None:
    (job,) = parse_jobs(row(letter=letter)).values()
    assert (job.state, job.raw_state, job.reason) == (state, letter, "")
    assert parse_record("7.srv", {"job_state": letter, "run_count": "1"}).state is state


def test_no_letter_alone_says_that_a_job_has_succeeded() -> None:
    assert set(LETTERS.values()) == {JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.GONE}


AT = "Job run at Sat Nov 21 at 01:00 on (pbs-n1:ncpus=1)"
FAR = "Job run at Sat Nov 21 at 01:00 on " + "+".join(f"(node-{number}:ncpus=64)" for number in range(9))


@pytest.mark.parametrize(
    ("letter", "comment", "state", "word"),
    [
        ("F", f"{AT} and finished", JobState.DONE, "COMPLETED"),
        ("X", f"{AT} and finished", JobState.DONE, "COMPLETED"),
        ("F", f"{AT} and failed", JobState.FAILED, "FAILED"),
        ("X", f"{AT} and failed", JobState.FAILED, "FAILED"),
        ("F", f"{AT} and exceeded resource walltime", JobState.FAILED, "TIMEOUT"),
        ("F", f"{AT} and exceeded resource mem", JobState.GONE, "F"),  # its record tells
        ("F", f"{AT} and terminated", JobState.CANCELLED, "CANCELLED"),
        ("F", f"{AT} and terminated by user@login", JobState.CANCELLED, "CANCELLED"),
        ("F", "Not Running: Not enough free nodes available and terminated", JobState.CANCELLED, "CANCELLED"),
        ("F", f"{FAR} and finished", JobState.GONE, "F"),  # cut off by qstat
        ("F", f"{FAR} and terminated", JobState.GONE, "F"),
        ("F", "and finished", JobState.GONE, "F"),  # not the server's words
        ("F", "has not failed", JobState.GONE, "F"),
        ("F", "Subjob finished", JobState.GONE, "F"),
        ("X", "Subjob finished", JobState.GONE, "X"),
        ("R", f"{AT} and terminated by user@login", JobState.RUNNING, "R"),  # told to, and still there
        ("R", f"{AT} and finished", JobState.RUNNING, "R"),
        ("Q", "Not Running: Not enough free nodes available", JobState.PENDING, "Q"),
        ("Q", f"{AT} and failed", JobState.PENDING, "Q"),
        ("M", f"{AT} and finished", JobState.UNKNOWN, "M"),
    ],
)
def test_the_comment_of_a_job_that_is_over_says_how_it_ended(
    letter: str, comment: str, state: JobState, word: str
) -> None:
    (job,) = parse_jobs(row(letter=letter, comment=comment)).values()
    assert (job.state, job.raw_state) == (state, word)
    assert job.reason == (comment if len(comment) <= 114 else comment[:110] + "...")


def test_a_comment_belongs_to_the_job_above_it() -> None:
    jobs = parse_jobs(
        row("1.srv", comment="one") + row("2.srv").replace("    -- \n", "") + row("3.srv", comment="3.srv")
    )
    assert [job.reason for job in jobs.values()] == ["one", "", "3.srv"]


# -- qstat -x -f -F json

RAN, SHADOW = {"run_count": "1"}, {"comment": "Subjob finished"}


@pytest.mark.parametrize(
    ("record", "state", "word"),
    [
        # What is not over has no exit status yet, though PBS shows one of the time before a requeue.
        ({"job_state": "Q", "substate": "10", **RAN, "Exit_status": "-11"}, JobState.PENDING, "Q"),
        ({"job_state": "R", "substate": "41", "run_count": "2", "Exit_status": "-11"}, JobState.RUNNING, "R"),
        ({"job_state": "R", "substate": "42", "run_count": "2", "Exit_status": "-4"}, JobState.RUNNING, "R"),
        ({"job_state": "R", "substate": "60", **RAN, "Exit_status": "0"}, JobState.RUNNING, "R"),
        ({"job_state": "E", "substate": "51", **RAN, "Exit_status": "271"}, JobState.RUNNING, "E"),
        ({"job_state": "S", "substate": "45", **RAN}, JobState.SUSPENDED, "S"),
        ({"job_state": "H", "substate": "20"}, JobState.PENDING, "H"),
        ({"job_state": "W", "substate": "30"}, JobState.PENDING, "W"),
        ({"job_state": "B", "substate": "70", "Exit_status": "1"}, JobState.RUNNING, "B"),
        ({"job_state": "M", "Exit_status": "0", **RAN}, JobState.UNKNOWN, "M"),
        ({}, JobState.UNKNOWN, ""),
        # Shadows of subjobs: their exit status is their array's.
        ({"job_state": "X", "substate": "70", **SHADOW, "Exit_status": "0"}, JobState.GONE, "FORGOTTEN"),
        ({"job_state": "X", "substate": "20", **SHADOW}, JobState.GONE, "FORGOTTEN"),
        ({"job_state": "F", "substate": "91", **SHADOW, "Exit_status": "1"}, JobState.GONE, "FORGOTTEN"),
        ({"job_state": "F", "substate": "91", **SHADOW}, JobState.GONE, "FORGOTTEN"),
        ({"job_state": "F", "substate": "92", "Exit_status": "0"}, JobState.GONE, "FORGOTTEN"),
        # Arrays themselves never run.
        ({"job_state": "F", "substate": "93", "Exit_status": "1"}, JobState.GONE, "FORGOTTEN"),
        ({"job_state": "F", "substate": "91", "Exit_status": "1"}, JobState.GONE, "FORGOTTEN"),
        # What never ran.
        ({"job_state": "F", "substate": "91"}, JobState.CANCELLED, "CANCELLED"),
        ({"job_state": "F", "substate": "91", "comment": "x and terminated"}, JobState.CANCELLED, "CANCELLED"),
        ({"job_state": "F", "substate": "92"}, JobState.FAILED, "FAILED"),  # its dependency failed
        ({"job_state": "F"}, JobState.FAILED, "FAILED"),  # its dependency is unknown
        # What ran and was deleted.
        ({"job_state": "F", "substate": "91", **RAN, "Exit_status": "271"}, JobState.CANCELLED, "CANCELLED"),
        ({"job_state": "F", "substate": "91", **RAN, "Exit_status": "265"}, JobState.CANCELLED, "CANCELLED"),
        ({"job_state": "F", "substate": "91", **RAN, "Exit_status": "0"}, JobState.CANCELLED, "CANCELLED"),
        ({"job_state": "F", "substate": "91", **RAN}, JobState.CANCELLED, "CANCELLED"),
        ({"job_state": "X", "substate": "91", **RAN, "Exit_status": "266"}, JobState.CANCELLED, "CANCELLED"),
        # What ran and ended.
        ({"job_state": "F", "substate": "92", **RAN}, JobState.GONE, "FORGOTTEN"),
        ({"job_state": "F", "substate": "93", **RAN, "Exit_status": "-29"}, JobState.FAILED, "TIMEOUT"),
        ({"job_state": "F", "substate": "93", **RAN, "Exit_status": "143",
          "comment": f"{AT} and exceeded resource walltime"}, JobState.FAILED, "TIMEOUT"),
        ({"job_state": "F", "substate": "93", **RAN, "Exit_status": "0",
          "comment": f"{AT} and exceeded resource walltime"}, JobState.FAILED, "TIMEOUT"),
        ({"job_state": "F", "substate": "92", **RAN, "Exit_status": "0"}, JobState.DONE, "COMPLETED"),
        ({"job_state": "F", "substate": "92", "run_count": "3", "Exit_status": "0"}, JobState.DONE, "COMPLETED"),
        ({"job_state": "X", "substate": "92", **RAN, "Exit_status": "0"}, JobState.DONE, "COMPLETED"),
        ({"job_state": "X", "substate": "93", **RAN, "Exit_status": "2"}, JobState.FAILED, "FAILED"),
        ({"job_state": "F", "substate": "93", **RAN, "Exit_status": "3"}, JobState.FAILED, "FAILED"),
        ({"job_state": "F", "substate": "93", **RAN, "Exit_status": "271"}, JobState.FAILED, "FAILED"),
        ({"job_state": "F", "substate": "93", **RAN, "Exit_status": "-4"}, JobState.FAILED, "FAILED"),
        ({"job_state": "F", "substate": "93", **RAN, "Exit_status": "-27"}, JobState.FAILED, "FAILED"),
    ],
)  # fmt: skip
def test_the_table_of_records(record: dict[str, str], state: JobState, word: str) -> None:
    job = parse_record("7.srv", record)
    assert (job.id, job.state, job.raw_state) == ("7.srv", state, word)


@pytest.mark.parametrize(
    ("status", "comment", "reason"),
    [
        ("3", f"{AT} and failed", f"exit status 3; {AT} and failed"),
        ("143", "c", "exit status 143; c"),
        ("254", "c", "exit status 254; c"),
        ("256", "c", "exit status 256; c"),
        ("265", "c", "killed by SIGKILL; c"),
        ("266", "c", "killed by SIGUSR1; c"),
        ("267", "c", "killed by SIGSEGV; c"),
        ("271", "c", "killed by SIGTERM; c"),
        ("-4", "c", "exit status -4; c"),
        ("999", "c", "exit status 999; c"),  # no signal has that number
        ("odd", "c", "exit status odd; c"),
        ("0", f"{AT} and finished", f"{AT} and finished"),
        ("-29", f"{AT} and exceeded resource walltime", f"{AT} and exceeded resource walltime"),
    ],
)
def test_a_reason_says_what_the_exit_status_means(status: str, comment: str, reason: str) -> None:
    record = {"job_state": "F", "substate": "93", "run_count": "1", "Exit_status": status, "comment": comment}
    assert parse_record("7", record).reason == reason


def test_a_job_that_never_started_says_why() -> None:
    assert parse_record("7", {"job_state": "F", "substate": "92"}).reason == "never started: a dependency was not met"
    assert parse_record("7", {"job_state": "F", "comment": "words"}).reason == "words"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "job_state": st.sampled_from("QRHWESBXFMTU"),
            "substate": st.sampled_from(["91", "92", "93", "42"]),
            "run_count": st.just("1"),
            "Exit_status": st.sampled_from(["0", "1", "271", "-29", "-11"]),
            "comment": st.sampled_from(["Subjob finished", f"{AT} and finished", f"{AT} and terminated"]),
        },
    )
)
def test_only_a_job_that_ran_to_its_end_with_status_0_is_done(record: dict[str, str]) -> None:
    if parse_record("7", record).state is JobState.DONE:
        assert record["job_state"] in "FX"
        assert record["Exit_status"] == "0"
        assert "run_count" in record
        assert record.get("substate") != "91"


# As printed but for fewer attributes: jobs called `inf`, with values that make no JSON.
RECORD = """\
{
    "timestamp":1795222402,
    "pbs_version":"23.06.06",
    "pbs_server":"pbs-srv",
    "Jobs":{
        "105.pbs-srv":{
            "Job_Name":inf,
            "Job_Owner":"user@login",
            "resources_used":{
                "cpupercent":0,
                "cput":"00:00:00"
            },
            "job_state":"F",
            "Output_Path":"localhost:/tmp/a \\"b\\",c",
            "Priority":-5,
            "substate":92,
            "Variable_List":{
                "PBS_O_HOME":"/root",
                "A":+5,
                "B":.5,
                "C":5.,
                "D":1e999,
                "E":"0x1F",
                "F":-5,
                "G":nan,
                "H":-0x1F,
                "I":0.5,
                "J":0x0,
                "K":00,
                "L":infinity,
                "M":"1_000",
                "N":0,
                "O":",P=-",
                "S":nan(1),
                "T":"x=y\\nline2\\ttab",
                "U":"back\\\\slash",
                "V":"",
                "W":"{",
                "X":"ctl^A^[[0m",
                "LAUNCHER_TOKEN":"launcher-7f2c3c9d02918d9cebbb",
                "PBS_O_HOST":"vm"
            },
            "comment":"Job run at Sat Nov 21 at 00:53 on (pbs-n1:ncpus=1) and finished",
            "run_count":1,
            "Exit_status":0,
            "Submit_arguments":"-h -- /bin/echo a \\"quoted\\" arg <x>&y it's",
            "Submit_Host":"vm"
        }
    }
}
"""


def test_every_value_of_a_record_is_its_text() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(RECORD)
    assert section(RECORD, "Jobs") == {
        "105.pbs-srv": {
            "Job_Name": "inf", "Job_Owner": "user@login", "resources_used": {"cpupercent": "0", "cput": "00:00:00"},
            "job_state": "F", "Output_Path": 'localhost:/tmp/a "b",c', "Priority": "-5", "substate": "92",
            "Variable_List": {
                "PBS_O_HOME": "/root", "A": "+5", "B": ".5", "C": "5.", "D": "1e999", "E": "0x1F", "F": "-5",
                "G": "nan", "H": "-0x1F", "I": "0.5", "J": "0x0", "K": "00", "L": "infinity", "M": "1_000", "N": "0",
                "O": ",P=-", "S": "nan(1)", "T": "x=y\nline2\ttab", "U": "back\\slash", "V": "", "W": "{",
                "X": "ctl^A^[[0m", "LAUNCHER_TOKEN": "launcher-7f2c3c9d02918d9cebbb", "PBS_O_HOST": "vm",
            },
            "comment": f"{AT.replace('01:00', '00:53')} and finished", "run_count": "1", "Exit_status": "0",
            "Submit_arguments": '-h -- /bin/echo a "quoted" arg <x>&y it\'s', "Submit_Host": "vm",
        }
    }  # fmt: skip


def test_control_characters_in_a_value_do_no_harm() -> None:
    assert section(
        '{\n    "Jobs":{\n        "1.s":{\n            "A":"\x01\x1b[0m\x85\u2028"\n        }\n    }\n}', "Jobs"
    ) == {"1.s": {"A": "\x01\x1b[0m\x85\u2028"}}


EMPTY = '{\n    "timestamp":1795222404,\n    "pbs_version":"23.06.06",\n    "pbs_server":"pbs-srv"\n}'


def test_an_answer_without_the_section_has_nothing_in_it() -> None:
    assert section(EMPTY, "Jobs") == {}


@pytest.mark.parametrize("text", ["", "qstat: words", EMPTY[:-1], RECORD[:400]])
def test_an_answer_that_is_cut_off_or_none_is_told(text: str) -> None:
    with pytest.raises(QueryError, match="qstat's answer could not be read"):
        section(text, "Jobs")


# strtod(3), and what pbs_json.c calls a number because of it
NUMBER = re.compile(
    r"[+-]?(?:inf(?:inity)?|nan(?:\(\w*\))?|0x(?:[\da-f]+\.?[\da-f]*|\.[\da-f]+)(?:p[+-]?\d)?"
    r"|(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)",
    re.IGNORECASE | re.ASCII,
)


def bare(value: str) -> bool:
    """Whether qstat leaves out the quotes (add_json_node)."""
    if not NUMBER.fullmatch(value.lstrip()):  # strtod skips blanks in front
        return False
    if not value.startswith("0"):
        return True
    number = float.fromhex(value) if value[:2].lower() == "0x" else float(value)
    return number < 1


def printed(values: dict[str, Any], depth: int = 1) -> str:
    """The text that qstat prints (generate_json, strdup_escape)."""
    blanks, lines = 4 * depth * " ", []
    for key, value in values.items():
        if isinstance(value, dict):
            lines.append(f'{blanks}"{key}":{{\n{printed(value, depth + 1)}\n{blanks}}}')
        elif bare(value):
            lines.append(f'{blanks}"{key}":{value}')
        else:
            escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
            lines.append(f'{blanks}"{key}":"{escaped}"')
    return ",\n".join(lines)


def document(**sections: Any) -> str:
    """All that qstat -F json prints."""
    return f"{{\n{printed({'timestamp': '1795222402', 'pbs_version': '23.06.06', **sections})}\n}}\n"


@pytest.mark.parametrize(
    "line",
    ['"Job_Name":nan', '"Job_Name":"0x1F"', '"Job_Name":1e999', '"Job_Name":"007"', '"Job_Name":0', '"A":0x0', '"A":00',
     '"Job_Name":"1_000"', '"A":-0x1F', '"A":0.5', '"A":nan(1)', '"Job_Name":5.', '"Job_Name":"true"', '"A":infinity',
     '"Job_Name":"00012"', '"Job_Name":1e5'],
)  # fmt: skip
def test_the_stand_in_for_qstats_json_prints_what_qstat_prints(line: str) -> None:
    name, _, value = line.partition(":")
    assert printed({name.strip('"'): value.strip('"')}, 0) == line


keys = st.from_regex(r"[A-Za-z_]\w{0,9}(%%)?", fullmatch=True)
numeric = st.one_of(
    st.from_regex(NUMBER, fullmatch=True),
    st.integers().map(str),
    st.sampled_from(["inf", "nan", "+5", ".5", "5.", "-0"]),
)
plain = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=30)
awkward = st.text('"\\{}[]:, \n\tabn5', max_size=12)
texts = st.one_of(numeric, numeric.map(" {}".format), plain, awkward)
attributes = st.dictionaries(keys, st.one_of(texts, st.dictionaries(keys, texts, min_size=1, max_size=4)), max_size=6)


@given(st.dictionaries(st.from_regex(r"\d{1,7}(\[\d*\])?\.srv", fullmatch=True), attributes, min_size=1, max_size=3))
def test_any_value_that_qstat_can_print_is_read_as_its_text(jobs: dict[str, Any]) -> None:
    assert section(document(Jobs=jobs), "Jobs") == jobs


@pytest.mark.parametrize(
    ("printed_value", "text"),
    [
        ('"/tmp/ut/a^"\x80\x93b"', '/tmp/ut/a^"\x80\x93b'),  # a folder with a dash in UTF-8
        ('"/tmp/two\nlines"', "/tmp/two\nlines"),  # a line break that is not escaped
        ('"vm:/tmp/a\\qb/o"', "vm:/tmp/a\\qb/o"),  # a backslash that is not escaped
        ('""x\\""', '"x"'),  # an account with quotes
        ('"end\\"', "end\\"),
        (" inf", " inf"),
        (" 5", " 5"),
    ],
)
def test_what_is_no_json_is_read_all_the_same(printed_value: str, text: str) -> None:
    lines = f'            "Account_Name":{printed_value},\n            "job_state":"Q"'
    answer = f'{{\n    "Jobs":{{\n        "1.srv":{{\n{lines}\n        }}\n    }}\n}}\n'
    assert section(answer, "Jobs") == {"1.srv": {"Account_Name": text, "job_state": "Q"}}


# -- the commands


def put(folder: Path, name: str, script: str) -> None:
    """A command that notes its arguments, one line a call."""
    (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{folder}/asked\n{script}\n')
    (folder / name).chmod(0o700)


def asked(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "asked").read_text().splitlines()]


SCRIPT = "/runs/run-1/script.sh"


@pytest.mark.parametrize(
    ("said", "job_id"),
    [
        ("1.pbs-srv", "1.pbs-srv"),
        ("19[].pbs-srv", "19[].pbs-srv"),
        ("=====\nWelcome to 4.site.org\n150.old is not meant\n2026.11\n\n 136.pbs-srv ", "136.pbs-srv"),
        ("Your project has 12.5 hours left\n1234567.pbs01.hpc.example.org\n", "1234567.pbs01.hpc.example.org"),
    ],
)
def test_the_id_of_a_job_is_what_qsub_prints_last(commands: Path, said: str, job_id: str) -> None:
    (commands / "said").write_text(f"{said}\n")
    put(commands, "qsub", f"/bin/cat {commands}/said; echo 'a word of the site' >&2")
    assert PBS().submit(SCRIPT, {"PATH": str(commands)}, "-f") == job_id
    assert asked(commands) == [["qsub", "-f", SCRIPT]]


def test_qsub_sees_the_environment_that_it_is_given_but_no_other_prefix_of_directives(commands: Path) -> None:
    put(commands, "qsub", f'echo "$A|${{PBS_DPREFIX-unset}}|${{HOME-unset}}" >{commands}/seen; echo 1.pbs-srv')
    environment = {"PATH": str(commands), "A": "a b", "PBS_DPREFIX": "#XXX"}
    PBS().submit(SCRIPT, environment)
    assert (commands / "seen").read_text() == "a b|unset|unset\n"
    assert environment["PBS_DPREFIX"] == "#XXX"


def test_a_script_may_be_given_as_text(commands: Path) -> None:
    put(commands, "qsub", f"/bin/cat >{commands}/seen; echo 1.pbs-srv")
    environment, text = {"PATH": str(commands)}, "#!/bin/bash\n#PBS -N größe\necho 'a b'\n"
    assert PBS().submit("-", environment, "-f", "-v", "A=1", text=text) == "1.pbs-srv"
    assert (commands / "seen").read_text() == text
    PBS().submit(SCRIPT, environment)
    assert (commands / "seen").read_text() == ""  # what is typed meanwhile is not the job's
    assert asked(commands) == [["qsub", "-f", "-v", "A=1", "-"], ["qsub", SCRIPT]]


USAGE = """\
usage: qsub [-a date_time] [-A account_string] [-c interval]
	[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
	[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version
"""


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (187, "qsub: Unknown resource: ngpus",
         "qsub refused the job: Unknown resource: ngpus (GPUs are not counted as ngpus there: "
         "cluster.gpu_directive=none (PBSExecutor: pbs_chunk))"),
        (187, "qsub: Unknown resource: nosuch", f"qsub refused the job: Unknown resource: nosuch ({HINTS[187]})"),
        (159, "qsub: Unauthorized Request ", f"qsub refused the job: Unauthorized Request ({HINTS[159]})"),
        (187, "qsub: Unknown resource Resource_List.filesystems",
         "qsub refused the job: Unknown resource Resource_List.filesystems "
         "(the site has no such resource of a whole job)"),
        (170, "qsub: Unknown queue", "qsub refused the job: Unknown queue (`qstat -Q` lists the queues)"),
        (188, "qsub: Job violates queue and/or server resource limits",
         f"qsub refused the job: Job violates queue and/or server resource limits ({HINTS[188]})"),
        (166, "qsub: Illegal attribute or resource value Resource_List.place",
         f"qsub refused the job: Illegal attribute or resource value Resource_List.place ({HINTS[166]})"),
        (175, "qsub: Bad UID for job execution", f"qsub refused the job: Bad UID for job execution ({HINTS[175]})"),
        (2, f"qsub: illegal -N value\n{USAGE}", "qsub refused the job: illegal -N value"),
        (2, f"qsub:  cannot submit non-rerunable Array Job\n{USAGE}",
         "qsub refused the job: cannot submit non-rerunable Array Job"),
        (3, "qsub: Array job exceeds server or queue size limit",
         "qsub refused the job: Array job exceeds server or queue size limit"),
        (1, "qsub: directive error: -N name # comment ", "qsub refused the job: directive error: -N name # comment"),
        (1, "qsub: cannot send environment with the job",
         "qsub refused the job: cannot send environment with the job"),
        (32, "qsub: the site's hook\n  says no", "qsub refused the job: the site's hook says no"),
        (32, "qsub: no project: set one, and try again", "qsub refused the job: no project: set one, and try again"),
        (9, "", "qsub refused the job: exit code 9"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_words_of_qsub_and_where_to_look(commands: Path, code: int, said: str, words: str) -> None:
    (commands / "said").write_text(said)
    put(commands, "qsub", f"/bin/cat {commands}/said >&2; exit {code}")
    with pytest.raises(SubmissionRefused) as refusal:
        PBS().submit(SCRIPT, {"PATH": str(commands)})
    assert str(refusal.value) == words
    assert refusal.value.definite == said.startswith("qsub: ")


@pytest.mark.parametrize(
    ("script", "timeout", "words"),
    [
        ("echo 'Connection refused' >&2; echo 'qsub: cannot connect to server pbs-srv (errno=15010)' >&2; exit 162",
         9.0,
         r"Connection refused qsub: cannot connect to server pbs-srv \(errno=15010\)"),
        ("echo 'Unknown Host.' >&2; echo 'qsub: cannot connect to server nosuchs (errno=15008)' >&2; exit 160", 9.0,
         "Unknown Host"),
        ("echo 'qsub: End of File' >&2; exit 1", 9.0, "End of File"),
        ("echo 'qsub: Communication failure.' >&2; exit 206", 9.0, "Communication failure"),
        ("exec /bin/sleep 5", 0.05, r"qsub did not answer within 0\.05 s"),
        ("exit 0", 9.0, "exit code 0"),  # -z in somebody's defaults
        ("echo Welcome; echo 'something else' >&2", 9.0, "something else"),
    ],
)  # fmt: skip
def test_a_lost_answer_is_no_refusal(commands: Path, script: str, timeout: float, words: str) -> None:
    put(commands, "qsub", script)
    with pytest.raises(NoAnswer, match=words):
        PBS(timeout).submit(SCRIPT, {"PATH": str(commands)})


def test_without_qsub_there_is_surely_no_job(commands: Path) -> None:
    with pytest.raises(
        SubmissionRefused, match="qsub is not on this machine's PATH: submit from a login node"
    ) as refusal:
        PBS().submit(SCRIPT, {"PATH": str(commands)})
    assert refusal.value.definite


def put_records(folder: Path, records: dict[str, dict[str, Any]]) -> None:
    """A qstat that knows these jobs, over or not."""
    for job_id, attributes in records.items():
        (folder / job_id).write_text(document(Jobs={job_id: attributes}))
    (folder / "empty").write_text(EMPTY)
    put(
        folder, "qstat",
        f'for id; do :; done\n[ -e "{folder}/$id" ] && exec /bin/cat "{folder}/$id"\n'
        f'echo "qstat: Unknown Job Id $id" >&2; /bin/cat {folder}/empty; exit 153',
    )  # fmt: skip


def ids_asked(folder: Path) -> list[list[str]]:
    """The job ids of each call of qstat."""
    return [[word for word in line if re.match(r"\d", word)] for line in asked(folder) if line[0] == "qstat"]


def test_all_jobs_are_one_question_with_no_ids(commands: Path) -> None:
    (commands / "printed").write_text(QSTAT)
    put(commands, "qstat", f"/bin/cat {commands}/printed")
    assert PBS().jobs() == PBS().jobs("-x") == parse_jobs(QSTAT)
    user = getpass.getuser()
    assert asked(commands) == [
        ["qstat", "-t", "-w", "-s", "-u", user],
        ["qstat", "-x", "-t", "-w", "-s", "-u", user],
    ]


def test_one_job_is_looked_up_by_its_own_id(commands: Path) -> None:
    over = {"job_state": "F", "run_count": "1", "Exit_status": "0", "comment": "it ended"}
    put_records(commands, {"136.pbs-srv": over, "150[5].pbs-srv": {**over, "Exit_status": "265"}})
    pbs = PBS()
    assert pbs.ended("136.pbs-srv") == SchedulerJob("136.pbs-srv", JobState.DONE, "COMPLETED", "it ended")
    element = SchedulerJob("150[5].pbs-srv", JobState.FAILED, "FAILED", "killed by SIGKILL; it ended", signal=9)
    assert pbs.ended("150.pbs-srv_5") == pbs.ended("150[5].pbs-srv") == element
    assert pbs.ended("99999.pbs-srv") is None
    assert ids_asked(commands) == [["136.pbs-srv"], *[["150[5].pbs-srv"]] * 2, *[["99999.pbs-srv"]] * 2]
    assert pbs.key("150.pbs-srv_5") == "150[5]"


QUESTIONS = [["qstat", "-x", "-f", "-F", "json", "7.pbs-srv"], ["qstat", "-f", "-F", "json", "7.pbs-srv"]]


@pytest.mark.parametrize(
    ("with_history", "without", "calls"),
    [
        ("exec /bin/cat {0}/job", "exit 9", 1),
        ("/bin/cat {0}/empty; exit 0", "exec /bin/cat {0}/job", 2),
        (
            "echo 'qstat: not configured to maintain job history' >&2; /bin/cat {0}/empty; exit 153",
            "exec /bin/cat {0}/job",
            2,
        ),
        ("/bin/cat {0}/other", "exec /bin/cat {0}/job", 2),
    ],
)
def test_the_record_of_a_job_is_in_the_history_or_where_there_is_none_among_the_jobs(
    commands: Path, with_history: str, without: str, calls: int
) -> None:
    (commands / "empty").write_text(EMPTY)
    for name, job_id in (("job", "7.pbs-srv"), ("other", "8.pbs-srv")):
        (commands / name).write_text(document(Jobs={job_id: {"job_state": "R", "Job_Name": name}}))
    put(commands, "qstat", f'[ "$1" = -x ] && {{ {with_history}; exit; }}\n{without}'.replace("{0}", str(commands)))
    assert PBS().record("7.pbs-srv") == {"job_state": "R", "Job_Name": "job"}
    assert asked(commands) == QUESTIONS[:calls]


@pytest.mark.parametrize("code", [35, 153])
def test_a_job_that_neither_knows_has_no_record(commands: Path, code: int) -> None:
    (commands / "empty").write_text(EMPTY)
    put(commands, "qstat", f"/bin/cat {commands}/empty; exit {code}")
    assert PBS().record("7.pbs-srv") is None
    assert asked(commands) == QUESTIONS


def test_a_server_without_history_remembers_nothing(commands: Path) -> None:
    (commands / "empty").write_text(EMPTY)
    put(
        commands,
        "qstat",
        f'echo "qstat: PBS is not configured to maintain job history 1678.pbs-srv" >&2; /bin/cat {commands}/empty',
    )
    assert PBS().ended("1678.pbs-srv") is None
    put(commands, "qstat", "echo 'qstat: PBS is not configured to maintain job history' >&2")
    assert PBS().jobs("-x") == {}


def token(words: str) -> dict[str, Any]:
    return {"job_state": "Q", "Variable_List": {"PBS_O_HOME": "/root", "LAUNCHER_TOKEN": words}}


JOBS = {
    "9.pbs-srv": token("wanted"),
    "10.pbs-srv": {"Variable_List": {"A": "wanted"}, "Submit_arguments": "-v LAUNCHER_TOKEN=wanted"},
    "11.pbs-srv": token("wanted-5"),
    "12[].pbs-srv": token("array"),
    "13.pbs-srv": {"job_state": "Q"},
    "14.pbs-srv": {"Variable_List": "odd"},
}


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize(
    ("wanted", "job_id"),
    [("wanted", "9.pbs-srv"), ("wanted-5", "11.pbs-srv"), ("array", "12[].pbs-srv"), ("want", None), ("", None)],
)
def test_only_the_token_counts(commands: Path, history: bool, wanted: str, job_id: str | None) -> None:
    put_records(commands, JOBS)
    live, over = list(JOBS)[:4], list(JOBS)[4:]
    also = "\n".join([*over, "8.forgotten"]) if history else ""
    put(commands, "qselect", f'[ "$1" = -x ] && echo "{also}" || echo "{chr(10).join(live)}"')
    assert PBS().find(wanted, "job") == job_id
    user = getpass.getuser()
    selections = [line for line in asked(commands) if line[0] == "qselect"]
    assert selections == [["qselect", "-u", user, "-N", "job"], ["qselect", "-x", "-u", user, "-N", "job"]]
    assert all(len(ids) == 1 for ids in ids_asked(commands))


def test_the_newest_jobs_of_a_name_are_looked_through_first_and_not_all(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = range(95, 95 + NEWEST + 5)
    put(commands, "qselect", f"echo {' '.join(f'{number}.srv' for number in numbers)}")
    seen: list[str] = []
    monkeypatch.setattr(PBS, "record", lambda _, job_id: seen.append(job_id))
    assert PBS().find("token", "job") is None
    assert seen == [f"{number}.srv" for number in sorted(numbers, reverse=True)[:NEWEST]]


@pytest.mark.parametrize(
    ("job_id", "told", "code", "said"),
    [
        ("7.pbs-srv", "7.pbs-srv", 0, ""),
        ("150.pbs-srv_5", "150[5].pbs-srv", 0, ""),
        ("150[].pbs-srv", "150[].pbs-srv", 0, ""),
        ("7.pbs-srv", "7.pbs-srv", 35, "qdel: Job has finished 7.pbs-srv"),
        ("7.pbs-srv", "7.pbs-srv", 153, "qdel: Unknown Job Id 7.pbs-srv"),
        ("150.pbs-srv_5", "150[5].pbs-srv", 55, "qdel: Request invalid for finished array subjob 150[5].pbs-srv"),
    ],
)
def test_cancelling_what_has_ended_is_no_error(commands: Path, job_id: str, told: str, code: int, said: str) -> None:
    put(commands, "qdel", f"echo '{said}' >&2; exit {code}")
    PBS().cancel(job_id)
    assert asked(commands) == [["qdel", told]]


def test_of_several_the_code_of_the_last_error_hides_no_other(commands: Path) -> None:
    put(commands, "qdel", "echo 'qdel: Unauthorized Request  7.s' >&2; echo 'qdel: Job has finished 8.s' >&2; exit 35")
    with pytest.raises(QueryError, match="Unauthorized Request"):
        PBS().cancel("7.s", "8.s")
    assert asked(commands) == [["qdel", "7.s", "8.s"]]


def test_cancelling_what_is_not_ours_is_an_error(commands: Path) -> None:
    put(commands, "qdel", "echo 'qdel: Unauthorized Request  7.pbs-srv' >&2; exit 159")
    with pytest.raises(QueryError, match=r"qdel failed \(exit 159\): qdel: Unauthorized Request"):
        PBS().cancel("7.pbs-srv")


def questions(pbs: PBS) -> dict[str, Any]:
    return {
        "qstat -u": pbs.jobs,
        "qstat -x -u": lambda: pbs.jobs("-x"),
        "qstat -f": lambda: pbs.ended("7"),
        "qselect": lambda: pbs.find("token", "job"),
        "qstat -Q": pbs.queues,
        "qstat -B": lambda: pbs.largest_array(None),
        "qdel": lambda: pbs.cancel("7"),
    }


@pytest.mark.parametrize("name", questions(PBS()))
@pytest.mark.parametrize(
    ("script", "timeout", "words"),
    [
        (None, 9.0, r"q\w+ is not on this machine's PATH"),
        # qstat prints an empty document as well
        (f"echo 'Connection refused' >&2; echo '{EMPTY}'; exit 255", 9.0, r"failed \(exit 255\): Connection refused"),
        ("exit 3", 9.0, r"q\w+ failed \(exit 3\): no message"),
        ("exec /bin/sleep 5", 0.05, r"q\w+ did not answer within 0\.05 s"),
    ],
)
def test_a_pbs_that_does_not_answer_is_told_and_never_taken_for_an_empty_one(
    commands: Path, name: str, script: str | None, timeout: float, words: str
) -> None:
    for command in ("qstat", "qselect", "qdel") if script is not None else ():
        put(commands, command, str(script))
    with pytest.raises(QueryError, match=words):
        questions(PBS(timeout))[name]()


def test_a_search_that_is_cut_short_is_no_answer(commands: Path) -> None:
    put(commands, "qselect", '[ "$1" = -x ] && exit 255\necho 7.pbs-srv')
    put_records(commands, {"7.pbs-srv": token("token")})
    with pytest.raises(QueryError, match=r"qselect failed \(exit 255\)"):
        PBS().find("token", "job")
    put(commands, "qselect", "echo 8.pbs-srv")
    put(commands, "qstat", "exit 255")
    with pytest.raises(QueryError, match=r"qstat failed \(exit 255\)"):
        PBS().find("token", "job")


SERVER = """\
{
    "timestamp":1795261226,
    "pbs_version":"23.06.06",
    "pbs_server":"pbs-srv",
    "Server":{
        "pbs-srv":{
            "server_state":"Active",
            "total_jobs":116,
            "state_count":"Transit:0 Queued:0 Held:4 Waiting:0 Running:0 Exiting:0 Begun:0 ",
            "default_queue":"workq",
            "resources_default":{
                "ncpus":1
            },
            "max_array_size":10000,
            "license_count":"Avail_Global:1000000 Avail_Local:1000000 Used:0 High_Use:0",
            "job_history_enable":"True"
        }
    }
}
"""
QUEUES = """\
{
    "timestamp":1795261226,
    "pbs_version":"23.06.06",
    "pbs_server":"pbs-srv",
    "Queue":{
        "workq":{
            "queue_type":"Execution",
            "total_jobs":4,
            "resources_assigned":{
                "ncpus":0,
                "nodect":0
            },
            "enabled":"True",
            "started":"True"
        },
        "debug":{
            "queue_type":"Execution",
            "resources_max":{
                "mem":"10gb",
                "ncpus":16,
                "ngpus":0,
                "nodect":2,
                "walltime":"100:10:00"
            },
            "max_array_size":50,
            "enabled":"True",
            "started":"False"
        },
        "inf":{
            "queue_type":"Route",
            "route_destinations":"debug,workq",
            "enabled":"True",
            "started":"True"
        },
        "closed":{
            "queue_type":"Execution",
            "resources_max":{
                "walltime":"00:10:00"
            },
            "enabled":"False",
            "started":"True"
        }
    }
}
"""


@pytest.fixture
def site(commands: Path) -> Path:
    """A qstat -B and a qstat -Q."""
    (commands / "server").write_text(SERVER)
    (commands / "queues").write_text(QUEUES)
    put(commands, "qstat", f'[ "$1" = -B ] && exec /bin/cat {commands}/server; exec /bin/cat {commands}/queues')
    return commands


NO_LIMITS = {"time": None, "nodes": None, "cpus": None, "gpus": None, "mem": None}


@pytest.mark.parametrize(
    ("restricted", "words"),
    [
        (False, "(you may not use the project (-P) or the account (-A))"),
        (True, "(you may not use the project (-P), the account (-A) or the queue; queues for anybody: workq)"),
    ],
)
def test_an_unauthorized_request_names_queues_only_where_a_queue_is_restricted(
    site: Path, restricted: bool, words: str
) -> None:
    """A queue's acl_users, and a project of others, on OpenPBS 23.06.06: both are "Unauthorized Request"."""
    if restricted:
        (site / "queues").write_text(
            QUEUES.replace('"route_dest', '"acl_user_enable":"True",\n            "route_dest')
        )
    put(site, "qsub", "echo 'qsub: Unauthorized Request ' >&2; exit 159")
    with pytest.raises(SubmissionRefused, match=re.escape(words) + "$"):
        PBS().submit(SCRIPT, {"PATH": str(site)})


@pytest.mark.parametrize(("nodes", "totals", "told"), [(2, True, True), (1, True, False), (2, False, False)])
def test_totals_do_not_say_on_how_many_nodes(
    site: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, totals: bool, told: bool
) -> None:
    monkeypatch.setattr(PBS, "nodes", lambda _: [])
    monkeypatch.setattr(limits, "notes_on_folder", lambda *_: ())
    plan = bare_plan(cluster={"scheduler": "pbs", "totals": totals, "queue": "workq"}, nodes=nodes)
    assert any("the attempt ends with 93" in note for note in limits.compare(plan, {})) is told


def test_what_no_node_could_ever_hold_is_refused_before_it_is_submitted(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PBS, "nodes", lambda _: [PBSNode("n1", "free", {"ncpus": 8}, {"ncpus": 8})])
    plan = bare_plan(cluster={"scheduler": "pbs", "queue": "workq"}, cpus_per_proc=9)
    with pytest.raises(ConfigError, match="the nodes of queue workq have at most 8"):
        limits.compare(plan, {})


def test_queues_are_read(site: Path) -> None:
    assert PBS().queues() == [
        PBSQueue("workq", True, accepts=True, routes=False, **NO_LIMITS),
        PBSQueue(
            "debug",
            False,
            accepts=True,
            routes=False,
            time=360600,
            nodes=2,
            cpus=16,
            gpus=0,
            mem=10 * 1024**3,
            started=False,
        ),
        PBSQueue("inf", False, accepts=True, routes=True, **NO_LIMITS, destinations=("debug", "workq")),
        PBSQueue("closed", False, accepts=False, routes=False, **{**NO_LIMITS, "time": 600}),
    ]


def test_a_site_without_a_default_queue_has_none(site: Path) -> None:
    (site / "server").write_text(SERVER.replace('            "default_queue":"workq",\n', ""))
    assert not any(queue.default for queue in PBS().queues())


@pytest.mark.parametrize(("limit", "odd"), [('"100:10:00"', '"soon"'), ('"10gb"', '"lots"'), ("16", '"many"')])
def test_a_limit_that_cannot_be_read_is_told(site: Path, limit: str, odd: str) -> None:
    (site / "queues").write_text(QUEUES.replace(limit, odd))
    with pytest.raises(QueryError, match=r"qstat -Q has a limit that could not be read: .*" + odd.strip('"')):
        PBS().queues()


@pytest.mark.parametrize("default", [None, "debug"])
@pytest.mark.parametrize(
    ("of_server", "queue", "of_queue", "most"),
    [
        ("10000", None, None, 10000),
        ("10000", "debug", "50", 50),
        ("10000", "debug", "20000", 10000),
        ("10000", "debug", None, 10000),
        (None, "debug", "50", 50),
        (None, "debug", None, None),
        (None, None, None, None),
        ("odd", None, None, None),
    ],
)
def test_an_array_is_no_larger_than_server_and_queue_allow(
    commands: Path, default: str | None, of_server: str | None, queue: str | None, of_queue: str | None,
    most: int | None,
) -> None:  # fmt: skip
    def answer(section: str, name: str, **values: str | None) -> str:
        return document(**{section: {name: {"enabled": "True", **{k: v for k, v in values.items() if v is not None}}}})

    (commands / "server").write_text(answer("Server", "pbs-srv", max_array_size=of_server, default_queue=default))
    (commands / "queue").write_text(answer("Queue", "debug", max_array_size=of_queue))
    put(commands, "qstat", f'[ "$1" = -B ] && exec /bin/cat {commands}/server; exec /bin/cat {commands}/queue')
    # A job that names no queue gets into the default one.
    for asked_for in {queue, None if default else queue}:
        (commands / "asked").unlink(missing_ok=True)
        assert PBS().largest_array(asked_for) == most
        calls = [["qstat", "-B", "-f", "-F", "json"], ["qstat", "-Q", "-f", "-F", "json", "debug"]]
        assert asked(commands) == calls[: 2 if asked_for or default else 1]
