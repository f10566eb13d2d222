"""Whose qsub it is, told by what such commands print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.schedulers.qsub import Qsub, QsubKind, _look, detect, detect_kind, judge

ELF = b"\x7fELF\x02\x01\x01 slurm"  # a program may contain any word
PERL = b"""\
#! /usr/bin/perl -w
###############################################################################
#
# qsub - submit a batch job in familar pbs/Grid Engine format.
#
###############################################################################
#  Copyright (C) 2015-2016 SchedMD LLC
#
#  This file is part of Slurm, a resource management program.
"""
SBATCH = b'#!/bin/sh\nexec sbatch "$@"\n'
WRAPPER = b'#!/bin/sh\nexec /opt/pbs/bin/qsub "$@"\n'
TORQUE = "\nVersion: 6.1.2\nCommit: 661e092552de43a785c15d39a3634a541d86898e\n"
# Grid Engine's reads the option as the name of a script, or not at all.
UNREADABLE = 'Unable to read script file because of error: ERROR! invalid option argument "--version"\n'


def says(version: str, help_text: str = "") -> Callable[..., str]:
    """A qsub that prints these."""
    return lambda option: {"--version": version, "-help": help_text}[option]


@pytest.mark.parametrize(
    ("beginning", "run", "kind", "version"),
    [
        (ELF, says("pbs_version = 23.06.06\n\n"), QsubKind.PBS, "23.06.06"),
        (ELF, says("pbs_version = 2022.1.3.20230524131519\n"), QsubKind.PBS, "2022.1.3.20230524131519"),
        (ELF, says("pbs_version = PBSPro_13.0.1.152173\n"), QsubKind.PBS, "PBSPro_13.0.1.152173"),
        (ELF, says("\nWelcome!\npbs_version=19.1.3"), QsubKind.PBS, "19.1.3"),
        (WRAPPER, says("pbs_version = 23.06.06\n\n"), QsubKind.PBS, "23.06.06"),
        (PERL, says("nobody calls it"), QsubKind.SLURM, ""),
        (SBATCH, says("nobody calls it"), QsubKind.SLURM, ""),
        (ELF, says(TORQUE), QsubKind.TORQUE, "6.1.2"),
        (ELF, says("Version: 4.2.10\nRevision: \n"), QsubKind.TORQUE, "4.2.10"),
        (ELF, says(UNREADABLE, "SGE 8.1.9\nusage: qsub [options]\n"), QsubKind.GRID_ENGINE, "8.1.9"),
        (ELF, says(UNREADABLE, "UGE 8.6.5\nusage: qsub [options]\n"), QsubKind.GRID_ENGINE, "8.6.5"),
        (ELF, says(UNREADABLE, "GE 6.2u5\nusage: qsub [options]\n"), QsubKind.GRID_ENGINE, "6.2u5"),
        (ELF, says(UNREADABLE, "OGS/GE 2011.11p1\nusage: qsub [options]\n"), QsubKind.GRID_ENGINE, "2011.11p1"),
        (ELF, says("SGE 8.1.9\nqsub: Unknown option --version\n"), QsubKind.GRID_ENGINE, "8.1.9"),
        (ELF, says("", ""), QsubKind.UNKNOWN, ""),
        (ELF, says("Version: unknown", "Version 3"), QsubKind.UNKNOWN, ""),
        (ELF, says("[Errno 8] Exec format error", "[Errno 8] Exec format error"), QsubKind.UNKNOWN, ""),
        (b"#!/bin/sh\n", says("qsub: command line of the site", "MERGE 2.0"), QsubKind.UNKNOWN, ""),
        (b"", says("", ""), QsubKind.UNKNOWN, ""),
    ],
)
def test_the_table(beginning: bytes, run: Callable[..., str], kind: QsubKind, version: str) -> None:
    found = judge("/opt/bin/qsub", beginning, run)
    assert (found.kind, found.path, found.version) == (kind, "/opt/bin/qsub", version)
    assert found.evidence


def test_slurms_wrapper_is_not_called() -> None:
    def run(*_: str) -> str:
        raise AssertionError("it would submit a job")

    assert judge("/usr/bin/qsub", PERL, run).kind is QsubKind.SLURM


@pytest.mark.parametrize(
    ("beginning", "run", "problem"),
    [
        (ELF, says("pbs_version = 23.06.06"), None),
        (PERL, says(""), "/bin/qsub is not PBS's qsub but Slurm's wrapper around sbatch (a script that calls Slurm): "
                         "use cluster=slurm"),
        (ELF, says(TORQUE), "/bin/qsub is not PBS's qsub but Torque (Version: 6.1.2), which is not supported: "
                            "put the PBS commands in front of it on PATH, if there are any"),
        (ELF, says(UNREADABLE, "SGE 8.1.9\nusage"),
         "/bin/qsub is not PBS's qsub but Grid Engine (SGE 8.1.9): use cluster=sge"),
        (ELF, says("\n  what?\nno\n"), "/bin/qsub is not known to be PBS's qsub (`qsub --version` says 'what?'): "
                                       "submit from a login node of the PBS cluster, or put its commands in front on "
                                       "PATH"),
        (ELF, says("\n"), "/bin/qsub is not known to be PBS's qsub (`qsub --version` says 'nothing'): submit "
                          "from a login node of the PBS cluster, or put its commands in front on PATH"),
    ],
)  # fmt: skip
def test_a_problem_says_what_was_found_and_what_to_do(
    beginning: bytes, run: Callable[..., str], problem: str | None
) -> None:
    assert judge("/bin/qsub", beginning, run).problem(QsubKind.PBS) == problem


def test_without_a_qsub_one_submits_from_elsewhere() -> None:
    assert Qsub(QsubKind.NONE).problem(QsubKind.GRID_ENGINE) == (
        "qsub is not on this machine's PATH: submit from a login node of the Grid Engine cluster"
    )


@pytest.mark.parametrize("wanted", [QsubKind.PBS, QsubKind.GRID_ENGINE])
@pytest.mark.parametrize("kind", list(QsubKind))
def test_only_the_wanted_one_is_no_problem(kind: QsubKind, wanted: QsubKind) -> None:
    assert (Qsub(kind).problem(wanted) is None) is (kind is wanted)


def put(folder: Path, script: str) -> None:
    (folder / "qsub").write_text(script)
    (folder / "qsub").chmod(0o700)


def test_the_qsub_on_path_is_looked_at_once_for_each_version_of_it(commands: Path) -> None:
    assert detect() == Qsub(QsubKind.NONE)
    put(commands, f'#!/bin/sh\necho called >>{commands}/calls\n[ "$1" = --version ] && echo "pbs_version = 23.06.06"\n')
    wanted = Qsub(QsubKind.PBS, str(commands / "qsub"), "23.06.06", "pbs_version = 23.06.06")
    assert detect() == detect() == wanted
    assert (commands / "calls").read_text() == "called\n"
    (commands / "qsub").unlink()
    put(commands, PERL.decode())
    assert detect().kind is QsubKind.SLURM


def test_whose_qsub_it_is_is_remembered_by_later_processes_if_it_is_known(commands: Path) -> None:
    assert detect_kind() is QsubKind.NONE
    for answer, kind, calls in (("pbs_version = 23.06.06", QsubKind.PBS, 1), ("no server", QsubKind.UNKNOWN, 4)):
        put(commands, f'#!/bin/sh\necho called >>{commands}/calls\necho "{answer}"\n')
        for _ in range(2):
            _look.cache_clear()  # another process
            assert detect_kind() is kind
        assert (commands / "calls").read_text().count("called") == calls
        (commands / "calls").unlink()


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("#!/bin/sh\necho 'Version: 6.1.2' >&2\n", QsubKind.TORQUE),  # which prints it there
        ("#!/bin/sh\n[ \"$1\" = -help ] && echo 'UGE 8.6.5' && exit 0\necho 'qsub: Unknown option'; exit 1\n",
         QsubKind.GRID_ENGINE),
        ("#!/bin/sh\ncat; exit 3\n", QsubKind.UNKNOWN),  # it gets no standard input to wait for
        ("#!/no/such/interpreter\n", QsubKind.UNKNOWN),
        ("#!/bin/sh\nprintf '\\377\\376'\n", QsubKind.UNKNOWN),
    ],
)  # fmt: skip
def test_whatever_is_on_path_is_judged(commands: Path, script: str, kind: QsubKind) -> None:
    put(commands, script)
    assert detect().kind is kind
