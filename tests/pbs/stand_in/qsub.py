"""The command qsub: converts its arguments, script and directives to a submission (OpenPBS 23.06.06, cmds/qsub.c)."""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.pbs.stand_in import errors, resources, variables
from tests.pbs.stand_in.arguments import Options, date_time, directive_words, equals_pairs, getopt, job_id
from tests.pbs.stand_in.jobs import PROJECT, Submission

OPTIONS = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:q:r:R:S:u:v:VW:XzP:"
USAGE = """\
usage: qsub [-a date_time] [-A account_string] [-c interval]
\t[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
\t[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
\t[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
\t[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
\t[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version
"""
NO_TERMINAL = "qsub:\tstandard input and output must be a terminal for\n\tinteractive job submission\n"
LONGEST_NAME = 230
# Options with values that qsub checks before it calls the server (lib/Libecl); those of other options are free text.
VALUES = {
    "j": re.compile(r"oe|eo|n"), "k": re.compile(r"n|[oed]+"), "m": re.compile(r"n|[abej]+"),
    "p": re.compile(r"[+-]?(?:\d{1,3}|10[01]\d|102[0-3])"), "R": re.compile(r"o|e|oe|eo"), "N": re.compile(r"[\w+.-]+"),
}  # fmt: skip

ATTRIBUTES = {
    "depend", "block", "umask", "group_list", "sandbox", "stagein", "stageout", "max_run_subjobs", "interactive",
    "release_nodes_on_stageout", "tolerate_node_failures", "run_count", "pwd", "cred",
}  # fmt: skip


class Failed(Exception):
    """qsub fails: its exit status, and the text that it prints to stderr."""

    def __init__(self, status: int, *lines: str, usage: bool = False) -> None:
        super().__init__()
        self.status = status
        self.text = "".join(f"{line}\n" for line in lines) + (USAGE if usage else "")


@dataclass
class Wishes:
    """The values of options and `#PBS` directives. Options are read first, and directives do not override them.

    Attributes:
        environ: the environment of qsub.
        cwd: its working directory.
        values: the last value of each option except -l and -W, by its letter.
        attributes: the values of all -W, by name.
        resources: the values of all -l, by resource.
        variables: the variables of -v.
        complaints: error messages about options.
    """

    environ: Mapping[str, str]
    cwd: str
    values: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    variables: variables.Variables = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def read(self, words: list[str], *, directive: bool) -> Options:
        """Parses arguments, and adds their options and the error messages about them.

        Args:
            words: the arguments of the command line or of a `#PBS` line.
            directive: whether they are of a `#PBS` line.
        """
        found = getopt("qsub", OPTIONS, words)
        self.complaints += found.complaints
        before, fixed = dict(self.values), dict(self.attributes) if directive else {}
        for letter, value in found.pairs:
            if directive and letter in before and letter not in "lW":
                continue
            self._take(letter, value, fixed, directive=directive)
        return found

    def _take(self, letter: str, value: str, fixed: Mapping[str, str], *, directive: bool) -> None:
        if letter == "l":
            try:
                pairs = resources.resource_pairs(value)
            except ValueError:
                self.complaints.append("qsub: illegal -l value")
                return
            for name, text in pairs:
                if not (directive and name in self.resources):
                    self.resources[name] = text
        elif letter == "W":
            try:
                taken = {name: text for name, text in equals_pairs(value) if name not in fixed}
            except ValueError:
                taken = {}
                self.complaints.append("qsub: illegal -W value")
            if taken.get("block", "true").lower() not in ("true", "false") or not value.strip():
                self.complaints.append("qsub: illegal -W value")
            self.attributes |= taken
        else:
            self._take_value(letter, value)

    def _take_value(self, letter: str, value: str) -> None:
        if letter == "v":
            try:
                self.variables = variables.chosen(value, self.environ)
            except variables.CannotSend:
                raise Failed(1, "qsub: cannot send environment with the job") from None
        elif letter == "r" and value not in ("y", "n"):
            self.complaints.append("qsub: illegal -r value")
        elif letter == "c" and value.strip() == "u":
            self.complaints.append("qsub: illegal -c value")
        elif letter == "a":
            try:
                date_time(value, time.time())
            except ValueError:
                self.complaints.append("qsub: illegal -a value")
        elif letter == "X" and "DISPLAY" not in self.environ:
            self.complaints.append("qsub: DISPLAY not set")
        elif letter == "J" and "%" in value:
            value, _, self.attributes["max_run_subjobs"] = value.partition("%")
        self.values[letter] = value
        if "J" in self.values and self.values.get("r") == "n":
            self.complaints.append("qsub:  cannot submit non-rerunable Array Job")


