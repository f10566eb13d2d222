"""Every #PBS option comes from one key, and qsub reads in it what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.schema import LaunchMode
from launcher.errors import ConfigError
from launcher.plan.plan import CONTROL, JobPlan
from launcher.schedulers.pbs import script as qsub
from launcher.schedulers.pbs.script import (
    LONGEST_NAME,
    TAKEN,
    Request,
    chunk,
    chunks,
    of_plan,
    options,
    place,
    select,
)
from launcher.schedulers.pbs.settings import GpuDirective
from launcher.submission import render
from tests.unit.plans import bare_plan, plan_of

PLAIN = [
    ("N", "job"), ("l", "select=1:ncpus=1"), ("r", "y"), ("o", "/runs/run-1/"), ("j", "oe"), ("k", "oed"),
    ("W", "umask=077"), ("v", "LAUNCHER_TOKEN=token"), ("S", "/bin/bash"),
]  # fmt: skip


def request(**fields: Any) -> Request:
    return Request(**{"name": "job", "select": "1:ncpus=1", "output": "/runs/run-1/", "token": "token", **fields})


def pbs_plan(*, cluster: dict[str, Any] | None = None, **keys: Any) -> JobPlan:
    return plan_of(cluster={"scheduler": "pbs", **(cluster or {})}, **keys)


def words(statement: str) -> list[str]:
    return statement.split(":")


# -- options


def test_a_plain_request_asks_for_nothing_more_than_it_says() -> None:
    assert options(request()) == PLAIN


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"queue": "gpu"}, [("q", "gpu")]),
        ({"project": "p-1"}, [("P", "p-1")]),
        ({"shrinks": True}, [("W", "tolerate_node_failures=all")]),
        ({"account": "me"}, [("A", "me")]),
        ({"place": "scatter:excl"}, [("l", "place=scatter:excl")]),
        ({"walltime": 59}, [("l", "walltime=00:00:59")]),
        ({"walltime": 129600}, [("l", "walltime=36:00:00")]),
        ({"resources": {"filesystems": "home:eagle", "a": 3, "b": None}},
         [("l", "filesystems=home:eagle"), ("l", "a=3")]),
        ({"array": "0-9%2"}, [("J", "0-9%2")]),
        ({"directives": {"m": "abe", "p": 5}}, [("m", "abe"), ("p", "5")]),
        ({"directives": {"h": True}}, [("h", "")]),
        ({"directives": {"m": None, "h": False}}, []),
        ({"directives": {"M": ["a@b", "c@d"]}}, [("M", "a@b"), ("M", "c@d")]),
        ({"directives": {"l": "mem=1gb"}}, [("l", "mem=1gb")]),
        ({"directives": {"W": ["group_list=x", "sandbox=PRIVATE"]}}, [("W", "group_list=x"), ("W", "sandbox=PRIVATE")]),
        ({"directives": {"l": None, "W": None}}, []),
    ],
)  # fmt: skip
def test_each_key_is_one_option(fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    written = options(request(**fields))
    assert [option for option in written if option not in PLAIN] == expected
    assert [option for option in written if option in PLAIN] == PLAIN  # all of it, in its order


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": "other"}, ("N", "other")),
        ({"select": "2:ncpus=4"}, ("l", "select=2:ncpus=4")),
        ({"output": "/a b/^array_index^/"}, ("o", "/a b/^array_index^/")),
        ({"token": "other"}, ("v", "LAUNCHER_TOKEN=other")),
        ({"directives": {"v": "USE_SSH=1"}}, ("v", "LAUNCHER_TOKEN=token,USE_SSH=1")),
        ({"directives": {"v": ["A=", "B=x:y/z"]}}, ("v", "LAUNCHER_TOKEN=token,A=,B=x:y/z")),
        ({"directives": {"v": None}}, ("v", "LAUNCHER_TOKEN=token")),
        ({"rerunnable": False}, ("r", "n")),
        ({"directives": {"r": "n"}}, ("r", "n")),
        ({"directives": {"S": "/bin/zsh"}}, ("S", "/bin/zsh")),
    ],
)
def test_what_replaces_an_option_stands_there_alone(fields: dict[str, Any], expected: tuple[str, str]) -> None:
    letter, value = expected
    same = [each for each in options(request(**fields)) if each[0] == letter and (letter != "l" or "select" in each[1])]  # type: ignore[operator]
    assert same == [(letter, value)]


@pytest.mark.parametrize("option", ["r", "S"])
def test_none_drops_an_option(option: str) -> None:
    assert options(request(directives={option: None})) == [each for each in PLAIN if each[0] != option]


@pytest.mark.parametrize("option", TAKEN)
@pytest.mark.parametrize("value", ["x", None, True])
def test_what_makes_the_run_what_it_is_cannot_be_replaced(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"the qsub option -{option} cannot be among the directives: ."):
        options(request(directives={option: value}))


@pytest.mark.parametrize(("fields", "told"), [
    ({"place": "scatter,walltime=999:00:00"}, "is no place statement"),
    ({"place": "scatter:ncpus=9"}, "is no place statement"),
    ({"place": "everywhere"}, "is no place statement"),
    ({"place": "scatterexcl"}, "is no place statement"),
    ({"place": "scatter:"}, "is no place statement"),
    ({"select": "2:ncpus=4,walltime=999:00:00"}, "a select statement has no blanks, quotes, commas"),
    ({"select": "2:ncpus=4 -W umask=000"}, "a select statement has no blanks"),
    ({"directives": {"W": "umask=000"}}, "-W umask=000: umask cannot be set: what the job prints is for nobody else"),
    ({"directives": {"W": ["depend=on:1", "group_list=a, umask = 0"]}}, "umask cannot be set"),
    ({"directives": {"W": "group_list=a,block=true"}}, "-W group_list=a,block=true: block cannot be set: use wait"),
    ({"directives": {"W": "tolerate_node_failures=none"}}, "use min_nodes"),
    ({"directives": {"v": "A=1,B=2"}}, "-v A=1,B=2: write NAME=VALUE, without blanks, quotes, commas"),
    ({"directives": {"v": "HOME"}}, "-v HOME: write NAME=VALUE"),
    ({"directives": {"v": True}}, "-v True: write NAME=VALUE"),
    ({"directives": {"v": "LAUNCHER_TOKEN=mine"}}, "-v LAUNCHER_TOKEN=mine: the launcher finds its jobs by it"),
    ({"directives": {"l": "walltime=999:00:00"}}, "walltime cannot be set: use time"),
    ({"directives": {"l": "mem=1gb,select=9"}}, "select cannot be set: use nodes"),
    ({"resources": {"walltime": "999:00:00"}}, "walltime=999:00:00 cannot be among the resources of the job: use time"),
    ({"resources": {"select": 9}}, "select=9 cannot be among the resources of the job: use nodes"),
])  # fmt: skip
def test_a_value_is_one_value_and_changes_nothing_else(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        options(request(**fields))


@pytest.mark.parametrize("place", ["free", "pack:excl", "vscatter:shared", "excl", "scatter:exclhost:group=rack", None])
def test_place_statements_of_the_manual(place: str | None) -> None:
    assert place is None or ("l", f"place={place}") in options(request(place=place))


@pytest.mark.parametrize("option", ["", "mm", "-m", "m ", "1", "é", "Wblock", "m\n", "l=a"])
@pytest.mark.parametrize("value", ["x", None, True])
def test_an_option_is_one_letter(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="is not the letter of a qsub option") as refusal:
        options(request(directives={option: value}))
    assert str(refusal.value).startswith(f"directives: {option!r} ")


@pytest.mark.parametrize("name", ["", "1a", "a b", "a:b", "a=b", "a+b", "-a", "_a", "a\n", "select=1,a"])
def test_a_resource_of_a_job_has_a_name_of_pbs(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a resource of a job: names are letters, digits, _ and -; values"):
        options(request(resources={name: "1"}))
    assert options(request(resources={name: None})) == PLAIN  # it is not written


@pytest.mark.parametrize("value", ["", "a b", "a,b", "a'b", 'a"b', "a\\b", "a\n", "\t", "home,walltime=9"])
def test_a_resource_of_a_job_has_a_value_that_qsub_reads_as_one(value: str) -> None:
    with pytest.raises(ConfigError, match="values have no blanks, quotes, commas or backslashes") as refusal:
        options(request(resources={"filesystems": value}))
    assert str(refusal.value).startswith(f"filesystems={value!r} ")


@pytest.mark.parametrize("value", ["home:eagle", "a+b", "a=b", "$x", "`x`", "#", ";", "-n", 3, 1.5])
def test_any_other_value_of_a_resource_of_a_job_is_written_as_it_is(value: Any) -> None:
    assert ("l", f"a_b-c={value}") in options(request(resources={"a_b-c": value}))


def test_a_folder_is_ascii() -> None:
    options(request(output="/a b/'c'"))
    with pytest.raises(ConfigError, match="/größe: qsub takes only ASCII characters in this path"):
        options(request(output="/größe"))


# What OpenPBS 23.06.06 took, and what it refused (-N).
@pytest.mark.parametrize(
    "name",
    ["plain_ok", "1digitfirst", "_under", "-dash", ".dot", "a+b", "12345", "1e5", "00012", "true", "a" * LONGEST_NAME],
)
def test_the_names_that_pbs_takes_are_taken(name: str) -> None:
    assert options(request(name=name))[0] == ("N", name)


@pytest.mark.parametrize(
    "name",
    ["with space", "tab\tx", "a/b", "a:b", "a,b", "a=b", "a$b", "a'b", 'a"b', "a[0]", "a(b)", "a@b", "a#b", "é", "",
     "a\n", "a" * (LONGEST_NAME + 1)],
)  # fmt: skip
def test_the_names_that_pbs_refuses_are_refused_before(name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be a PBS job's name: use up to 230 letters, digits and _ - \+ \."):
        options(request(name=name))


# -- select statements


def test_a_chunk_is_what_one_node_gives() -> None:
    plain = {"ncpus": 8, "mpiprocs": 4, "ompthreads": 2}
    assert chunk(**plain, ngpus=2, mem=1025) == {**plain, "ngpus": 2, "mem": "2kb"}
    assert chunk(**plain, ngpus=0, mem=None) == {**plain, "ngpus": None, "mem": None}  # a site may not know ngpus
    assert select(3, chunk(**plain, ngpus=0, mem=None)) == "3:ncpus=8:mpiprocs=4:ompthreads=2"


@pytest.mark.parametrize(("nodes", "word"), [(1, None), (2, "scatter"), (100, "scatter")])
def test_several_chunks_are_on_different_nodes(nodes: int, word: str | None) -> None:
    assert place(nodes) == word


@pytest.mark.parametrize(
    ("nodes", "resources", "statement"),
    [
        (1, {}, "1"),
        (2, {"ncpus": 4, "mem": "16gb"}, "2:ncpus=4:mem=16gb"),
        (2, {"ncpus": 4, "mem": None, "ngpus": 0}, "2:ncpus=4:ngpus=0"),
        (1, {"bigmem": True, "slow": False}, "1:bigmem=true:slow=false"),
        (1, {"host": "node-1.site", "a_b-c": "x/y;z(1)", "f": 1.5}, "1:host=node-1.site:a_b-c=x/y;z(1):f=1.5"),
    ],
)
def test_a_select_statement_is_so_many_equal_chunks(nodes: int, resources: dict[str, Any], statement: str) -> None:
    assert select(nodes, resources) == statement


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "1") for name in ("", "1a", "a b", "a:b", "a=b", "a+b", "-a", "_a", "a\n", "naïve resource")),
        *(("a", value) for value in ("", "a b", "a:b", "a+b", "a=b", "a,b", "a'b", 'a"b', "a\\b", "a\n", "\t")),
    ],
)
def test_what_cannot_stand_in_a_select_statement_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a resource of a chunk: names are letters, digits, _ and -"):
        select(1, {name: value})


chunk_values = st.dictionaries(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,5}", fullmatch=True),
    st.one_of(st.none(), st.booleans(), st.integers(0, 999), st.from_regex(r"[a-z0-9.*/@-]{1,8}", fullmatch=True)),
    max_size=4,
)


@given(st.integers(1, 9999), chunk_values)
def test_the_chunks_of_what_we_write_are_counted_right(nodes: int, resources: dict[str, Any]) -> None:
    assert chunks(select(nodes, resources)) == nodes


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("2:ncpus=4+ncpus=1", 3),
        ("1", 1),
        ("16", 16),
        ("ncpus=4:ngpus=1", 1),
        ("host=node1", 1),
        ("1:ncpus=2:mpiprocs=2+1:ncpus=1+4", 6),
        ("0:ncpus=1", 0),
    ],
)
def test_chunks_are_counted(statement: str, count: int) -> None:
    assert chunks(statement) == count


@pytest.mark.parametrize("statement", ["", "+", "2:ncpus=4+", ":ncpus=4", "-1:ncpus=4", "2ncpus=4", " 2", "2,3", "=2"])
def test_what_is_no_select_statement_has_no_chunks(statement: str) -> None:
    with pytest.raises(ConfigError, match="is not a select statement such as 2:ncpus=4:ngpus=1"):
        chunks(statement)


@pytest.mark.parametrize(
    ("octets", "text"), [(1, "1kb"), (1024, "1kb"), (1025, "2kb"), (16 * 1024**3, "16777216kb"), (0, "0kb")]
)
def test_a_size_is_never_less_than_was_asked_for(octets: int, text: str) -> None:
    assert chunk(ncpus=1, mpiprocs=1, ompthreads=1, ngpus=0, mem=octets)["mem"] == text


# -- plans


def test_a_plan_is_asked_for_as_it_says() -> None:
    assert of_plan(pbs_plan(), "token") == Request(
        name="job", select="1:ncpus=1:mpiprocs=1:ompthreads=1", output="/runs/run-1/", token="token", walltime=3600
    )


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({"nodes": 3}, {"select": "3:ncpus=1:mpiprocs=1:ompthreads=1", "place": "scatter"}),
        ({"nodes": 3, "min_nodes": 2},
         {"select": "3:ncpus=1:mpiprocs=1:ompthreads=1", "place": "scatter", "shrinks": True}),
        ({"nodes": 3, "cluster": {"place": "pack"}},
         {"select": "3:ncpus=1:mpiprocs=1:ompthreads=1", "place": "pack"}),
        ({"cluster": {"place": "excl"}}, {"place": "excl"}),
        ({"procs_per_node": 4, "cpus_per_proc": 3}, {"select": "1:ncpus=12:mpiprocs=1:ompthreads=3"}),
        ({"procs_per_node": 4, "cpus_per_proc": 3, "launch": {"mode": LaunchMode.tasks}},
         {"select": "1:ncpus=12:mpiprocs=4:ompthreads=3"}),
        ({"mem": "1025B"}, {"select": "1:ncpus=1:mpiprocs=1:ompthreads=1:mem=2kb"}),
        ({"gpus_per_node": 2, "cluster": {"gpu_directive": GpuDirective.none}},
         {"select": "1:ncpus=2:mpiprocs=1:ompthreads=1"}),
        ({"gpus_per_node": 2, "cluster": {"gpu_directive": GpuDirective.ngpus}},
         {"select": "1:ncpus=2:mpiprocs=1:ompthreads=1:ngpus=2"}),
        ({"cluster": {"gpu_directive": GpuDirective.ngpus}}, {}),  # a site without GPUs may not know the word
        ({"gpus_per_node": 2, "mem": "1G", "cluster": {"gpu_directive": GpuDirective.ngpus, "chunk": {
            "ncpus": 64, "ompthreads": None, "ngpus": None, "gpu_type": "a100", "mem": "2gb"}}},
         {"select": "1:ncpus=64:mpiprocs=1:mem=2gb:gpu_type=a100"}),
        ({"time": "36h"}, {"walltime": 129600}),
        ({"cluster": {"queue": "gpu@srv", "project": "p", "account": "a"}},
         {"queue": "gpu@srv", "project": "p", "account": "a"}),
        ({"cluster": {"resources": {"filesystems": "home", "x": None}}},
         {"resources": {"filesystems": "home", "x": None}}),
        ({"cluster": {"directives": {"m": "abe"}}}, {"directives": {"m": "abe"}}),
        ({"cluster": {"totals": True}}, {"select": None, "resources": {"ncpus": 1}}),
        ({"nodes": 2, "gpus_per_node": 4, "cpus_per_proc": 12, "mem": "1025B", "cluster": {
            "totals": True, "gpu_directive": GpuDirective.ngpus, "resources": {"storage": "scratch/a+gdata/b"}}},
         {"select": None, "resources": {"ncpus": 96, "ngpus": 8, "mem": "4kb", "storage": "scratch/a+gdata/b"}}),
        ({"nodes": 2, "cluster": {"totals": True, "place": "excl", "resources": {"ncpus": None}}},
         {"select": None, "place": "excl", "resources": {"ncpus": None}}),
    ],
)  # fmt: skip
def test_each_key_of_a_plan_has_its_place(keys: dict[str, Any], fields: dict[str, Any]) -> None:
    plain = of_plan(pbs_plan(), "token")
    assert of_plan(pbs_plan(**keys), "token") == Request(**{**vars(plain), **fields})


def test_who_asks_for_totals_asks_for_no_chunk() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.totals=true asks for no chunks: use cluster\.resources"):
        of_plan(pbs_plan(cluster={"totals": True, "chunk": {"mem": "2gb"}}), "token")


def test_an_array_prints_to_a_folder_of_its_own() -> None:
    plain = of_plan(pbs_plan(), "token")
    assert of_plan(pbs_plan(), "token", "0-9%2", "/runs/arrays") == Request(
        **{**vars(plain), "array": "0-9%2", "output": "/runs/arrays/"}
    )


@given(st.integers(1, 50), st.integers(1, 16), st.integers(1, 8), st.integers(0, 8), st.sampled_from(LaunchMode))
def test_what_is_asked_for_is_what_is_started(nodes: int, procs: int, cpus: int, gpus: int, mode: LaunchMode) -> None:
    plan = pbs_plan(
        nodes=nodes, procs_per_node=procs, cpus_per_proc=cpus, gpus_per_node=gpus, launch={"mode": mode},
        cluster={"gpu_directive": GpuDirective.ngpus},
    )  # fmt: skip
    wanted = of_plan(plan, "token")
    count, *resources = words(wanted.select)
    asked = dict(resource.split("=") for resource in resources)
    assert (int(count), int(asked["mpiprocs"])) == (nodes, procs if mode is LaunchMode.tasks else 1)
    assert int(asked["ncpus"]) == procs * cpus
    assert int(asked.get("ngpus", 0)) == gpus
    assert wanted.place == (None if nodes == 1 else "scatter")


# -- how qsub reads them


def make_argv(line: str) -> list[str]:
    """The words of a directive as qsub reads it: make_argv of OpenPBS 23.06.06 (src/cmds/qsub.c) in Python.

    Raises:
        ValueError: a quote is not closed.
    """
    found: list[str] = []
    word, seen = "", False
    chars: Iterator[str] = iter(line.lstrip(" \t\n\v\f\r"))
    pending = next(chars, "")
    while pending:
        char, pending = pending, next(chars, "")
        seen = True
        if char in "\"'":
            while pending and pending != char:
                word, pending = word + pending, next(chars, "")
            if not pending:
                raise ValueError("qsub: unmatched quote")
            pending = next(chars, "")
        elif char == "\\":
            word, pending = word + pending, next(chars, "")
        elif char in " \t\n\v\f\r":
            found, word, seen = [*found, word], "", False
            while pending and pending in " \t\n\v\f\r":
                pending = next(chars, "")
        else:
            word += char
    return [*found, word] if seen else found


# Printed by the function itself, compiled.
@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("", []),
        ("  ", []),
        ("-N job", ["-N", "job"]),
        ("  -N \t job ", ["-N", "job"]),
        ("""-N 'a b'"'"'c' \\x "" q""", ["-N", "a b'c", "x", "", "q"]),
        (r"""'a\b' "c\d" e\f\\ \ g""", [r"a\b", r"c\d", "ef\\", " g"]),
        ("a'b c'd", ["ab cd"]),
        ('"it\'s" #x', ["it's", "#x"]),
        ("-A ''", ["-A", ""]),
        ("$HOME `id`;*", ["$HOME", "`id`;*"]),
    ],
)
def test_the_stand_in_for_qsubs_reader_reads_as_qsub_does(line: str, read: list[str]) -> None:
    assert make_argv(line) == read


@pytest.mark.parametrize("line", ["'", 'a "b', "'a\\'b'"])
def test_the_stand_in_for_qsubs_reader_wants_quotes_closed(line: str) -> None:
    with pytest.raises(ValueError, match="unmatched"):
        make_argv(line)


visible = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.text("\"'\\ $`#-=,;a", min_size=1),
).filter(lambda text: not CONTROL.search(text))


@given(visible)
def test_any_value_is_read_as_it_was_written(text: str) -> None:
    line = qsub.line("A", text)
    assert make_argv(line) == ["-A", text]
    # Neither of these is put together from several lines, or belongs to what stands behind it.
    assert not line.endswith("\\")
    assert len(line.splitlines()) == 1


def test_an_option_without_a_value_is_its_letter() -> None:
    assert qsub.line("h", "") == "-h"


def read(script: str) -> list[tuple[str, str]]:
    """The options of a script as qsub reads them: those before the first command."""
    found = []
    for line in script.splitlines()[1:]:
        if not line.startswith("#PBS"):
            break
        letter, *value = make_argv(line.removeprefix("#PBS"))
        assert len(letter) == 2 and letter.startswith("-") and len(value) <= 1, line
        found.append((letter[1], value[0] if value else ""))
    return found


EVIL = ["two  words", "it's", '"so"', "$(touch pwned)", "`id`", "a\\", "\\'", "-n", "# x", "'; #PBS -I '"]


@pytest.mark.parametrize("text", EVIL)
def test_the_options_of_a_script_are_those_of_the_plan(text: str) -> None:
    plan = bare_plan(
        cluster={
            "scheduler": "pbs",
            "account": text,
            "project": text,
            "queue": "gpu",
            "resources": {"filesystems": "$HOME:`id`;#"},
            "directives": {"M": [text, "b"], "h": True},
        },
        starter="pbsdsh",
        nodes=2,
        run_dir=f"/runs/{text}",
    )
    for array, elements in ((None, None), ("0-9%2", Path(plan.run_dir, "arrays/token"))):
        script = render.script(plan, token="token", array=array, elements=elements)
        assert read(script) == options(of_plan(plan, "token", array, elements and str(elements.parent)))
        assert script.count("\n#PBS") == len(read(script))
    assert ("h", "") in read(script)
