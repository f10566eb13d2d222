"""The stand-in behaves like a real OpenPBS 23.06.06: its output is compared with transcripts, with adapted names."""

# ruff: noqa: W291  many a line of PBS's ends in blanks

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pbs.pbs_cluster import PbsCluster

pytestmark = [pytest.mark.slow, pytest.mark.backend("stand-in", "transcripts of OpenPBS 23.06.06")]
USER, HOST = getpass.getuser(), socket.gethostname()
HEAD = """\
Job id            Name             User              Time Use S Queue
----------------  ---------------- ----------------  -------- - -----
"""
TABLE = f"{'user':16} "


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PbsCluster]:
    with PbsCluster(tmp_path_factory.mktemp("pbs") / "site") as site:
        yield site


@pytest.fixture
def pbs(site: PbsCluster, tmp_path: Path) -> Iterator[Session]:
    yield Session(site, tmp_path)
    site.reset()


class Session:
    """A user's shell session in a folder, with the stand-in's commands on PATH."""

    def __init__(self, site: PbsCluster, cwd: Path) -> None:
        self.site, self.cwd = site, cwd
        (cwd / "s.sh").write_text("#!/bin/bash\nsleep 0.1\n")

    def sh(self, command: str, **variables: str) -> str:
        """Runs a shell command; returns its stderr, its stdout, and a line `[exit n]` if the exit code n is not 0."""
        done = self.site.run("bash", "-c", command, cwd=self.cwd, env={"PWD": str(self.cwd), **variables})
        code = f"[exit {done.returncode}]\n" if done.returncode else ""
        return done.stderr + done.stdout + code

    def holds(self, transcript: str) -> None:
        """Runs all commands of a transcript, and checks that each prints the lines below it."""
        for part in re.split(r"^\$ ", transcript, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            printed = re.sub(r"usage: (.|\n)* --version\n", "(+ usage text)\n", self.sh(command))
            printed = printed.replace(f"{USER:16} ", TABLE).replace(f"{USER}@{HOST}", "user@login")
            assert printed == re.sub(r"(?m)^#.*\n", "", expected), command

    def submit(self, *words: str, **variables: str) -> str:
        done = self.site.run("qsub", *words, cwd=self.cwd, env=variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def script(self, text: str, name: str = "job.sh") -> str:
        (self.cwd / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.cwd / name).chmod(0o755)
        return name

    def record(self, job_id: str) -> dict[str, Any]:
        return dict(json.loads(self.site.run("qstat", "-x", "-f", "-F", "json", job_id).stdout)["Jobs"][job_id])

    def state(self, job_id: str) -> str:
        return str(self.record(job_id)["job_state"])

    def until(self, ready: Callable[[], Any], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, self.site.run("qstat", "-x", "-f", "-t").stdout
            time.sleep(0.05)

    def ended(self, job_id: str) -> dict[str, Any]:
        self.until(lambda: self.state(job_id) in "FX")
        return self.record(job_id)

    def running(self, job_id: str) -> None:
        self.until(lambda: self.record(job_id)["substate"] in (42, 70))

    def end(self, job_id: str) -> tuple[Any, ...]:
        record = self.ended(job_id)
        return tuple(record.get(name) for name in ("job_state", "substate", "run_count", "Exit_status"))

    def exists(self, name: str) -> None:
        self.until((self.cwd / name).exists)


# -- qsub


def test_good_and_bad_submissions(pbs: Session) -> None:
    pbs.script("exit 0", "empty.sh")
    pbs.site.set(next_number=1)
    pbs.site.freeze_scheduler()
    pbs.holds("""\
$ qsub s.sh
1.pbs-srv
$ echo sleep 1 | qsub -N fromstdin
2.pbs-srv
$ qsub -N direct -- /bin/sleep 1
3.pbs-srv
$ qsub -z s.sh
$ qsub -l nosuch=3 s.sh
qsub: Unknown resource Resource_List.nosuch
[exit 187]
$ qsub -l select=1:nosuch=3 s.sh
qsub: Unknown resource: nosuch
[exit 187]
$ qsub -l select=1:ncpus=two s.sh
qsub: Illegal attribute or resource value select.ncpus
[exit 166]
$ qsub -l select=1:ncpus= s.sh
qsub: Illegal attribute or resource value Resource_List.select
[exit 166]
$ qsub -l select=ncpus s.sh
qsub: Illegal attribute or resource value Resource_List.select
[exit 166]
$ qsub -l select=0:ncpus=1 s.sh
qsub: Illegal attribute or resource value
[exit 166]
$ qsub -l select=1:walltime=10 s.sh
qsub: Resource invalid in "select" specification: walltime
[exit 4]
$ qsub -l walltime=abc s.sh
qsub: Illegal attribute or resource value Resource_List.walltime
[exit 166]
$ qsub -l mem=2XB s.sh
qsub: Illegal attribute or resource value Resource_List.mem
[exit 166]
$ qsub -l select=1:ncpus=1 -l ncpus=2 s.sh
qsub: "-lresource=" cannot be used with "select" or "place", resource is: ncpus
[exit 5]
$ qsub -l place=everywhere s.sh
qsub: Illegal attribute or resource value Resource_List.place
[exit 166]
$ qsub -q nosuchq s.sh
qsub: Unknown queue
[exit 170]
$ qsub -q debug -l walltime=00:20:00 s.sh
qsub: Job violates queue and/or server resource limits
[exit 188]
# Refused by the server, and a sequence number is gone; refused by qsub itself, and none is.
$ qsub -q debug -l walltime=00:10:00 s.sh
13.pbs-srv
$ qsub -q small -l select=2:ncpus=4 -l walltime=60 s.sh
qsub: Job violates queue and/or server resource limits
[exit 188]
$ qsub -l select=1:ncpus=1000 s.sh
15.pbs-srv
$ qsub nosuch.sh
qsub: script file:: No such file or directory
[exit 1]
$ qsub -l select=1 s.sh extra args
(+ usage text)
[exit 2]
$ qsub --badopt s.sh
qsub: invalid option -- '-'
qsub: invalid option -- 'b'
qsub: illegal -a value
(+ usage text)
[exit 2]
$ env -u DISPLAY qsub -X s.sh
qsub: DISPLAY not set
(+ usage text)
[exit 2]
$ qsub empty.sh
16.pbs-srv
$ qsub -q workq@nosuchserver s.sh
Unknown Host.
qsub: cannot connect to server nosuchs (errno=15008)
[exit 160]
$ qsub -I
qsub:\tstandard input and output must be a terminal for
\tinteractive job submission
[exit 1]
$ qsub -W foo=bar s.sh
qsub: Error (15002) submitting job
[exit 154]
$ qsub -l place=scatter s.sh
qsub: Cannot have "place" without "select"
[exit 7]
$ qsub -l select=1:ncpus=1:ncpus=2 s.sh
qsub: duplicated resource within a section of a select specification, resource is: ncpus
[exit 12]
$ qsub s.sh -h
(+ usage text)
[exit 2]
$ qsub --version
pbs_version = 23.06.06
$ qsub -W umask=abc s.sh
qsub: illegal -W value
(+ usage text)
[exit 2]
$ qsub -m aj s.sh
qsub: mail option 'j' can not be used without array job
[exit 1]
$ qsub -c u s.sh
qsub: illegal -c value
(+ usage text)
[exit 2]
$ qsub -W group_list=no-such-group s.sh
qsub: Bad GID for job execution
[exit 197]
$ qsub -u somebody-else s.sh
qsub: Bad UID for job execution
[exit 175]
$ qsub -q off s.sh
qsub: Queue is not enabled
[exit 173]
""")


def test_arrays_holds_and_reruns(pbs: Session) -> None:
    pbs.site.set(next_number=19)
    pbs.site.freeze_scheduler()
    pbs.holds("""\
$ qsub -J 0-3 s.sh
19[].pbs-srv
$ qsub -J 0-3%2 s.sh
20[].pbs-srv
$ qsub -J 1-7:2 s.sh
21[].pbs-srv
$ qsub -J 0-0 s.sh
qsub: illegal -J value
(+ usage text)
[exit 2]
$ qsub -J 3 s.sh
qsub: illegal -J value
(+ usage text)
[exit 2]
$ qsub -J 3-0 s.sh
qsub: illegal -J value
(+ usage text)
[exit 2]
$ qsub -J 0,2,5 s.sh
qsub: illegal -J value
(+ usage text)
[exit 2]
$ qsub -J 0-20000 s.sh
qsub: Array job exceeds server or queue size limit
[exit 3]
$ qsub -h s.sh
23.pbs-srv
$ qsub -W depend=afterok:nonsense s.sh
qsub: illegal -W value
(+ usage text)
[exit 2]
$ qsub -r x s.sh
qsub: illegal -r value
(+ usage text)
[exit 2]
$ qsub -J 0-1 -r n s.sh
qsub:  cannot submit non-rerunable Array Job
(+ usage text)
[exit 2]
$ qsub -W max_run_subjobs=2 s.sh
qsub: Attribute has to be set on an array job
[exit 127]
$ qstat -f '20[]' | grep -E 'indices|count|max_run'
    array_state_count = Queued:4 Running:0 Exiting:0 Expired:0
    array_indices_submitted = 0-3
    array_indices_remaining = 0-3
    max_run_subjobs = 2
""")
    record = pbs.record("20[].pbs-srv")
    assert record["Output_Path"] == f"{HOST}:{pbs.cwd}/s.sh.o20.^array_index^"
    assert record["Error_Path"] == f"{HOST}:{pbs.cwd}/s.sh.e20.^array_index^"


def test_max_array_size(pbs: Session) -> None:
    pbs.site.set(max_array_size=3)
    assert pbs.sh("qsub -J 0-3 s.sh") == "qsub: Array job exceeds server or queue size limit\n[exit 3]\n"
    assert '"max_array_size":3' in pbs.sh("qstat -B -f -F json")


NAMES_REFUSED = ["with space", "tab\tx", "a/b", "a:b", "a,b", "a=b", "a$b", "a'b", 'a"b', "a[0]", "a(b)", "a@b", "a#b",
                 "é", ""]  # fmt: skip
NAMES = ["plain_ok", "1digitfirst", "_under", "-dash", ".dot", "a+b", "12345", "a" * 230]


def test_job_names(pbs: Session) -> None:
    pbs.site.freeze_scheduler()
    for name in NAMES:
        assert pbs.record(pbs.submit("-N", name, "s.sh"))["Job_Name"] in (name, 12345)
    for name in NAMES_REFUSED:
        done = pbs.site.run("qsub", "-N", name, "s.sh", cwd=pbs.cwd)
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, "qsub: illegal -N value"), name
    assert pbs.sh(f"qsub -N {'a' * 231} s.sh") == "qsub: Job name is too long \n[exit 2]\n"


REFUSED = "cannot send environment with the job"
# (argument of -v, the exported values before, what the job has of A and B) as bash's `declare -p` showed it.
VARIABLES: list[tuple[str, dict[str, str], dict[str, str] | str]] = [
    ("A=1,B=two", {}, {"A": "1", "B": "two"}),
    ("A=a b c,B=x", {}, {"A": "a b c", "B": "x"}),
    ("A='a,b,c',B=2", {}, {"A": "a,b,c", "B": "2"}),
    ('A="a,b,c",B=2', {}, {"A": "a,b,c", "B": "2"}),
    (r"A=a\,b\,c,B=2", {}, {"A": "a,b,c", "B": "2"}),
    ('A="it\'s",B=2', {}, REFUSED),
    (r'A="{\"k\": [1,2]}",B=2', {}, {"A": r"{\\k\\: [1,2]}", "B": "2"}),
    ("A='{\"k\": [1,2]}',B=2", {}, REFUSED),
    ("A=x=y;z|w,B=$(id) $HOME", {}, {"A": "x=y;z|w", "B": "$(id) $HOME"}),
    (r"A=back\\slash,B=C:\\x", {}, {"A": r"back\\\\slash", "B": r"C:\\\\x"}),
    ("A=x&y<z>,B={a:1}", {}, {"A": "x&y<z>", "B": "{a:1}"}),
    ('A={"k": 1}', {}, {"A": "{k: 1}"}),
    ("A=it's", {}, REFUSED),
    (r"A=it\'s", {}, REFUSED),
    ('A="unterminated', {}, REFUSED),
    ("A", {"A": "has,comma"}, {"A": "has,comma"}),
    ("A", {"A": ""}, {"A": ""}),
    ("A=,B=1", {}, {"A": "", "B": "1"}),
    ("A", {"A": "line1\nline2"}, {"A": "line1\nline2"}),
    ("A", {"A": 'q"uo'}, REFUSED),
    ("NOSUCH", {}, REFUSED),
]


@pytest.mark.parametrize(("text", "exported", "expected"), VARIABLES)
def test_variables(pbs: Session, text: str, exported: dict[str, str], expected: dict[str, str] | str) -> None:
    pbs.script('[ -v A ] && printf "A=%s\\0" "$A" >>$PBS_O_WORKDIR/out; [ -v B ] && printf "B=%s\\0" '
               '"$B" >>$PBS_O_WORKDIR/out; echo >$PBS_O_WORKDIR/done')  # fmt: skip
    done = pbs.site.run("qsub", "-v", text, "job.sh", cwd=pbs.cwd, env=exported)
    if isinstance(expected, str):
        assert (done.returncode, done.stderr) == (1, f"qsub: {REFUSED}\n")
        return
    pbs.exists("done")
    items = (pbs.cwd / "out").read_text().split("\0")[:-1]
    assert dict(item.split("=", 1) for item in items) == expected


def test_the_last_v_wins_and_big_v_does_nothing(pbs: Session) -> None:
    pbs.script("env >$PBS_O_WORKDIR/out; echo >$PBS_O_WORKDIR/done")
    pbs.submit("-v", "A=1", "-v", "B=2", "-V", "job.sh", FOO="plain")
    pbs.exists("done")
    names = {line.split("=")[0] for line in (pbs.cwd / "out").read_text().splitlines()}
    assert not {"A", "FOO"} & names
    assert "B" in names


# -- directives


def test_directives(pbs: Session) -> None:
    pbs.site.freeze_scheduler()
    pbs.script(
        '#PBS -N fromscript -j oe -l select=1:ncpus=1:mem=10mb\n#PBS -l walltime=60 -o "dir with space/x.out"\n'
        "  #PBS -P two\\ words\n# a comment\n\n#PBS -l \\\n place=scatter\nsleep 1\n#PBS -A late",
        "d.sh",
    )
    record = pbs.record(pbs.submit("d.sh"))
    assert (record["Job_Name"], record["Join_Path"], record["project"]) == ("fromscript", "oe", "two words")
    assert record["Resource_List"] == {"mem": "10mb", "ncpus": 1, "nodect": 1, "place": "scatter",
                                       "select": "1:ncpus=1:mem=10mb", "walltime": "00:01:00"}  # fmt: skip
    assert record["Output_Path"] == f"{HOST}:{pbs.cwd}/dir with space/x.out"
    assert "Account_Name" not in record
    record = pbs.record(pbs.submit("-N", "cmdline", "-l", "walltime=10", "d.sh"))
    assert (record["Job_Name"], record["Resource_List"]["walltime"]) == ("cmdline", "00:00:10")
    record = pbs.record(pbs.submit("-C", "", "d.sh"))
    assert (record["Job_Name"], record["Resource_List"]["select"]) == ("d.sh", "1:ncpus=1")
    assert record["Submit_arguments"] == "-C d.sh"


def test_bad_directives(pbs: Session) -> None:
    pbs.script("#PBS --badopt", "bd.sh")
    pbs.script("#PBS -N name # comment", "dq.sh")
    pbs.holds("""\
$ qsub bd.sh
qsub: invalid option -- '-'
qsub: invalid option -- 'b'
qsub: illegal -a value
qsub: directive error: --badopt 
[exit 1]
$ qsub -h dq.sh
qsub: directive error: -N name # comment 
[exit 1]
""")


# -- what a job has


MAIN = """\
ENVIRONMENT=BATCH HOME LOGNAME NCPUS=2 OMP_NUM_THREADS=2 PATH PBS_ENVIRONMENT=PBS_BATCH PBS_JOBCOOKIE PBS_JOBDIR
PBS_JOBID=8.pbs-srv PBS_JOBNAME=job.sh PBS_MOMPORT=15003 PBS_NODEFILE PBS_NODENUM=0 PBS_QUEUE=workq PBS_TASKNUM=1 PWD
SHELL=/bin/bash TMPDIR USER"""
TASK = """\
PATH=/bin:/usr/bin HOME PBS_JOBNAME=job.sh PBS_JOBID=8.pbs-srv PBS_QUEUE=workq PBS_JOBCOOKIE PBS_NODENUM=1
PBS_TASKNUM=20000001 PBS_MOMPORT=15003 OMP_NUM_THREADS=2 NCPUS=2 PBS_ENVIRONMENT=PBS_BATCH ENVIRONMENT=BATCH TMPDIR
PBS_JOBDIR PBS_NODEFILE"""
SUBMITTER = {
    f"PBS_O_{name}"
    for name in ("HOME", "HOST", "LANG", "LOGNAME", "MAIL", "PATH", "QUEUE", "SHELL", "SYSTEM", "TZ", "WORKDIR")
}
# Ours is not at /etc/pbs.conf, so the site's file pbs_environment says where it is; the rest is bash's own.
OURS = {"PBS_CONF_FILE", "SHLVL", "_"}


def _environment(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_environment_of_the_main_script_and_of_a_task(pbs: Session) -> None:
    pbs.script(
        "export MINE=1; env >$PBS_O_WORKDIR/main; pwd >>$PBS_O_WORKDIR/facts; umask >>$PBS_O_WORKDIR/facts\n"
        "cat $PBS_NODEFILE >$PBS_O_WORKDIR/nodes; [ -d $TMPDIR ] || echo no >>$PBS_O_WORKDIR/facts; cat\n"
        'pbsdsh -n 2 -- /bin/sh -c "env >$PBS_O_WORKDIR/task; echo by-task"'
    )
    pbs.site.set(next_number=8)
    job = pbs.submit("-j", "oe", "-o", "env.out", "-l", "select=2:ncpus=2:mpiprocs=2", "-l", "place=scatter", "job.sh",
                     SECRET="mine")  # fmt: skip
    pbs.ended(job)
    for file, words in (("main", MAIN), ("task", TASK)):
        found = _environment((pbs.cwd / file).read_text())
        expected = dict((word.split("=", 1) * 2)[:2] for word in words.split())
        assert set(found) - SUBMITTER - OURS - {"MINE"} - ({"PWD"} if file == "task" else set()) == set(expected)
        assert {name: found[name] for name, value in expected.items() if name != value} == {
            name: value for name, value in expected.items() if name != value
        }
        assert ("MINE" in found) == (file == "main")
    main = _environment((pbs.cwd / "main").read_text())
    assert main["PATH"].split(":")[-1] == f"{pbs.site.folder}/bin"
    assert os.environ.get("VIRTUAL_ENV", "/no/venv") not in main["PATH"]
    assert main["TMPDIR"].endswith("/pbs.8.pbs-srv")
    assert (pbs.cwd / "facts").read_text().split() == [str(pbs.site.home), "0077"]
    assert (pbs.cwd / "nodes").read_text().split() == [HOST, HOST, "localhost", "localhost"]
    assert (pbs.cwd / "env.out").read_text() == "by-task\n"


def test_the_profile_is_read_and_the_shebang_obeyed(pbs: Session) -> None:
    profile = (pbs.site.home / ".profile").read_text()
    (pbs.site.home / ".profile").write_text(f"{profile}export FROM_PROFILE=yes\n")
    try:
        (pbs.cwd / "p.py").write_text(
            "#!/usr/bin/env python3\nimport os, sys\nprint(sys.argv[0], sys.stdin.isatty(), repr(sys.stdin.read()), "
            "os.environ['FROM_PROFILE'], os.getppid() == os.getsid(0))"
        )
        job = pbs.submit("-o", "out", "p.py")
        pbs.ended(job)
        script = pbs.site.folder / f"spool/mom_priv/jobs/{job}.SC"
        assert (pbs.cwd / "out").read_text() == f"{script} False '' yes True\n"
    finally:
        (pbs.site.home / ".profile").write_text(profile)


def test_executable_form(pbs: Session) -> None:
    (pbs.cwd / "a.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['PATH'], os.getpid() == os.getsid(0))"
    )
    job = pbs.submit("-o", "out", "--", "/usr/bin/python3", f"{pbs.cwd}/a.py", "a b", "c'd", "", 'e"f', "$HOME", "<&>")
    assert pbs.ended(job)["Job_Name"] == "STDIN"
    assert (pbs.cwd / "out").read_text() == """['a b', "c'd", 'e"f', '$HOME', '<&>'] /bin:/usr/bin True\n"""
    record = pbs.record(job)
    assert record["executable"] == "<jsdl-hpcpa:Executable>/usr/bin/python3</jsdl-hpcpa:Executable>"
    assert record["argument_list"].endswith(
        "<jsdl-hpcpa:Argument>c&apos;d</jsdl-hpcpa:Argument><jsdl-hpcpa:Argument>e&quot;f</jsdl-hpcpa:Argument>"
        "<jsdl-hpcpa:Argument>$HOME</jsdl-hpcpa:Argument><jsdl-hpcpa:Argument>&lt;&amp;&gt;</jsdl-hpcpa:Argument>"
    )  # fmt: skip


NODE_FILES = [
    ("-l select=2:ncpus=2:mpiprocs=2 -l place=scatter", "1 1 2 2", "2 2"),
    ("-l select=2:ncpus=2 -l place=scatter", "1 2", "2 2"),
    ("-l select=2:ncpus=4:mpiprocs=2:ompthreads=2 -l place=scatter", "1 1 2 2", "4 2"),
    ("-l select=2:ncpus=2:mpiprocs=2", "1 1 1 1", "2 2"),
    ("-l select=2:ncpus=2:mpiprocs=2 -l place=pack", "1 1 1 1", "2 2"),
    ("-l select=1:ncpus=2:mpiprocs=2+1:ncpus=1:mpiprocs=1 -l place=scatter", "1 1 2", "2 2"),
    ("-l ncpus=3", "1", "3 3"),
    ("-l nodes=2:ppn=2", "1 1 2 2", "2 2"),
    ("-l select=1:ncpus=1:mem=100mb:host=localhost", "2", "1 1"),
    ("-l select=1:ncpus=0", "", "0 0"),
    ("", "1", "1 1"),
    ("-l select=1:ncpus=1:ngpus=1", "1", "1 1"),
]


@pytest.mark.parametrize(("options", "nodes", "threads"), NODE_FILES)
def test_node_file(pbs: Session, options: str, nodes: str, threads: str) -> None:
    pbs.script("cat $PBS_NODEFILE; echo $NCPUS $OMP_NUM_THREADS")
    pbs.ended(pbs.submit("-o", "out", *shlex.split(options), "job.sh"))
    *lines, last = (pbs.cwd / "out").read_text().splitlines()
    assert last == threads
    assert lines == [{"1": HOST, "2": "localhost"}[word] for word in nodes.split()] or ([""] if not nodes else [])


def test_ngpus_is_known_where_the_site_made_it(pbs: Session) -> None:
    pbs.site.set(resources=[])
    assert pbs.sh("qsub -l select=1:ncpus=1:ngpus=0 s.sh") == "qsub: Unknown resource: ngpus\n[exit 187]\n"


def test_environment_of_an_array(pbs: Session) -> None:
    pbs.script("echo $PBS_ARRAY_INDEX $PBS_ARRAY_ID $PBS_JOBID $(basename $PBS_NODEFILE) $(basename $TMPDIR)")
    pbs.site.set(next_number=150)
    array = pbs.submit("-J", "5-9:2", "-o", "arr_^array_index^_^array_index^.out", "-j", "oe", "job.sh")
    pbs.ended(array)
    assert (pbs.cwd / "arr_7_7.out").read_text() == (
        "7 150[].pbs-srv 150[7].pbs-srv 150[7].pbs-srv pbs.150[7].pbs-srv\n"
    )


# -- output files


OUTPUT = [
    ("", "job.sh.e69 job.sh.o69", 0o600),
    ("-N nm", "nm.e69 nm.o69", 0o600),
    ("-j oe", "job.sh.o69", 0o600),
    ("-j eo", "job.sh.e69", 0o600),
    ("-o out/a.out -e out/a.err", "out/a.err out/a.out", 0o600),
    ("-o {cwd}/b.out -e localhost:{cwd}/b.err", "b.err b.out", 0o600),
    ("-o :{cwd}/e.out -j oe", "e.out", 0o600),
    ("-o out/ -e out", "out/69.pbs-srv.ER out/69.pbs-srv.OU", 0o600),
    ("-J 0-1 -o out/ -e out/", " ".join(f"out/69[{i}].pbs-srv.{s}" for s in ("ER", "OU") for i in (0, 1)), 0o600),
    ("-J 0-1", "job.sh.e69.0 job.sh.e69.1 job.sh.o69.0 job.sh.o69.1", 0o600),
    ("-J 0-1 -o x_^array_index^_^array_index^ -e same", "same x_0_0 x_1_1", 0o600),
    ("-o 'out/$PBS_JOBID.out' -j oe", "out/$PBS_JOBID.out", 0o600),
    ("-o out/with,comma -j oe", "out/with,comma", 0o600),
    ("-o 'out/with:colon' -j oe", "out/with:colon", 0o600),
    ("-o nodir/f.out -j oe", "", 0o600),
    ("-k doe", "job.sh.e69 job.sh.o69", 0o600),
    ("-k oed -j oe -o kd.out", "kd.out", 0o600),
    ("-k oed -j oe -J 0-1 -o kd_^array_index^", "kd_0 kd_1", 0o600),
    ("-k n", "job.sh.e69 job.sh.o69", 0o600),
    ("-o /dev/null -e /dev/null", "", 0o600),
    ("-R oe -o R.out -e R.err", "", 0o600),
    ("-W umask=022 -o um.out -e um.err", "um.err um.out", 0o644),
    ("-W umask=22 -k oed -o um.out -e um.err", "um.err um.out", 0o644),
]


@pytest.mark.parametrize(("options", "files", "mode"), OUTPUT)
def test_output_files(pbs: Session, options: str, files: str, mode: int) -> None:
    pbs.script("echo out; echo err >&2")
    (pbs.cwd / "out").mkdir()
    pbs.site.set(next_number=69)
    job = pbs.submit(*shlex.split(options.format(cwd=pbs.cwd)), "job.sh")
    assert pbs.ended(job)["Exit_status"] == 0
    found = {str(path.relative_to(pbs.cwd)): path for path in pbs.cwd.rglob("*") if path.is_file()}
    assert sorted(set(found) - {"job.sh", "s.sh"}) == sorted(files.split())
    for name in files.split():
        assert found[name].stat().st_mode & 0o777 == mode
        both = "-j" in options
        assert found[name].read_text() in ("out\nerr\n" if both else "out\n", "out\nerr\n" if both else "err\n")


def test_kept_without_d_it_goes_to_the_home_directory(pbs: Session) -> None:
    job = pbs.submit("-k", "oe", "-o", "elsewhere", "s.sh")
    pbs.ended(job)
    number = job.partition(".")[0]
    assert [path.name for path in sorted(pbs.site.home.glob("s.sh.*"))] == [f"s.sh.e{number}", f"s.sh.o{number}"]
    assert not (pbs.cwd / "elsewhere").exists()


def test_an_unknown_host_of_a_file_is_refused(pbs: Session) -> None:
    pbs.holds("$ qsub -o no-such-host.invalid:/x/d.out -j oe s.sh\nqsub: illegal -o value\n(+ usage text)\n[exit 2]\n")


def test_direct_output_is_seen_while_the_job_runs_and_spooled_output_is_not(pbs: Session) -> None:
    pbs.script("echo line; sleep 60")
    for keep, seen in (("oed", True), ("n", False)):
        pbs.running(pbs.submit("-k", keep, "-j", "oe", "-o", keep, "job.sh"))
        time.sleep(0.3)
        assert ((pbs.cwd / keep).exists() and (pbs.cwd / keep).read_text() == "line\n") == seen


# -- qstat


DETAILS = """\
        "8.pbs-srv":{
            "Job_Name":"running",
            "Job_Owner":"user@login",
            "resources_used":{
                "cpupercent":0,
                "cput":"00:00:00",
                "mem":"0kb",
                "ncpus":2,
                "vmem":"0kb",
                "walltime":"00:00:00"
            },
            "job_state":"R",
            "queue":"workq",
            "server":"pbs-srv",
            "Checkpoint":"u",
            "ctime":"TIME",
            "Error_Path":"login:DIR/running.e8",
            "exec_host":"N1/0+N2/0",
            "exec_vnode":"(N1:ncpus=1:mem=10240kb)+(N2:ncpus=1:mem=10240kb)",
            "Hold_Types":"n",
            "Join_Path":"n",
            "Keep_Files":"n",
            "Mail_Points":"a",
            "mtime":"TIME",
            "Output_Path":"login:DIR/running.o8",
            "Priority":0,
            "qtime":"TIME",
            "Rerunable":"True",
            "Resource_List":{
                "mem":"20mb",
                "ncpus":2,
                "nodect":2,
                "place":"scatter",
                "select":"2:ncpus=1:mem=10mb",
                "walltime":"00:10:00"
            },
            "stime":"TIME",
            "session_id":NUMBER,
            "jobdir":"HOME",
            "substate":42,
            "Variable_List":{
                "PBS_O_HOME":"HOME",
                "PBS_O_LANG":"C.UTF-8",
                "PBS_O_LOGNAME":"user",
                "PBS_O_PATH":"$PBS_EXEC/bin:/bin",
                "PBS_O_SHELL":"/bin/bash",
                "PBS_O_WORKDIR":"DIR",
                "PBS_O_SYSTEM":"Linux",
                "PBS_O_QUEUE":"workq",
                "PBS_O_HOST":"login"
            },
            "comment":"Job run at DATE on (N1:ncpus=1:mem=10240kb)+(N2:ncpus=1:mem=10240kb)",
            "etime":"TIME",
            "run_count":1,
            "Submit_arguments":"-N running -l select=2:ncpus=1:mem=10mb -l place=scatter -l walltime=00:10:00 long.sh",
            "project":"_pbs_project_default",
            "Submit_Host":"login"
        }
    }
}
"""


def _as_in_transcript(text: str, pbs: Session) -> str:
    for ours, theirs in (
        (f"{pbs.site.folder}/bin", "$PBS_EXEC/bin"), (str(pbs.site.home), "HOME"), (str(pbs.cwd), "DIR"),
        (f"{USER}@{HOST}", "user@login"), (f'"{USER}"', '"user"'), (f'"{HOST}:', '"login:'), (f'"{HOST}"', '"login"'),
    ):  # fmt: skip
        text = text.replace(ours, theirs)
    text = re.sub(rf"([\"(]){HOST}\b", r"\1N1", text)
    text = re.sub(r"([(+])localhost\b", r"\1N2", text)
    text = re.sub(r'"\w{3} \w{3} [\d ]\d \d\d:\d\d:\d\d \d{4}"', '"TIME"', text)
    text = re.sub(r"\w{3} \w{3} \d\d at \d\d:\d\d", "DATE", text)
    return re.sub(r'("(session_id|timestamp|history_timestamp)":)\d+', r"\1NUMBER", text)


def test_json_of_a_job_that_runs_and_has_ended(pbs: Session) -> None:
    pbs.script("trap 'exit 0' TERM; sleep 60 & wait", "long.sh")
    pbs.site.set(next_number=8)
    where = {"PATH": f"{pbs.site.folder}/bin:/bin", "LANG": "C.UTF-8", "SHELL": "/bin/bash", "PWD": str(pbs.cwd)}
    hidden = {name: "" for name in ("MAIL", "TZ") if name in os.environ}
    command = "qsub -N running -l select=2:ncpus=1:mem=10mb -l place=scatter -l walltime=00:10:00 long.sh"
    pbs.sh(f"unset {' '.join(hidden) or 'NOTHING'}; {command}", **where)
    pbs.running("8.pbs-srv")
    head = '{\n    "timestamp":NUMBER,\n    "pbs_version":"23.06.06",\n    "pbs_server":"pbs-srv",\n    "Jobs":{\n'
    printed = _as_in_transcript(pbs.sh("qstat -f -F json 8"), pbs)
    assert printed == head + DETAILS
    assert pbs.sh("qdel 8") == ""
    assert pbs.record("8.pbs-srv")["comment"].endswith(f" and terminated by {USER}@{HOST}")
    record = pbs.ended("8.pbs-srv")
    names = list(record)
    # Between what was there while it ran, and in this order.
    assert names[names.index("stime") + 1 :][:3] == ["obittime", "session_id", "jobdir"]
    assert names[names.index("run_count") :] == ["run_count", "Stageout_status", "Exit_status", "Submit_arguments",
                                                 "history_timestamp", "project", "Submit_Host"]  # fmt: skip


def test_qstat_of_jobs_that_are_not_there(pbs: Session) -> None:
    pbs.site.set(next_number=158)
    pbs.script("exit 0", "ok.sh")
    assert pbs.end(pbs.submit("ok.sh")) == ("F", 92, 1, 0)
    pbs.holds(
        f"""\
$ qstat 158
qstat: 158.pbs-srv Job has finished, use -x or -H to obtain historical job information
[exit 35]
$ qstat -x 158
{HEAD}158.pbs-srv       ok.sh            user              00:00:00 F workq           
$ qstat 99999
qstat: Unknown Job Id 99999.pbs-srv
[exit 153]
$ qstat -x 99999
qstat: Unknown Job Id 99999.pbs-srv
[exit 153]
$ qstat foo
qstat: Unknown queue destination foo
[exit 170]
$ qstat
$ qstat -u {USER} -F json
qstat: conflicting options.
(+ usage text)
[exit 2]
$ qstat -x 158 99999 158.pbs-srv foo.bar
qstat: Unknown Job Id 99999.pbs-srv
qstat: Unknown queue destination foo.bar
{HEAD}158.pbs-srv       ok.sh            user              00:00:00 F workq           
158.pbs-srv       ok.sh            user              00:00:00 F workq           
[exit 170]
"""
    )
    printed = pbs.sh("qstat -x -f -F json 99999; echo; qstat -f -F json")
    assert (
        re.sub(r":\d{9,}", ":NUMBER", printed)
        == """\
qstat: Unknown Job Id 99999.pbs-srv
{
    "timestamp":NUMBER,
    "pbs_version":"23.06.06",
    "pbs_server":"pbs-srv"
}
{
    "timestamp":NUMBER,
    "pbs_version":"23.06.06",
    "pbs_server":"pbs-srv"
}"""
    )


# (-N, how it is in the JSON)
JSON_NAMES = [("nan", "nan"), ("inf", "inf"), ("infinity", "infinity"), ("0x1F", '"0x1F"'), ("1e999", "1e999"),
              ("-5", "-5"), ("+5", "+5"), (".5", ".5"), ("5.", "5."), ("007", '"007"'), ("0", "0"),
              ("00012", '"00012"'), ("1_000", '"1_000"'), ("12345", "12345"), ("1e5", "1e5"),
              ("true", '"true"')]  # fmt: skip
JSON_VALUES = [("A=1", "1"), ("A=0012", '"0012"'), ("A=nan", "nan"), ("A=0x10", '"0x10"'), ('A="a,b"', '"a,b"'),
               (r"A=back\\slash", r'"back\\\\\\\\slash"'), ("A=t\tab", r'"t\tab"'),
               ("A=ctl\x01\x1b[0m", '"ctl^A^[[0m"'), ("A=l1\nl2", r'"l1\nl2"')]  # fmt: skip


def test_what_looks_like_a_number_has_no_quotes_in_json(pbs: Session) -> None:
    pbs.site.freeze_scheduler()
    for name, expected in JSON_NAMES:
        assert f'"Job_Name":{expected},' in pbs.sh(f"qstat -f -F json {pbs.submit('-N', name, 's.sh')}")
    for value, expected in JSON_VALUES:
        assert f'"A":{expected},' in pbs.sh(f"qstat -f -F json {pbs.submit('-v', value, 's.sh')}")


ALTERNATE = """\

pbs-srv: 
                                                            Req'd  Req'd   Elap
Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time
--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----
24[].pbs-srv    USER____ workq    arr           --    1   1    --    --  B   -- 
25.pbs-srv      USER____ workq    t.sh          --    1   1    --    --  H   -- 
26.pbs-srv      USER____ workq    aaaaaaaaa*    --    2   4    --    --  H   -- 
27.pbs-srv      USER____ workq    t.sh          --    1 500    1gb 00:10 Q   -- 

pbs-srv: 
                                                                                                   Req'd  Req'd   Elap
Job ID                         Username        Queue           Jobname         SessID   NDS  TSK   Memory Time  S Time
------------------------------ --------------- --------------- --------------- -------- ---- ----- ------ ----- - -----
24[0].pbs-srv                  USER_____.A____ workq           arr             NUMBER    1     1    --    --  R 00:00
   Job run at DATE on (N1:ncpus=1)
24[1].pbs-srv                  USER_____.A____ workq           arr                  --     1     1    --    --  Q   -- 
   Job Array Began at DATE
25.pbs-srv                     USER_____.A____ workq           t.sh                 --     1     1    --    --  H   -- 
    -- 
26.pbs-srv                     USER_____.A____ workq           aaaaaaaaaaaaaa*      --     2     4    --    --  H   -- 
    -- 
27.pbs-srv                     USER_____.A____ workq           t.sh                 --     1   500    1gb 00:10 Q   -- 
   Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 31 T: 32)
"""


def test_alternate_format(pbs: Session) -> None:
    pbs.script("sleep 60", "t.sh")
    pbs.site.set(next_number=24)
    array = pbs.submit("-J", "0-1%1", "-N", "arr", "t.sh")
    pbs.running("24[0].pbs-srv")
    pbs.submit("-h", "t.sh")
    pbs.submit("-h", "-l", "nodes=2:ppn=2", "-N", "a" * 30, "t.sh")
    never = pbs.submit("-l", "select=1:ncpus=500:mem=1gb", "-l", "walltime=600", "t.sh")
    pbs.until(lambda: "comment" in pbs.record(never))
    printed = pbs.sh(f"qstat -u {USER}; qstat -u {USER} -t -x -w -s")
    printed = re.sub(r"\w{3} \w{3} \d\d at \d\d:\d\d", "DATE", printed).replace(f"({HOST}:", "(N1:")
    session = pbs.record("24[0].pbs-srv")["session_id"]
    printed = printed.replace(f"{session:>8}    1", "NUMBER    1")
    expected = ALTERNATE.replace("USER____ ", f"{USER:8.8} ").replace("USER_____.A____ ", f"{USER:15.15} ")
    assert printed == expected
    assert array == "24[].pbs-srv"


def test_table_cuts_long_names(pbs: Session) -> None:
    pbs.site.freeze_scheduler()
    pbs.site.set(next_number=107)
    pbs.submit("-N", "abcdefghijklmno", "s.sh")
    pbs.submit("-N", "aaaaaaaaaabbbbbbbbbbcccccccccc", "s.sh")
    pbs.holds(f"""\
$ qstat
{HEAD}107.pbs-srv       abcdefghijklmno  user                     0 Q workq           
108.pbs-srv       aaaaaaaaaabbbbb* user                     0 Q workq           
""")


def test_queues_and_server(pbs: Session) -> None:
    queues = json.loads(pbs.sh("qstat -Q -f -F json"))["Queue"]
    assert list(queues) == ["workq", "debug", "small", "off"]
    assert queues["debug"] == {
        "queue_type": "Execution", "total_jobs": 0,
        "state_count": "Transit:0 Queued:0 Held:0 Waiting:0 Running:0 Exiting:0 Begun:0 ",
        "resources_max": {"walltime": "00:10:00"}, "enabled": "True", "started": "True",
    }  # fmt: skip
    assert (queues["small"]["resources_max"], queues["off"]["enabled"]) == ({"nodect": 1}, "False")
    server = json.loads(pbs.sh("qstat -B -f -F json"))["Server"]["pbs-srv"]
    assert server["default_chunk"] == {"ncpus": 1}
    assert (server["job_history_enable"], server["default_queue"]) == ("True", "workq")


def test_qselect(pbs: Session) -> None:
    pbs.site.set(next_number=5)
    pbs.ended(pbs.submit("-N", "one", "s.sh"))
    pbs.submit("-h", "-N", "two", "s.sh")
    pbs.holds(f"""\
$ qselect -u {USER}
6.pbs-srv
$ qselect -u nobody-else
$ qselect -x -u {USER}
5.pbs-srv
6.pbs-srv
$ qselect -x -N one
5.pbs-srv
$ qselect -s QR
$ qselect -s H
6.pbs-srv
$ qsub -h -J 0-1 s.sh
7[].pbs-srv
$ qselect -T
6.pbs-srv
7[0].pbs-srv
7[1].pbs-srv
$ qselect -J
7[].pbs-srv
$ qselect -Z | head -1
qselect: invalid option -- 'Z'
(+ usage text)
""")


# -- signals and the end


EXIT_STATUS = [
    ("exit 1", 1, 93), ("exit 255", 255, 93), ("exit 0", 0, 92), ("no-such-command", 127, 93), ("kill -9 $$", 137, 93),
    ("kill -15 $$", 143, 93), ("kill -9 $PPID", 265, 93), ("kill -11 $PPID", 267, 93), ("exit 271", 15, 93),
]  # fmt: skip
EXECUTABLES = [("/bin/sh -c 'exit 7'", 7), ("/bin/sh -c 'kill -9 $$'", 265), ("/bin/sh -c 'kill -10 $$'", 266),
               ("/no/such", 254), ("sleep 1", 254), ("/etc/passwd", 254)]  # fmt: skip


def test_exit_status(pbs: Session) -> None:
    jobs = {pbs.submit(pbs.script(text)): (status, substate) for text, status, substate in EXIT_STATUS}
    jobs |= {pbs.submit("--", *shlex.split(words)): (status, 93) for words, status in EXECUTABLES}
    (pbs.cwd / "bad.sh").write_text("#!/no/such/interpreter\n")
    jobs[pbs.submit("bad.sh")] = (127, 93)
    jobs[pbs.submit("-S", "/no/such/shell", "s.sh")] = (254, 93)
    for job, (status, substate) in jobs.items():
        assert pbs.end(job) == ("F", substate, 1, status), pbs.record(job)["Submit_arguments"]
        assert pbs.record(job)["comment"].endswith(" and failed" if status else " and finished")


HANDLER = """\
import os, signal, sys, time
log = open(sys.argv[1], "a", buffering=1)
for name in ("USR1", "USR2", "TERM"):
    signal.signal(getattr(signal, f"SIG{name}"), lambda number, frame: log.write(f"{signal.Signals(number).name}\\n"))
log.write("start\\n")
for _ in range(1200):
    time.sleep(0.05)
"""


def _handler(pbs: Session, log: str) -> list[str]:
    (pbs.cwd / "handler.py").write_text(HANDLER)
    return ["/usr/bin/python3", f"{pbs.cwd}/handler.py", f"{pbs.cwd}/{log}"]


def test_usr1_kills_a_batch_job_whatever_it_traps(pbs: Session) -> None:
    pbs.script("trap : USR1; echo >$PBS_O_WORKDIR/up; sleep 60 & wait; wait")
    job = pbs.submit("job.sh")
    pbs.exists("up")
    assert pbs.sh(f"qsig -s SIGUSR1 {job}") == ""
    assert pbs.end(job) == ("F", 93, 1, 266)
    pbs.holds(f"""\
$ qsig -s SIGUSR1 {job}
qsig: Job has finished
[exit 35]
$ qsig -s SIGUSR1 99999
qsig: Unknown Job Id 99999.pbs-srv
[exit 153]
$ qdel {job}
qdel: Job has finished {job}
[exit 35]
$ qdel 99999
qdel: Unknown Job Id 99999
[exit 153]
""")


def test_the_executable_form_can_handle_signals(pbs: Session) -> None:
    job = pbs.submit("--", *_handler(pbs, "log"))
    pbs.exists("log")
    pbs.until(lambda: "start" in (pbs.cwd / "log").read_text())
    for name in ("SIGUSR1", "USR2", "12"):
        assert pbs.sh(f"qsig -s {name} {job}") == ""
        time.sleep(0.3)
    assert pbs.sh(f"qsig -s NOSUCH {job}") == f"qsig: Unknown/illegal signal name {job}\n[exit 165]\n"
    assert pbs.state(job) == "R"
    started = time.monotonic()
    assert pbs.sh(f"qdel {job}") == ""
    assert pbs.state(job) == "R"
    assert pbs.end(job) == ("F", 91, 1, 265)  # SIGKILL at last
    assert time.monotonic() - started > 2.9
    assert (pbs.cwd / "log").read_text().split() == ["start", "SIGUSR1", "SIGUSR2", "SIGUSR2", "SIGTERM"]


def test_a_queued_job_cannot_be_signalled(pbs: Session) -> None:
    job = pbs.submit("-h", "s.sh")
    assert pbs.sh(f"qsig -s USR1 {job}") == f"qsig: Request invalid for state of job {job}\n[exit 168]\n"


def test_qdel_kills_the_login_shell_and_leaves_the_rest_until_the_sigkill(pbs: Session) -> None:
    pbs.script(f"{shlex.join(_handler(pbs, 'child'))} &\npbsdsh -n 1 -- {shlex.join(_handler(pbs, 'task'))} &\n"
               "trap 'echo told >>$PBS_O_WORKDIR/script' TERM; wait; wait; wait; sleep 60")  # fmt: skip
    job = pbs.submit("-l", "select=2:ncpus=1", "-l", "place=scatter", "-j", "oe", "-o", "out", "job.sh")
    for log in ("child", "task"):
        pbs.exists(log)
        pbs.until(lambda log=log: "start" in (pbs.cwd / log).read_text())  # type: ignore[misc]
    pbs.sh(f"qdel {job}")
    time.sleep(1)
    assert pbs.state(job) == "R"
    assert pbs.end(job) == ("F", 91, 1, 271)
    assert (pbs.cwd / "script").read_text() == "told\n"
    assert (pbs.cwd / "child").read_text().split() == ["start", "SIGTERM"]
    # The other node's task was told by pbsdsh.
    assert (pbs.cwd / "task").read_text().split() == ["start", "SIGTERM"]
    assert (pbs.cwd / "out").read_text() == "pbsdsh: killing task 0x40000001 signal 15\n"


def test_no_signal_of_qsig_reaches_the_second_node(pbs: Session) -> None:
    words = ["/bin/sh", "-c", f"trap : USR1; PATH={pbs.site.folder}/bin:$PATH; (trap '' USR1; "
             f"exec pbsdsh -n 1 -- {shlex.join(_handler(pbs, 'log'))}) & wait; wait"]  # fmt: skip
    job = pbs.submit("-l", "select=2:ncpus=1", "-l", "place=scatter", "--", *words)
    pbs.exists("log")
    pbs.until(lambda: "start" in (pbs.cwd / "log").read_text())
    pbs.sh(f"qsig -s USR1 {job}")
    time.sleep(0.5)
    assert (pbs.cwd / "log").read_text() == "start\n"
    assert pbs.state(job) == "R"


def test_qdel_force_and_an_end_of_its_own(pbs: Session) -> None:
    job = pbs.submit("--", *_handler(pbs, "log"))
    pbs.exists("log")
    pbs.until(lambda: "start" in (pbs.cwd / "log").read_text())
    pbs.site.set(kill_delay=1000)
    assert pbs.sh(f"qdel -W force {job}") == ""
    assert pbs.end(job) == ("F", 91, 1, 265)
    pbs.script("trap 'exit 0' TERM; echo >$PBS_O_WORKDIR/up; sleep 60 & wait")
    job = pbs.submit("--", "/bin/bash", f"{pbs.cwd}/job.sh", PBS_O_WORKDIR=str(pbs.cwd))
    pbs.exists("up")
    pbs.sh(f"qdel {job}")
    assert pbs.end(job) == ("F", 91, 1, 0)


def test_deleted_while_queued(pbs: Session) -> None:
    job = pbs.submit("-l", "select=1:ncpus=500", "s.sh")
    pbs.until(lambda: "comment" in pbs.record(job))
    assert pbs.sh(f"qdel {job}") == ""
    assert pbs.end(job) == ("F", 91, None, None)
    assert pbs.record(job)["comment"] == (
        "Can Never Run: Insufficient amount of resource: ncpus (R: 500 A: 32 T: 32) and terminated"
    )


def test_walltime(pbs: Session) -> None:
    pbs.site.set(kill_delay=0.5)
    job = pbs.submit("-l", "walltime=1", "-e", "err", "--", *_handler(pbs, "log"))
    assert pbs.end(job) == ("F", 93, 1, -29)
    assert pbs.record(job)["comment"].endswith(" and exceeded resource walltime")
    assert re.fullmatch(r"=>> PBS: job killed: walltime \d exceeded limit 1\n", (pbs.cwd / "err").read_text())
    assert (pbs.cwd / "log").read_text().split() == ["start", "SIGTERM"]


def test_what_called_setsid_outlives_its_job(pbs: Session) -> None:
    pbs.script("setsid sleep 61 & echo $! >$PBS_O_WORKDIR/hidden; sleep 62 & echo $! >$PBS_O_WORKDIR/seen; sleep 0.2")
    pbs.ended(pbs.submit("job.sh"))
    assert _alive(int((pbs.cwd / "hidden").read_text()))
    assert not _alive(int((pbs.cwd / "seen").read_text()))
    pbs.site.reset()
    pbs.until(lambda: not _alive(int((pbs.cwd / "hidden").read_text())))


def _alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- qrerun, qalter, qhold


@pytest.mark.parametrize("rerunable", ["y", "n"])
def test_a_job_whose_node_is_lost_stays_until_the_node_is_back(pbs: Session, rerunable: str) -> None:
    pbs.script("echo $$ >>$PBS_O_WORKDIR/up; setsid sleep 60 & echo $! >>$PBS_O_WORKDIR/up; wait")
    job = pbs.submit("-r", rerunable, "job.sh")
    pbs.until(lambda: (pbs.cwd / "up").exists() and (pbs.cwd / "up").read_text().count("\n") == 2)
    host = pbs.record(job)["exec_host"].partition("/")[0]
    pbs.site.lose_node(host)
    assert f"{host}\n     Mom = {host}\n     Port = 15002\n" in pbs.sh("pbsnodes -a")
    assert pbs.sh("pbsnodes -a").count("state = down") == 1
    pbs.until(lambda: not any(Path("/proc", pid).exists() for pid in (pbs.cwd / "up").read_text().split()))
    assert pbs.state(job) == "R"
    pbs.site.restore_node(host)
    if rerunable == "n":
        assert pbs.end(job) == ("F", 93, 1, -4)
        return
    pbs.until(lambda: (pbs.cwd / "up").read_text().count("\n") == 4)
    record = pbs.record(job)
    assert (record["job_state"], record["run_count"], record["Exit_status"]) == ("R", 2, -4)
    pbs.sh(f"qdel -W force {job}")
    pbs.end(job)


def test_rerun(pbs: Session) -> None:
    pbs.script(
        "echo run $PBS_JOBCOOKIE; [ -e $TMPDIR/mine ] && echo old; touch $TMPDIR/mine; trap '' TERM\n"
        "echo >>$PBS_O_WORKDIR/up; sleep 60"
    )
    pbs.site.set(kill_delay=0.5)
    job = pbs.submit("-o", "out", "job.sh")
    pbs.exists("up")
    assert pbs.sh(f"qrerun {job}") == f"qrerun: Unauthorized Request  {job}\n[exit 159]\n"
    pbs.site.rerun(job)
    record = pbs.record(job)
    assert (record["job_state"], record["substate"], record["run_count"]) == ("R", 60, 1)
    pbs.until(lambda: (pbs.cwd / "up").read_text() == "\n\n")
    record = pbs.record(job)
    # The status of the first run stays: only a job that is over has one that means anything.
    assert (record["job_state"], record["run_count"], record["Exit_status"]) == ("R", 2, -11)
    pbs.site.freeze_scheduler()
    pbs.site.rerun(job)
    pbs.until(lambda: pbs.state(job) == "Q")
    record = pbs.record(job)
    assert (record["substate"], record["run_count"], record["Exit_status"]) == (10, 2, -11)
    pbs.site.thaw()
    pbs.until(lambda: (pbs.cwd / "up").read_text() == "\n\n\n")
    pbs.sh(f"qdel -W force {job}")
    assert pbs.end(job) == ("F", 91, 3, 265)
    lines = (pbs.cwd / "out").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 3
    assert "old" not in lines


def test_qalter_and_qhold(pbs: Session) -> None:
    pbs.script("sleep 60", "long.sh")
    job = pbs.submit("-h", "-l", "walltime=50", "long.sh")
    assert pbs.sh(f"qalter -N foo -l walltime=100,ncpus=3 {job}") == ""
    assert pbs.record(job)["Resource_List"] == {"ncpus": 3, "nodect": 1, "place": "pack", "select": "1:ncpus=3",
                                                "walltime": "00:01:40"}  # fmt: skip
    assert pbs.sh(f"qalter -W max_run_subjobs=3 {job}") == (
        f"qalter: Attribute has to be set on an array job {job}\n[exit 127]\n"
    )
    assert pbs.sh(f"qrls {job}") == ""
    pbs.running(job)
    assert pbs.sh(f"qalter -l walltime=1:00:00 {job}") == f"qalter: Unauthorized Request  {job}\n[exit 159]\n"
    assert pbs.sh(f"qhold {job}") == ""
    record = pbs.record(job)
    assert (record["job_state"], record["Hold_Types"]) == ("R", "u")
    array = pbs.submit("-h", "-J", "0-3%2", "s.sh")
    assert pbs.sh(f"qalter -W max_run_subjobs=3 '{array}'") == ""
    assert pbs.record(array)["max_run_subjobs"] == 3


# -- arrays


def _states(pbs: Session, array: str, *, history: bool = True) -> dict[str, tuple[Any, ...]]:
    jobs = json.loads(pbs.sh(f"qstat {'-x ' * history}-t -f -F json '{array}'"))["Jobs"]
    names = ("job_state", "substate", "run_count", "Exit_status")
    return {re.sub(r"^\d+|\..*", "", name): tuple(job.get(key) for key in names) for name, job in jobs.items()}


def _array(pbs: Session, *, history: bool = True, on_term: str = "-") -> str:
    pbs.script(f"trap '{on_term}' TERM\n"
               "echo >$PBS_O_WORKDIR/up$PBS_ARRAY_INDEX; [ $((PBS_ARRAY_INDEX % 2)) = 0 ] && exit $PBS_ARRAY_INDEX\n"
               "while [ ! -e $PBS_O_WORKDIR/go ]; do sleep 0.1; done; exit $PBS_ARRAY_INDEX")  # fmt: skip
    array = pbs.submit("-J", "0-3", "-N", "arr", "job.sh")

    def half_over() -> bool:
        states = _states(pbs, array, history=history)
        return all(states[f"[{index}]"][0] == "X" for index in (0, 2)) and all(
            states[f"[{index}]"][1] == 42 for index in (1, 3)
        )

    pbs.until(half_over)
    return array


def test_an_array_from_beginning_to_end(pbs: Session) -> None:
    array = _array(pbs)
    assert _states(pbs, array) == {
        "[]": ("B", 70, None, 1), "[0]": ("X", 92, 1, 0), "[1]": ("R", 42, 1, None), "[2]": ("X", 93, 1, 2),
        "[3]": ("R", 42, 1, None),
    }  # fmt: skip
    record = pbs.record(array)
    assert record["array_state_count"] == "Queued:0 Running:2 Exiting:0 Expired:2"
    assert record["array_indices_remaining"] == "-"
    assert re.fullmatch(r"Job Array Began at \w{3} \w{3} \d\d at \d\d:\d\d", record["comment"])
    (pbs.cwd / "go").touch()
    pbs.ended(array)
    assert _states(pbs, array) == {
        "[]": ("F", 93, None, 1), "[0]": ("F", 92, 1, 0), "[1]": ("F", 93, 1, 1), "[2]": ("F", 93, 1, 2),
        "[3]": ("F", 93, 1, 3),
    }  # fmt: skip
    assert pbs.record(array)["array_state_count"] == "Queued:0 Running:0 Exiting:0 Expired:0"
    assert pbs.sh(f"qstat '{array}'").endswith("[exit 35]\n")


def test_one_element_deleted(pbs: Session) -> None:
    array = _array(pbs)
    assert pbs.sh(f"qdel '{array.replace('[]', '[1]')}'") == ""
    pbs.until(lambda: _states(pbs, array)["[1]"][0] == "X")
    assert _states(pbs, array)["[3]"] == ("R", 42, 1, None)
    (pbs.cwd / "go").touch()
    pbs.ended(array)
    assert _states(pbs, array) == {
        "[]": ("F", 91, None, 1), "[0]": ("F", 92, 1, 0), "[1]": ("F", 91, 1, 271), "[2]": ("F", 93, 1, 2),
        "[3]": ("F", 93, 1, 3),
    }  # fmt: skip


def test_an_array_deleted_loses_the_records_of_what_had_ended(pbs: Session) -> None:
    # The elements end when the test has seen them being deleted, however long that takes.
    pbs.site.set(kill_delay=1000)
    array = _array(pbs, on_term="until [ -e $PBS_O_WORKDIR/seen ]; do sleep 0.1; done; trap - TERM; kill -TERM $$")
    assert pbs.sh(f"qdel '{array}'") == ""
    states = _states(pbs, array)
    assert states["[0]"] == states["[2]"] == ("X", 70, None, 1)
    shadow = pbs.record(array.replace("[]", "[0]"))
    assert shadow["comment"] == "Subjob finished"
    assert not {"exec_host", "stime", "session_id", "array_id"} & set(shadow)
    (pbs.cwd / "seen").touch()
    pbs.ended(array)
    assert _states(pbs, array) == {
        "[]": ("F", 91, None, 1), "[0]": ("F", 91, None, 1), "[1]": ("F", 91, 1, 271), "[2]": ("F", 91, None, 1),
        "[3]": ("F", 91, 1, 271),
    }  # fmt: skip
    assert pbs.record(array)["array_state_count"] == "Queued:0 Running:0 Exiting:0 Expired:2"


def test_queued_elements_deleted_have_the_status_of_their_array(pbs: Session) -> None:
    array = pbs.submit("-h", "-J", "0-3", "s.sh")
    assert pbs.sh(f"qdel '{array.replace('[]', '[1]')}' '{array.replace('[]', '[2-3]')}'") == ""
    assert _states(pbs, array) == {
        "[]": ("H", 20, None, None), "[0]": ("Q", 20, None, None), "[1]": ("X", 20, None, None),
        "[2]": ("X", 20, None, None), "[3]": ("X", 20, None, None),
    }  # fmt: skip
    record = pbs.record(array)
    assert (record["array_state_count"], record["array_indices_remaining"]) == (
        "Queued:1 Running:0 Exiting:0 Expired:3", 0,
    )  # fmt: skip
    pbs.sh(f"qrls '{array}'")
    pbs.ended(array)
    assert _states(pbs, array)["[]"] == ("F", 92, None, 0)
    assert _states(pbs, array)["[0]"] == ("F", 92, 1, 0)
    assert _states(pbs, array)["[1]"] == ("F", 92, None, 0)


def test_no_more_elements_run_than_the_limit(pbs: Session) -> None:
    pbs.script("sleep 60", "long.sh")
    array = pbs.submit("-J", "0-4%2", "long.sh")
    pbs.until(lambda: _states(pbs, array)["[1]"][1] == 42)
    time.sleep(0.3)
    record = pbs.record(array)
    assert (record["array_state_count"], record["array_indices_remaining"]) == (
        "Queued:3 Running:2 Exiting:0 Expired:0", "2-4",
    )  # fmt: skip


def test_signals_to_arrays(pbs: Session) -> None:
    words = _handler(pbs, "log")
    array = pbs.submit("-J", "0-1", "--", *words)
    pbs.until(lambda: (pbs.cwd / "log").exists() and (pbs.cwd / "log").read_text().count("start") == 2)
    pbs.sh(f"qsig -s SIGUSR1 '{array}'; qsig -s SIGUSR2 '{array.replace('[]', '[1]')}'")
    pbs.until(lambda: sorted((pbs.cwd / "log").read_text().split())[:3] == ["SIGUSR1", "SIGUSR1", "SIGUSR2"])


# -- dependencies


def test_dependencies(pbs: Session) -> None:
    fails, works = pbs.script("sleep 0.3; exit 3", "fails.sh"), pbs.script("sleep 0.3", "works.sh")
    for script, kind, end in (
        (fails, "afterok", ("F", 92, None, None)), (fails, "afternotok", ("F", 92, 1, 0)),
        (fails, "afterany", ("F", 92, 1, 0)), (works, "afterok", ("F", 92, 1, 0)),
        (works, "afternotok", ("F", 92, None, None)), (works, "after", ("F", 92, 1, 0)),
    ):  # fmt: skip
        first = pbs.submit("-h", script)
        second = pbs.submit("-W", f"depend={kind}:{first}", "s.sh")
        record = pbs.record(second)
        assert (record["job_state"], record["substate"], record["Hold_Types"]) == ("H", 22, "s")
        assert record["depend"] == f"{kind}:{first}@pbs-srv"
        pbs.sh(f"qrls {first}")
        assert pbs.end(second) == end, kind
        assert ("depend" in pbs.record(second)) == (end[2] is None)
        assert "comment" not in pbs.record(second) or end[2]
        # What has ended is judged at once.
        assert pbs.end(pbs.submit("-W", f"depend={kind}:{first}", "s.sh")) == end


def test_an_array_whose_dependency_is_not_met(pbs: Session) -> None:
    first = pbs.submit(pbs.script("exit 1"))
    array = pbs.submit("-J", "0-1", "-W", f"depend=afterok:{first}", "s.sh")
    assert pbs.end(array) == ("F", 92, None, None)
    assert [state for state, *_ in _states(pbs, array).values()] == ["F", "F", "F"]


def test_depending_on_nothing_is_deletion(pbs: Session) -> None:
    assert pbs.end(pbs.submit("-W", "depend=afterok:99999", "s.sh")) == ("F", 92, None, None)
    pbs.site.set(history=False)
    assert "Unknown Job Id" in pbs.sh(f"qstat {pbs.submit('-W', 'depend=afterok:99999', 's.sh')}")


def test_what_depends_on_a_job_that_was_deleted_before_it_ran_is_held_for_good(pbs: Session) -> None:
    first = pbs.submit("-h", "s.sh")
    second = pbs.submit("-W", f"depend=afterany:{first}", "s.sh")
    pbs.sh(f"qdel {first}")
    time.sleep(0.3)
    assert pbs.state(second) == "H"


# -- without history, without a server, and other states of a site


def test_without_history(pbs: Session) -> None:
    pbs.site.set(history=False, next_number=1678)
    job = pbs.submit("-N", "ok.sh", "s.sh")
    array = _array(pbs, history=False)
    pbs.until(lambda: "Unknown" in pbs.sh(f"qstat {job}"))
    element = array.replace("[]", "[0]")
    assert array == "1679[].pbs-srv"
    pbs.holds(f"""\
$ qstat {job}
qstat: Unknown Job Id 1678.pbs-srv
[exit 153]
$ qstat -x {job}
qstat: PBS is not configured to maintain job history 1678.pbs-srv
$ qstat '{element}'
{HEAD}1679[0].pbs-srv   arr              user                     0 X workq           
$ qstat '{array}'
{HEAD}1679[].pbs-srv    arr              user                     0 B workq           
$ qstat -f '{element}' | grep -E 'job_state|Exit_status|comment|substate'
    job_state = X
    substate = 70
    comment = Subjob finished
    Exit_status = 1
""")
    printed = pbs.sh(f"qstat -x -f -F json {job}")
    assert printed.startswith("qstat: PBS is not configured to maintain job history 1678.pbs-srv\n{\n")
    assert "Jobs" not in printed
    (pbs.cwd / "go").touch()
    pbs.until(lambda: pbs.sh(f"qstat '{array}'") == "qstat: Unknown Job Id 1679[].pbs-srv\n[exit 153]\n")
    assert pbs.sh(f"qstat '{element}'") == "qstat: Unknown Job Id 1679[0].pbs-srv\n[exit 153]\n"


def test_server_down(pbs: Session) -> None:
    pbs.site.down()
    pbs.holds("""\
$ qstat
Connection refused
qstat: cannot connect to server pbs-srv (errno=15010)
[exit 255]
$ qsub s.sh
Connection refused
qsub: cannot connect to server pbs-srv (errno=15010)
[exit 162]
$ qdel 203
Connection refused
Couldn't connect to cluster: pbs-srv
[exit 162]
$ PBS_DEFAULT=nosuchserver qstat
Unknown Host.
qstat: cannot connect to server nosuchserver (errno=15008)
[exit 255]
""")
    assert (
        re.sub(r":\d{9,}", ":NUMBER", pbs.sh("qstat -x -f -F json 203"))
        == """\
Connection refused
qstat: cannot connect to server pbs-srv (errno=15010)
{
    "timestamp":NUMBER,
    "pbs_version":"23.06.06",
    "pbs_server":"pbs-srv"
}[exit 255]
"""
    )
    pbs.site.up()
    assert pbs.sh("qstat") == ""


def test_a_job_that_is_being_started(pbs: Session) -> None:
    pbs.site.set(start_delay=30)
    job = pbs.submit("--", "/bin/sleep", "60")
    pbs.until(lambda: pbs.state(job) == "R")
    record = pbs.record(job)
    assert record["substate"] == 41
    assert not {"session_id", "jobdir", "resources_used"} & set(record)


def test_blocking_submission(pbs: Session) -> None:
    pbs.site.set(next_number=1684)
    pbs.holds("""\
$ qsub -W block=true -o /dev/null -j oe -- /bin/sh -c 'exit 7'
1684.pbs-srv
[exit 7]
$ qsub -W block=true -o /dev/null -j oe -- /bin/sh -c 'kill -9 $$'
1685.pbs-srv
[exit 9]
$ qsub -W block=true -o /dev/null -j oe -J 0-2 -- /bin/sh -c 'exit 3'
1686[].pbs-srv
[exit 1]
""")
    # It returns before the output is delivered.
    pbs.site.set(delivery_delay=0.5)
    pbs.sh("qsub -W block=true -o out -- /bin/echo")
    assert not (pbs.cwd / "out").exists()
    pbs.exists("out")


def test_waiting_until_a_time(pbs: Session) -> None:
    later = time.localtime(time.time() + 7200)
    job = pbs.submit("-a", time.strftime("%Y%m%d%H%M", later), "s.sh")
    record = pbs.record(job)
    assert (record["job_state"], record["substate"]) == ("W", 30)
    assert record["Execution_Time"] == time.strftime("%a %b %e %H:%M:00 %Y", later)


def test_qdel_x_takes_the_history_as_well(pbs: Session) -> None:
    job = pbs.submit("s.sh")
    pbs.ended(job)
    pbs.holds(f"""\
$ qdel {job}
qdel: Job has finished {job}
[exit 35]
$ qdel -x {job}
$ qstat -x {job}
qstat: Unknown Job Id {job}
[exit 153]
$ qdel 99991 99992
qdel: Unknown Job Id 99991
[exit 153]
$ qdel foo
qdel: illegally formed job identifier: foo
[exit 1]
""")


COMMENTS = [
    ("select=1:ncpus=20", "Not Running: Insufficient amount of resource: ncpus (R: 20 A: 9 T: 32)"),
    ("select=1:ngpus=5", "Not Running: Insufficient amount of resource: ngpus (R: 5 A: 0 T: 8)"),
    ("select=2:ncpus=16,place=pack", "Not Running: Insufficient amount of resource: ncpus (R: 32 A: 9 T: 32)"),
    ("select=3:ncpus=1,place=scatter", "Can Never Run: Not enough total nodes available"),
    ("select=1:host=nosuch", f"Can Never Run: Insufficient amount of resource: host (nosuch != {HOST},localhost)"),
    ("select=2:ncpus=16,place=scatter", "Not Running: Not enough free nodes available"),
]


def test_comments_of_jobs_that_do_not_run(pbs: Session) -> None:
    pbs.script("sleep 60", "long.sh")
    for chunks in ("2:ncpus=1:ngpus=4", "1:ncpus=15", "2:ncpus=2+2:ncpus=1"):
        job = pbs.submit("-l", f"select={chunks}", "long.sh")
        pbs.running(job)
    for request, comment in COMMENTS:
        job = pbs.submit("-l", request, "s.sh")
        pbs.until(lambda job=job: "comment" in pbs.record(job))  # type: ignore[misc]
        assert pbs.record(job)["comment"] == comment


def test_slots_of_hosts(pbs: Session) -> None:
    pbs.script("sleep 60", "long.sh")
    hosts = []
    for chunks in ("2:ngpus=3", "2:ncpus=2:mpiprocs=2", "1:ncpus=2+1:ncpus=0", "1:ncpus=15"):
        job = pbs.submit("-l", f"select={chunks}", "long.sh")
        pbs.running(job)
        hosts.append(pbs.record(job)["exec_host"].replace(HOST, "n1").replace("localhost", "n2"))
    assert hosts == ["n1/0+n2/0", "n1/1*2+n1/2*2", "n1/3*2+n1/4*0", "n2/1*15"]


# -- pbsdsh


def test_pbsdsh(pbs: Session) -> None:
    pbs.script("""\
pbsdsh -n 1 -- /bin/sh -c 'exit 7'; echo rc=$?
echo captured: "$(pbsdsh -n 0 -- /bin/echo by-mom)"
pbsdsh -n 1 -- /bin/sh -c 'kill -9 $$'
pbsdsh -n 99 -- /bin/sh -c 'echo node $PBS_NODENUM'
pbsdsh -- /no/such/program
pbsdsh -c 1 -v -- /bin/true
pbsdsh -s -- /bin/sh -c 'printf "[%s]" "$@"; echo' x 'a  b' '' '$HOME'
pbsdsh -u; echo rc=$?""")
    job = pbs.submit("-l", "select=2:ncpus=1", "-l", "place=scatter", "-j", "oe", "-o", "out", "job.sh")
    pbs.ended(job)
    assert (
        (pbs.cwd / "out").read_text().replace("[a  b][][$HOME]", "[args]").partition("Usage")[0]
        == """\
pbsdsh: task 0x00000000 exit status 7
rc=0
by-mom
captured: 
pbsdsh: task 0x00000000 exit status 265
node 1
pbsdsh: task 0x00000000 exit status 254
pbsdsh: task 0x00000001 exit status 254
pbsdsh: spawned task 0x00000000 on logical node 0 event 2
pbsdsh: waiting on 1 spawned and 0 obits
pbsdsh: waiting on 0 spawned and 1 obits
pbsdsh: task 0x00000000 exit status 0
[args]
[args]
pbsdsh: invalid option -- 'u'
"""
    )
    assert (pbs.cwd / "out").read_text().endswith("rc=1\n")


def test_a_job_that_is_being_deleted_starts_nothing_more(pbs: Session) -> None:
    pbs.script(
        'trap told=told TERM\ntouch $PBS_O_WORKDIR/begun\nuntil [ "$told" ]; do sleep 0.1; done\n'
        "setsid pbsdsh -n 1 -- /bin/echo by-task\necho pbsdsh has ended"
    )
    job = pbs.submit("-l", "select=2:ncpus=1", "-l", "place=scatter", "-k", "oed", "-j", "oe", "-o", "out", "job.sh")
    pbs.exists("begun")
    pbs.sh(f"qdel {job}")
    pbs.ended(job)
    printed = (pbs.cwd / "out").read_text()
    assert "by-task" not in printed
    assert "pbsdsh has ended" not in printed


def test_a_terminated_pbsdsh_leaves_at_once_and_its_task_goes_on(pbs: Session) -> None:
    pbs.script(
        f"pbsdsh -n 1 -- {shlex.join(_handler(pbs, 'log'))} &\n"
        "while ! grep -qs start $PBS_O_WORKDIR/log; do sleep 0.1; done\nkill $!; wait $!; echo rc=$?; sleep 0.5\n"
        "echo >$PBS_O_WORKDIR/left; sleep 60"
    )
    job = pbs.submit("-l", "select=2:ncpus=1", "-l", "place=scatter", "-k", "oed", "-j", "oe", "-o", "out", "job.sh")
    pbs.exists("left")
    assert (pbs.cwd / "out").read_text().startswith("pbsdsh: killing task 0x40000001 signal 15\nrc=1\n")
    assert (pbs.cwd / "log").read_text().split() == ["start", "SIGTERM"]
    tasks = _processes(f"{pbs.cwd}/log")
    assert len(tasks) == 1
    pbs.sh(f"qdel -W force {job}")
    pbs.ended(job)
    assert not _processes(f"{pbs.cwd}/log")


def _processes(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if word in words:
                found.append(int(entry.name))
    return found


# -- the fixture itself


def test_a_late_answer_to_a_qsub_that_was_accepted(pbs: Session) -> None:
    pbs.site.freeze_scheduler()
    pbs.site.hang(30)
    assert pbs.sh("timeout 0.5 qsub -N late s.sh") == "[exit 124]\n"
    assert len(pbs.sh("qselect -N late").split()) == 1


def test_calls_are_counted(pbs: Session) -> None:
    pbs.site.reset()
    pbs.sh("qstat; qstat -u me; qselect")
    assert pbs.site.calls("qstat") == [["qstat"], ["qstat", "-u", "me"]]
    assert len(pbs.site.calls()) == 3


def test_a_hundred_submissions_take_seconds(pbs: Session) -> None:
    started = time.monotonic()
    pbs.sh("for i in $(seq 25); do qsub -h s.sh; done")
    assert time.monotonic() - started < 10  # 0.7 s on an idle machine
    assert len(pbs.sh("qselect").split()) == 25


def test_a_killed_test_run_takes_its_site_along(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.pbs.pbs_cluster import PbsCluster
with PbsCluster(Path({str(tmp_path / "site")!r})) as site:
    site.run("qsub", "--", "/bin/sleep", "65")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    deadline = time.monotonic() + 30
    while (tmp_path / "site").exists() or _processes(str(tmp_path / "site")):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with PbsCluster(tmp_path / ("long" * 40)) as site:
        session = Session(site, tmp_path)
        session.script("setsid sleep 63 & echo $! >$PBS_O_WORKDIR/hidden; trap '' TERM; sleep 64")
        session.submit("job.sh")
        session.until(lambda: (tmp_path / "hidden").exists() and (tmp_path / "hidden").read_text())
        hidden = int((tmp_path / "hidden").read_text())
        assert _alive(hidden)
        assert len(str(site.folder / "socket")) < 108
    session.until(lambda: not _alive(hidden))
    assert not site.folder.exists()
    assert not _processes(str(site.folder))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