@dataclass
class Draft:
    """A submission before it is sent to the server.

    Attributes:
        wishes: the values of options and directives.
        command_line: the arguments of qsub.
        name: the job's name.
        script: the job script; None: the job runs `command`.
        command: the program and arguments after `--`.
    """

    wishes: Wishes
    command_line: list[str]
    name: str
    script: bytes | None = None
    command: list[str] = field(default_factory=list)

    @property
    def block(self) -> bool:
        return self.wishes.attributes.get("block", "").lower() == "true"

    @property
    def silent(self) -> bool:
        return "z" in self.wishes.values


def read(argv: list[str], environ: Mapping[str, str], cwd: str, stdin: Callable[[], bytes]) -> Draft:
    """Reads the arguments, script and directives of a qsub, and checks them without the server.

    Args:
        argv: the arguments.
        environ: the environment of qsub.
        cwd: its working directory.
        stdin: returns the content of its stdin.

    Raises:
        Failed: qsub fails with a message of its own.
        PbsError: a value cannot be used, and qsub prints the server's error for it.
    """
    wishes = Wishes(environ, cwd)
    found = wishes.read(argv, directive=False)
    rest = found.rest
    executable = found.dashes and argv[len(argv) - len(rest) - 1] == "--"
    if wishes.complaints or found.moved or (executable and not rest) or (not executable and len(rest) > 1):
        raise Failed(2, *wishes.complaints, usage=True)
    if "I" in wishes.values:
        raise Failed(1, NO_TERMINAL.rstrip("\n"))
    draft = Draft(wishes, argv, "STDIN")
    if executable:
        draft.command = rest
    elif rest and rest[0] != "-":
        draft.name, draft.script = os.path.basename(rest[0]), _read_file(os.path.join(cwd, rest[0]))
    else:
        draft.script = stdin()
    if draft.script is not None:
        draft.script = _obey_directives(draft.script, wishes)
    if "j" in wishes.values.get("m", "") and "J" not in wishes.values:
        raise Failed(1, "qsub: mail option 'j' can not be used without array job")
    draft.name = wishes.values.get("N", draft.name)
    _check(wishes, draft.name)
    return draft


def _read_file(path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise Failed(1, "qsub: script not a file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Failed(1, f"qsub: script file:: {os.strerror(error.errno or 0)}") from None


def _obey_directives(script: bytes, wishes: Wishes) -> bytes:
    """Reads the `#PBS` lines before the script's first command (cmds/qsub_sup.c, get_script), and returns the script.

    A `#PBS` line that ends with a backslash is joined with the next line, in the returned script, too.
    """
    prefix = wishes.values.get("C", wishes.environ.get("PBS_DPREFIX", "#PBS"))
    lines = os.fsdecode(script).splitlines(keepends=True)
    for at, line in enumerate(lines):
        if prefix and line.lstrip().startswith(prefix):
            while re.search(r"\\\s*$", line) and at + 1 < len(lines):
                line = re.sub(r"\\\s*$", "", line) + lines.pop(at + 1)
            lines[at] = line
            _obey(line.lstrip()[len(prefix) :], wishes)
        elif not line.startswith((":", "#!")) and line.strip() and not line.lstrip().startswith("#"):
            break
    return os.fsencode("".join(lines))


def _obey(line: str, wishes: Wishes) -> None:
    try:
        words = directive_words(line)
    except ValueError as error:
        raise Failed(1, str(error)) from None
    found = wishes.read(words, directive=True)
    if wishes.complaints or found.rest or found.dashes:
        raise Failed(1, *wishes.complaints, "qsub: directive error: " + "".join(f"{word} " for word in words))


def _check(wishes: Wishes, name: str) -> None:
    """Checks the values that qsub checks before it calls the server.

    Raises:
        Failed: qsub fails with a message of its own.
        PbsError: a value cannot be used, and qsub prints the server's error for it.
    """
    if len(name) > LONGEST_NAME:
        raise Failed(2, "qsub: Job name is too long ")
    for letter, pattern in VALUES.items():
        value = name if letter == "N" else wishes.values.get(letter)
        if value is not None and not re.fullmatch(pattern.pattern, value, re.ASCII):
            raise Failed(2, f"qsub: illegal -{letter} value", usage=True)
    if "J" in wishes.values and not indices_of(wishes.values["J"]):
        raise Failed(2, "qsub: illegal -J value", usage=True)
    for letter in "oe":
        if letter in wishes.values and prepared_path(wishes.values[letter], wishes.cwd) is None:
            raise Failed(2, f"qsub: illegal -{letter} value", usage=True)
    if "depend" in wishes.attributes and dependencies(wishes.attributes["depend"]) is None:
        raise Failed(2, "qsub: illegal -W value", usage=True)
    if not wishes.attributes.get("umask", "0").isdecimal():
        raise Failed(2, "qsub: illegal -W value", usage=True)
    if not wishes.attributes.get("max_run_subjobs", "0").isdecimal():
        raise errors.PbsError(errors.BAD_VALUE, "Error (15014) submitting job")
    if set(wishes.attributes) - ATTRIBUTES:
        raise errors.PbsError(15002, "Error (15002) submitting job")
    resources.check_values(wishes.resources)


def indices_of(text: str) -> list[int]:
    """Returns the indices of an array: `1-7:2` -> [1, 3, 5, 7].

    Empty: the text is no range of at least two indices (Libcmds/chk_Jrange.c).
    """
    match = re.fullmatch(r"(\d+)-(\d+)(?::(\d+))?", text, re.ASCII)
    if match is None or int(match[1]) >= int(match[2]) or match[3] == "0":
        return []
    return list(range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)))


