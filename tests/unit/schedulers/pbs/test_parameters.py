"""What a function may ask PBS for, and what its script does with it: the scripts are run in bash to see."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.files.json_types import as_json
from launcher.paths import own_module
from launcher.schedulers.functions import folder_of
from launcher.schedulers.pbs.executor import Parameters
from launcher.schedulers.pbs.task_starters import exports
from tests.unit.schedulers.pbs.test_directives import read

GIB = 1024**3


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, {}),
        ({"name": "other", "queue": "gpu", "project": "p", "account": "a"},
         {"name": "other", "queue": "gpu", "project": "p", "account": "a"}),
        ({"walltime": 60}, {"walltime": 3600}),
        ({"walltime": "90"}, {"walltime": 5400}),
        ({"walltime": "24:00:00"}, {"walltime": 86400}),
        ({"mem": "16G"}, {"mem": 16 * GIB}),
        ({"mem": "1536M"}, {"mem": GIB * 3 // 2}),
        ({"nodes": 2, "tasks_per_node": 4, "cpus_per_task": 8, "ngpus": 1},
         {"nodes": 2, "tasks_per_node": 4, "cpus_per_task": 8, "ngpus": 1}),
        ({"select": "2:ncpus=4+1:ncpus=1"}, {"select": "2:ncpus=4+1:ncpus=1", "nodes": 3}),
        ({"select": "2:ncpus=4", "tasks_per_node": 4, "nodes": None, "mem": None},
         {"select": "2:ncpus=4", "tasks_per_node": 4, "nodes": 2}),
        ({"queue": None, "mem": None, "walltime": None, "select": None, "nodes": None}, {}),
        ({"place": "excl", "filesystems": "home:eagle", "chunk": {"ngpus": None}, "resources": {"a": 1}},
         {"place": "excl", "filesystems": "home:eagle", "chunk": {"ngpus": None}, "resources": {"a": 1}}),
        ({"mpiexec": ["mpiexec", "-n", "{tasks}"]}, {"mpiexec": ["mpiexec", "-n", "{tasks}"]}),
    ],
)  # fmt: skip
def test_parameters_are_read_in_the_users_words(given: dict[str, Any], fields: dict[str, Any]) -> None:
    assert Parameters.of(given) == Parameters(**{**vars(Parameters()), "walltime": 300, **fields})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"queu": "gpu"}, "there is no parameter 'queu'. Did you mean queue? Known: account, array_parallelism, "),
        ({"ngpu": 1}, "there is no parameter 'ngpu'. Did you mean ngpus?"),
        ({"slurm_partition": "x"}, "there is no parameter 'slurm_partition'. Known: "),
        ({"queu": None}, "there is no parameter 'queu'"),
        ({"walltime": "soon"}, "'soon' is not a time"),
        ({"walltime": 0}, "'0' is zero"),
        ({"walltime": -5}, "'-5' is not a time"),
        ({"mem": "lots"}, "'lots' is not a size"),
        ({"select": "ncpus=4,mem=1gb+"}, "is not a select statement such as"),
        ({"select": "0:ncpus=1"}, "nodes=0: it must be a whole number of 1 or more"),
        ({"nodes": 0}, "nodes=0: it must be a whole number of 1 or more"),
        ({"nodes": 1.5}, "nodes=1.5: it must be a whole number of 1 or more"),
        ({"tasks_per_node": "4"}, "tasks_per_node='4': it must be a whole number of 1 or more"),
        ({"cpus_per_task": -1}, "cpus_per_task=-1: it must be a whole number of 1 or more"),
        ({"ngpus": -1}, "ngpus=-1: it must be a whole number of 0 or more"),
        ({"name": "a b"}, "name='a b' cannot be a PBS job's name"),
        ({"chunk": {"a b": 1}}, "cannot be a resource of a chunk"),
        ({"chunk": {"host": "a:b"}}, "cannot be a resource of a chunk"),
        ({"directives": {"J": "0-9"}}, "the qsub option -J cannot be among the directives: the array is"),
        ({"directives": {"v": "A=1,B=2"}}, "-v A=1,B=2: write NAME=VALUE, without blanks"),
        ({"queue": "a\n#PBS -I"}, "refusing to write the control character '\\n'"),
        ({"directives": {"M": ["a", "b\r"]}}, "refusing to write the control character '\\r'"),
        ({"resources": {"a": "\x1b"}}, "refusing to write the control character '\\x1b'"),
        ({"mpiexec": ["mpiexec", "-n", "{ranks}"]}, "mpiexec: 'ranks' cannot be filled in"),
        *(({"select": "2:ncpus=4", name: value}, f"{name} and select exclude each other: say it in select")
          for name, value in {"nodes": 2, "ngpus": 1, "mem": "1G", "chunk": {"a": 1}, "cpus_per_task": 4}.items()),
        ({"name": 5}, "name=5: it must be a text"),
        ({"rerunnable": "no"}, "rerunnable='no': it must be True or False"),
        ({"select": 2}, "select=2: it must be a text"),
        ({"directives": {1: "x"}}, "directives={1: 'x'}: it must be a dictionary with texts as keys"),
        *(({name: value}, f"{name}={value!r}: it must be a dictionary with texts as keys")
          for name in ("chunk", "resources", "directives") for value in ("a=1", ["a"], 5)),
        *(({name: value}, f"{name}={value}: it must be a whole number")
          for name in ("nodes", "tasks_per_node", "cpus_per_task", "ngpus") for value in (True, False)),
        *(({name: "module load x"}, f"{name}='module load x': it must be a list")
          for name in ("setup", "teardown", "mpiexec")),
        ({"directives": {"mm": "a"}}, "directives: 'mm' is not the letter of a qsub option"),
        ({"directives": {"m": ""}}, "directives: 'm' has an empty text: `true` is for an option without a value"),
        ({"resources": {"a": "x y"}}, "a='x y' cannot be a resource of a job"),
        ({"filesystems": "home,eagle"}, "filesystems='home,eagle' cannot be a resource of a job"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_where_it_was_set(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refusal:
        Parameters.of(given)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("folder", "whole"),
    [
        ("/a/logs", "/a/logs"),
        ("/a/%j/b", "/a"),
        ("/a/b_%j", "/a"),
        ("/a/%t", "/a"),
        ("/a/%A/%a", "/a"),
        ("/a/50%", "/a/50%"),
    ],
)
def test_some_of_a_folder_is_the_same_for_all_jobs(folder: str, whole: str) -> None:
    assert folder_of(Path(folder)) == Path(whole)


# -- scripts

STAND_IN = """#!/bin/bash
printf '%s\\0' "$@" >"$SANDBOX/arguments"
env -0 >"$SANDBOX/environment"
pwd >"$SANDBOX/cwd"
umask >"$SANDBOX/umask"
echo task >>"$SANDBOX/order"
exit "${STAND_IN_EXIT:-0}"
"""


@dataclass
class Sandbox:
    """A place where scripts are run, with a stand-in for Python that keeps what it was given.

    Attributes:
        root: its own folder.
        folder: submitit's.
    """

    root: Path
    folder: Path

    def __post_init__(self) -> None:
        self.whole = folder_of(self.folder)
        self.whole.mkdir(parents=True)
        self.work = self.root / "work"
        self.work.mkdir()
        self.python = self.root / "py thon"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o700)
        self.environment_file = self.whole / "environment.sh"
        self.environment_file.write_text(exports({"FROM_SUBMITTER": "it's $(touch pwned)", "PATH": os.environ["PATH"]}))

    def script(self, indices: range = range(1), umask: int = 0o022, **given: Any) -> str:
        before = Path.cwd()
        os.chdir(self.work)
        try:
            text, job = Parameters.of(given).script(
                executor="pbs",
                folder=self.folder,
                payload=self.whole / "payload",
                environment=self.environment_file,
                python=shlex.quote(str(self.python)),
                token="token",
                indices=indices,
                umask=umask,
            )
        finally:
            os.chdir(before)
        (self.whole / "payload.json").write_text(json.dumps(as_json(job)))
        return text

    def run(self, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
        path = self.root / "script.sh"
        path.write_text(script)
        return subprocess.run(
            ["bash", str(path)],
            env={"PATH": os.environ["PATH"], "SANDBOX": str(self.root), "PBS_JOBID": "136.pbs-srv", "LC_ALL": "C.UTF-8",
                 **environ},
            cwd="/", capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip

    def _kept(self, name: str) -> str:
        return (self.root / name).read_bytes().decode()

    @property
    def started(self) -> bool:
        return (self.root / "arguments").exists()

    @property
    def arguments(self) -> list[str]:
        return [argument for argument in self._kept("arguments").split("\0") if argument]

    @cached_property
    def environment(self) -> dict[str, str]:
        pairs = (pair.partition("=") for pair in self._kept("environment").split("\0"))
        return {name: value for name, _, value in pairs}

    @property
    def cwd(self) -> str:
        return self._kept("cwd").removesuffix("\n")

    @property
    def pwned(self) -> bool:
        return bool(list(self.root.rglob("pwned"))) or Path("/pwned").exists()


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path, tmp_path / "logs" / "%j")


KINDS: dict[str, tuple[range, dict[str, Any]]] = {
    "plain": (range(1), {}),
    "one element": (range(5, 6), {}),
    "array": (range(4), {}),
    "several tasks": (range(1), {"nodes": 2, "tasks_per_node": 3}),
    "array of several tasks": (range(3), {"tasks_per_node": 2}),
    "mpiexec": (range(1), {"nodes": 2, "mpiexec": ["mpi exec", "-n", "{tasks}", "--ppn={tasks_per_node}"]}),
    "everything": (range(9), {
        "queue": "gpu", "project": "p", "account": "it's", "select": "2:ncpus=4", "place": "excl", "walltime": "1h",
        "tasks_per_node": 2, "resources": {"a": "x:y"}, "filesystems": "home", "array_parallelism": 3,
        "directives": {"m": "abe", "W": ["sandbox=PRIVATE"], "h": True}, "setup": ["module load x", "a='b\nc'"],
        "teardown": ["true"], "stderr_to_stdout": True, "rerunnable": False,
    }),
}  # fmt: skip
NAMES = [
    "logs",
    "a  b",
    'it\'s "so"',
    "$(touch pwned)`touch pwned`; touch pwned",
    "back\\slash\\",
    "a #1",
    "-n *?~",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_every_script_is_bash(tmp_path: Path, kind: str, name: str) -> None:
    indices, given = KINDS[kind]
    sandbox = Sandbox(tmp_path, tmp_path / name)
    script = sandbox.script(indices, **given)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), script
    assert script.startswith("#!/bin/bash\n#PBS -N submitit\n")


@pytest.mark.parametrize(
    ("kind", "array", "select", "place"),
    [
        ("plain", None, "1:ncpus=1:mpiprocs=1:ompthreads=1", None),
        ("one element", None, "1:ncpus=1:mpiprocs=1:ompthreads=1", None),
        ("array", "0-3", "1:ncpus=1:mpiprocs=1:ompthreads=1", None),
        ("several tasks", None, "2:ncpus=3:mpiprocs=3:ompthreads=1", "scatter"),
        ("array of several tasks", "0-2", "1:ncpus=2:mpiprocs=2:ompthreads=1", None),
        ("mpiexec", None, "2:ncpus=1:mpiprocs=1:ompthreads=1", "scatter"),
        ("everything", "0-8%3", "2:ncpus=4", "excl"),
    ],
)
def test_a_script_asks_for_what_its_parameters_say(
    sandbox: Sandbox, kind: str, array: str | None, select: str, place: str | None
) -> None:
    indices, given = KINDS[kind]
    options = read(sandbox.script(indices, **given))
    asked = dict(option for option in options if option[0] not in "lW")
    resources = dict(value.split("=", 1) for letter, value in options if letter == "l")
    assert asked.get("J") == array
    assert (resources["select"], resources.get("place")) == (select, place)
    assert resources["walltime"] == ("01:00:00" if kind == "everything" else "00:05:00")  # submitit's default
    assert (asked["o"], asked["v"], asked["S"]) == (f"{sandbox.whole}/", "LAUNCHER_TOKEN=token", "/bin/bash")
    if kind == "everything":
        assert (asked["q"], asked["P"], asked["A"], asked["m"]) == ("gpu", "p", "it's", "abe")
        assert (resources["filesystems"], resources["a"]) == ("home", "x:y")
        assert [value for letter, value in options if letter == "W"] == ["umask=077", "sandbox=PRIVATE"]
        assert ("h", "") in options


@pytest.mark.parametrize(
    ("given", "select"),
    [
        ({"cpus_per_task": 2, "tasks_per_node": 3, "ngpus": 4, "mem": "1G"},
         "1:ncpus=6:mpiprocs=3:ompthreads=2:ngpus=4:mem=1048576kb"),
        ({"chunk": {"ompthreads": None, "gpu_type": "a100"}}, "1:ncpus=1:mpiprocs=1:gpu_type=a100"),
        ({"ngpus": 2, "chunk": {"ngpus": None, "gpus": 2}}, "1:ncpus=1:mpiprocs=1:ompthreads=1:gpus=2"),
        ({"select": "3:host=a+b=1", "tasks_per_node": 2}, "3:host=a+b=1"),
    ],
)  # fmt: skip
def test_a_whole_select_statement_counts_more_than_the_numbers(
    sandbox: Sandbox, given: dict[str, Any], select: str
) -> None:
    assert ("l", f"select={select}") in read(sandbox.script(**given))


@pytest.mark.parametrize(
    ("indices", "parallel", "array"),
    [
        (range(10), 256, "0-9"),
        (range(10), 10, "0-9"),
        (range(10), 9, "0-9%9"),
        (range(10), 1, "0-9%1"),
        (range(10_000, 10_005), 2, "10000-10004%2"),
        (range(10, 11), 2, None),
    ],
)
def test_an_array_runs_no_more_elements_at_once_than_it_may(
    sandbox: Sandbox, indices: range, parallel: int, array: str | None
) -> None:
    assert dict(read(sandbox.script(indices, array_parallelism=parallel))).get("J") == array


@pytest.mark.parametrize(("indices", "rerunnable"), [(range(1), "n"), (range(2), "y")])
def test_pbs_takes_no_array_that_may_not_start_again(sandbox: Sandbox, indices: range, rerunnable: str) -> None:
    assert dict(read(sandbox.script(indices, rerunnable=False)))["r"] == rerunnable
    assert dict(read(sandbox.script(indices)))["r"] == "y"


@pytest.mark.parametrize("name", NAMES)
def test_folders_may_have_any_name(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    root.mkdir()
    sandbox = Sandbox(root, root / name / "%j")
    done = sandbox.run(sandbox.script(), PBS_O_WORKDIR="/elsewhere")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sandbox.arguments == ["-u", *own_module("launcher.schedulers.functions.task"), str(sandbox.folder)]
    assert sandbox.cwd == str(sandbox.work)
    assert sandbox.environment["LAUNCHER_PAYLOAD"] == f"{sandbox.whole}/payload_0.pkl"
    assert sandbox.environment["FROM_SUBMITTER"] == "it's $(touch pwned)"
    assert not sandbox.pwned


def test_one_task_is_told_its_place(sandbox: Sandbox) -> None:
    begun = int(time.time())
    assert sandbox.run(sandbox.script(walltime=60, signal_delay_s=120)).returncode == 0
    told = sandbox.environment
    assert told["LAUNCHER_JOB_ID"] == "136.pbs-srv"
    assert told["SUBMITIT_EXECUTOR"] == "pbs"
    assert (told["LAUNCHER_TASK"], told["LAUNCHER_TASKS"], told["LAUNCHER_NODE"]) == ("0", "1", "0")
    assert told["LAUNCHER_GUARD"].startswith("136.pbs-srv.")
    assert told["LAUNCHER_HOSTS"] == socket.gethostname()
    assert told["LAUNCHER_SCRIPT"] == f"{sandbox.whole}/payload.sh"
    assert begun <= int(told["LAUNCHER_DEADLINE"]) - (3600 - 120) <= int(time.time())


@pytest.mark.parametrize(
    ("walltime", "delay", "seconds"), [("1h", 90, 3510), ("2m", 90, 60), ("1m", 0, 60), ("45s", 90, 23)]
)
def test_a_deadline_is_never_before_the_middle_of_the_wall_time(
    sandbox: Sandbox, walltime: str, delay: int, seconds: int
) -> None:
    sandbox.script(walltime=walltime, signal_delay_s=delay)
    assert json.loads((sandbox.whole / "payload.json").read_text())["seconds"] == seconds


def test_an_element_of_an_array_has_an_id_and_a_payload_of_its_own(sandbox: Sandbox) -> None:
    element = {"PBS_JOBID": "150[5].pbs-srv", "PBS_ARRAY_ID": "150[].pbs-srv", "PBS_ARRAY_INDEX": "5"}
    assert sandbox.run(sandbox.script(range(10)), **element).returncode == 0
    assert sandbox.environment["LAUNCHER_JOB_ID"] == "150.pbs-srv_5"
    assert sandbox.environment["LAUNCHER_PAYLOAD"] == f"{sandbox.whole}/payload_5.pkl"


def test_an_element_that_is_a_job_of_its_own_has_its_payload(sandbox: Sandbox) -> None:
    assert sandbox.run(sandbox.script(range(7, 8))).returncode == 0
    assert sandbox.environment["LAUNCHER_JOB_ID"] == "136.pbs-srv"
    assert sandbox.environment["LAUNCHER_PAYLOAD"] == f"{sandbox.whole}/payload_7.pkl"


@pytest.mark.parametrize("indices", [range(1), range(3)])
def test_a_job_that_goes_on_with_another_keeps_its_id(sandbox: Sandbox, indices: range) -> None:
    first = {"LAUNCHER_FIRST_JOB": "99.pbs-srv_2", "PBS_ARRAY_ID": "150[].pbs-srv", "PBS_ARRAY_INDEX": "2"}
    sandbox.run(sandbox.script(indices), **first)
    assert sandbox.environment["LAUNCHER_JOB_ID"] == "99.pbs-srv_2"


def test_several_tasks_are_started_by_pbsdsh(sandbox: Sandbox) -> None:
    done = sandbox.run(sandbox.script(nodes=2, tasks_per_node=3, stderr_to_stdout=True))
    assert (done.returncode, done.stderr) == (0, "")
    words = [str(sandbox.folder), "--merge-output"]
    function = [
        "bash",
        "-c",
        f"'{sandbox.python}' \"$@\"",
        "python",
        "-u",
        *own_module("launcher.schedulers.functions.task"),
        *words,
    ]
    assert sandbox.arguments == [
        *own_module("launcher.schedulers.tasks"), "--go-on", "--pbsdsh", "2", "3", "8", *function,
    ]  # fmt: skip
    files = Path(sandbox.environment["LAUNCHER_TASK_FILES"])
    assert files.parent == sandbox.whole and files.name.startswith(".tasks-")
    assert not {"LAUNCHER_TASK", "LAUNCHER_GUARD"} & sandbox.environment.keys()


def test_mpiexec_gets_its_numbers(sandbox: Sandbox) -> None:
    words = ["mpi exec", "-n", "{tasks}", "--hosts={nodes}", "$(touch pwned)"]
    sandbox.run(sandbox.script(nodes=2, tasks_per_node=2, mpiexec=words))
    (option,) = [word for word in sandbox.arguments if word.startswith("--mpiexec=")]
    assert shlex.split(option.partition("=")[2]) == ["mpi exec", "-n", "4", "--hosts=2", "$(touch pwned)"]
    assert "--pbsdsh" not in sandbox.arguments
    assert not sandbox.pwned


@pytest.mark.parametrize(("nodes", "code"), [(1, 0), (1, 1), (1, 75), (1, 143), (2, 0), (2, 75)])
def test_the_job_ends_as_its_tasks_did_after_the_teardown(sandbox: Sandbox, code: int, nodes: int) -> None:
    script = sandbox.script(
        nodes=nodes,
        setup=['echo setup >>"$SANDBOX/order"', "export FROM_SETUP='a\nb'"],
        teardown=['echo teardown >>"$SANDBOX/order"', "false"],
    )
    assert sandbox.run(script, STAND_IN_EXIT=str(code)).returncode == code
    assert (sandbox.root / "order").read_text().split() == ["setup", "task", "teardown"]
    assert sandbox.environment["FROM_SETUP"] == "a\nb"


def test_only_the_task_itself_has_a_place(sandbox: Sandbox) -> None:
    look = 'echo "${!LAUNCHER_@}" >>"$SANDBOX/names"'
    sandbox.run(sandbox.script(setup=[look], teardown=[look]))
    own = {"LAUNCHER_TASK", "LAUNCHER_TASKS", "LAUNCHER_NODE", "LAUNCHER_HOSTS", "LAUNCHER_GUARD"}
    assert own <= sandbox.environment.keys()
    for names in (sandbox.root / "names").read_text().splitlines():
        assert not own & set(names.split())
        assert "LAUNCHER_JOB_ID" in names.split()


@pytest.mark.parametrize(
    ("setup", "line", "code"),
    [
        (["false"], 1, 1),
        ([":", "(exit 7)", 'touch "$SANDBOX/reached"'], 2, 7),
        (["no-such-command-at-all"], 1, 127),
        (["set -e", "false", 'touch "$SANDBOX/reached"'], 2, 1),
    ],
)
def test_a_set_up_line_that_fails_ends_the_job_for_good(
    sandbox: Sandbox, setup: list[str], line: int, code: int
) -> None:
    done = sandbox.run(sandbox.script(setup=setup))
    assert (done.returncode, sandbox.started) == (93, False)
    assert f"launcher: set-up line {line} failed on {socket.gethostname()} (exit {code})" in done.stderr
    assert not (sandbox.root / "reached").exists()


@pytest.mark.parametrize(("strict", "tasks"), [("set -e", 1), ("set -euo pipefail", 1), ("set -euo pipefail", 2)])
def test_a_strict_shell_does_not_skip_the_teardown(sandbox: Sandbox, strict: str, tasks: int) -> None:
    teardown = ["false", 'echo teardown >>"$SANDBOX/order"']
    done = sandbox.run(sandbox.script(tasks_per_node=tasks, setup=[strict], teardown=teardown), STAND_IN_EXIT="75")
    assert done.returncode == 75
    assert (sandbox.root / "order").read_text().split() == ["task", "teardown"]


@pytest.mark.parametrize(("said", "there"), [("", False), ("=>> PBS: job killed\n", True)])
def test_what_pbs_itself_had_to_say_is_kept_unless_it_is_nothing(sandbox: Sandbox, said: str, there: bool) -> None:
    output = sandbox.whole / "136.pbs-srv.OU"
    output.write_text(said)
    sandbox.run(sandbox.script())
    assert output.exists() == there


def pauses(sandbox: Sandbox, does: str = "") -> str:
    """Returns a PATH with a `sleep` that takes no time, and does this instead."""
    (sandbox.root / "bin").mkdir()
    (sandbox.root / "bin/sleep").write_text(f"#!/bin/bash\n{does}\n")
    (sandbox.root / "bin/sleep").chmod(0o700)
    path = f"{sandbox.root}/bin:{os.environ['PATH']}"
    sandbox.environment_file.write_text(exports({"PATH": path}))
    return path


def test_a_folder_that_a_file_server_shows_late_is_waited_for(sandbox: Sandbox) -> None:
    script = sandbox.script()
    sandbox.work.rmdir()
    pauses(sandbox, 'mkdir "$SANDBOX/work"')
    done = sandbox.run(script)
    assert (done.returncode, sandbox.started) == (0, True), done.stderr


def test_without_the_file_of_the_environment_nothing_is_started(sandbox: Sandbox) -> None:
    path = pauses(sandbox)
    sandbox.environment_file.unlink()
    done = sandbox.run(sandbox.script(), PATH=path)
    assert (done.returncode, sandbox.started) == (93, False)
    assert f"cannot read {sandbox.environment_file}: is it on a file system that all nodes share?" in done.stderr


def test_a_variable_that_cannot_be_set_is_no_reason_to_start_nothing(sandbox: Sandbox) -> None:
    sandbox.environment_file.write_text("export FROM_SUBMITTER=yes\nfalse\n")
    assert sandbox.run(sandbox.script()).returncode == 0
    assert sandbox.environment["FROM_SUBMITTER"] == "yes"


def test_without_the_folder_that_it_came_from_nothing_is_started(sandbox: Sandbox) -> None:
    script = sandbox.script()
    sandbox.work.rmdir()
    pauses(sandbox)
    assert (sandbox.run(script).returncode, sandbox.started) == (93, False)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o007])
def test_a_function_makes_its_files_as_its_submitter_does(sandbox: Sandbox, umask: int) -> None:
    sandbox.run(sandbox.script(umask=umask))
    assert int((sandbox.root / "umask").read_text(), 8) == umask
    assert int(sandbox.environment["LAUNCHER_UMASK"], 8) == umask


def test_a_folder_that_qsub_does_not_take_is_refused(sandbox: Sandbox) -> None:
    sandbox.folder = sandbox.root / "größe"
    with pytest.raises(ConfigError, match="only ASCII"):
        sandbox.script()


@pytest.mark.parametrize("char", ["\n", "\r", "\x1b", "\x7f", "\u2028"])
def test_control_characters_never_reach_a_script(sandbox: Sandbox, char: str) -> None:
    sandbox.folder = sandbox.folder / f"a{char}b"
    with pytest.raises(ValueError, match="refusing to write the control character"):
        sandbox.script()