def dependencies(text: str) -> str | None:
    """Returns the value of `-W depend=` with full job ids; None: it cannot be used.

    `afterok:19[]:20,after:3` -> `afterok:19[].pbs-srv:20.pbs-srv,after:3.pbs-srv`.
    """
    made = []
    for part in text.split(","):
        kind, *ids = part.strip().split(":")
        full = [job_id(one) for one in ids]
        if kind not in ("after", "afterok", "afternotok", "afterany", "before", "beforeok", "beforenotok", "beforeany"):
            return None
        if not full or not all(full) or any(re.search(r"\[.+\]", one) for one in ids):
            return None
        made.append(":".join([kind, *(one for one in full if one)]))
    return ",".join(made)


def prepared_path(text: str, cwd: str) -> str | None:
    """Returns the value of -o or -e as `host:/absolute/path` (Libcmds/prepare_path.c); None: it cannot be used.

    The path of a directory gets a `/` at its end.
    """
    text = text.lstrip()
    host, colon, path = text.partition(":")
    if not colon or not re.fullmatch(r"[\w.-]*", host, re.ASCII):
        if colon and "/" not in host:
            return None
        host, path = "", text
    if not path or not all(char.isprintable() for char in path):
        return None
    try:
        name = host or socket.gethostname()
        socket.gethostbyname(name)
    except OSError:
        return None
    absolute = os.path.join(cwd, path)
    if not path.endswith("/") and os.path.isdir(absolute):
        absolute += "/"
    return f"{name}:{absolute}"


def submission(draft: Draft, queue: str, request: resources.Request, user: str) -> Submission:
    """Returns the submission that the server stores for a draft.

    Default names of output files are left open (`\\0`), because they contain the number that the job will get.

    Args:
        draft: the draft.
        queue: the queue that accepted the job.
        request: the resources of the job.
        user: the owner.
    """
    wishes = draft.wishes
    values, host = wishes.values, socket.gethostname()
    fallback = f"{host}:{wishes.cwd}/\0"
    paths = {letter: (letter in values and prepared_path(values[letter], wishes.cwd)) or fallback for letter in "oe"}
    given = values.get("J")
    return Submission(
        name=draft.name, owner=user, host=host, queue=queue, request=request,
        variables=_variables(wishes, queue, host), output=paths["o"], error=paths["e"],
        arguments=" ".join(word for word in draft.command_line if word), script=draft.script,
        executable=draft.command[0] if draft.command else None, arg_list=[word for word in draft.command[1:] if word],
        account=values.get("A"), project=values.get("P", PROJECT), join=values.get("j", "n"), keep=values.get("k", "n"),
        remove=values.get("R"), rerunable=values.get("r", "y") == "y", shell=values.get("S"),
        checkpoint=values.get("c", "u"), mail_points=values.get("m", "a"), mail_users=values.get("M"),
        priority=values.get("p", "0"),
        umask=wishes.attributes.get("umask"), group_list=wishes.attributes.get("group_list"), held="h" in values,
        start_after=date_time(values["a"], time.time()) if "a" in values else None,
        indices=indices_of(given) if given else None, indices_text=given or "",
        max_run_subjobs=int(wishes.attributes["max_run_subjobs"]) if "max_run_subjobs" in wishes.attributes else None,
    )  # fmt: skip


def _variables(wishes: Wishes, queue: str, host: str) -> variables.Variables:
    """Returns the job's variables: PBS_O_* of the submitting shell, in qsub's order, and those of -v.

    -V adds none: in 23.06.06 it is broken (env_array_to_varlist returns NULL; fixed by commit 494e0f018, which is in no
    release).
    """
    environ = wishes.environ
    made = {"PBS_O_HOME": environ.get("HOME", "/")}
    passed = ("LANG", "LOGNAME", "PATH", "MAIL", "SHELL", "TZ")
    made |= {f"PBS_O_{name}": environ[name] for name in passed if name in environ}
    made |= {"PBS_O_WORKDIR": wishes.cwd, "PBS_O_SYSTEM": os.uname().sysname, **wishes.variables}
    return made | {"PBS_O_QUEUE": queue, "PBS_O_HOST": host}
