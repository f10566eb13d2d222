"""Programs and functions of the user's own, looked at before anything is submitted."""

from __future__ import annotations

import errno
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.config.schema import Function, Program
from launcher.environment.programs import ModulePath, checked_function, checked_program, interpreter
from launcher.errors import ConfigError

FILES = {
    "train.py": "import no_such_module\nraise SystemExit(3)\n",  # neither is looked at here
    "broken.py": "import os\ndef f(:\n  pass\n",
    "zero.py": "x = 1\0\n",
    "words": "just some words\n",
    "script": "print(1)\n",
    "run.sh": "#!/bin/bash\nexit 0\n",
    "odd": "exit 0\n",
    "pkg/__init__.py": "raise RuntimeError('a package was executed')\n",
    "pkg/__main__.py": "",
    "pkg/sub/__init__.py": "",
    "pkg/mod.py": """
from json import dumps as aliased
if True:
    def within(): return {}
def main(lr, *, epochs=3, wd): return {}
def anything(**kwargs): return {}
def by_position(a, /): return {}
def bare(): return {}
@staticmethod
def wrapped(a): return {}
class Trainer:
    def run(self): return {}
same = main
first, second = bare, bare
""",
    "pkg/opened.py": "from json import *\n",
    "pkg/lazily.py": "def __getattr__(name): return print\n",
    "pkg/broken.py": "def main(:\n",
    "bare/train.py": "def helper(): pass\ndef main(lr=1): return {}\n",
    "bare/deep/train.py": "def main(lr=1): return {}\n",
    "both/__init__.py": "from . import mod\nfrom .train import train\n",
    "both/mod.py": "",
    "both/train.py": "def train(): return {}\n",
}


@pytest.fixture
def place(tmp_path: Path) -> ModulePath:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("run.sh", "odd"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "binary").write_bytes(b"\x80\x81\0")
    (tmp_path / "elf").write_bytes(b"\x7fELF\2")
    (tmp_path / "elf").chmod(0o755)
    return ModulePath(tmp_path, (str(tmp_path), *sys.path))


def program(**keys: Any) -> Program:
    return Program("program", "m:f", seed=0, **keys)


def function(target: str | None, **kwargs: Any) -> Function:
    return Function("function", "m:f", seed=0, target=target, kwargs=kwargs)


@pytest.mark.parametrize(
    "keys",
    [
        {"script": "train.py"},
        {"script": "./train.py"},
        {"script": "script"},  # no ending, and Python
        {"script": "run.sh"},
        {"script": "elf"},
        {"script": "broken.py", "python": "/opt/python4/bin/python"},  # which may well read it
        {"module": "pkg.mod"},
        {"module": "pkg"},
        {"module": "no.such.module", "python": "/opt/other/bin/python"},  # its path is not known here
    ],
)
def test_what_can_run_passes_and_is_not_executed(place: ModulePath, keys: dict[str, Any]) -> None:
    assert checked_program(program(**keys), place) == program(**keys)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "workload=program needs workload.script=FILE.py or workload.module=NAME, and none is given"),
        ({"script": "train.py", "module": "pkg"}, "not both"),
        ({"script": "trian.py"}, "there is no file trian.py in {dir}. Did you mean train.py?"),
        ({"script": "code/train.py"}, "there is no folder {dir}/code (paths are relative to {dir})"),
        ({"script": "~nobodyx/train.py"}, "there is no folder {dir}/~nobodyx "),
        ({"script": "pkg"}, "workload.script=pkg is a folder"),
        (
            {"script": "broken.py"},
            "workload.script=broken.py is not valid Python: {dir}/broken.py, line 2: 'def f(:': ",
        ),
        ({"script": "zero.py"}, "is not valid Python: {dir}/zero.py"),
        ({"script": "words"}, "workload.script=words is not valid Python: {dir}/words, line 1: 'just some words'"),
        ({"script": "words"}, ". If it is no Python file: chmod u+x {dir}/words"),
        ({"script": "binary"}, "is neither a Python file nor executable: chmod u+x {dir}/binary"),
        ({"script": "odd"}, "neither a program nor a script that begins with"),
        ({"script": "run.sh", "fork": True}, "workload.fork is for Python files"),
        ({"script": "run.sh", "python": "/usr/bin/python3"}, "workload.python is for Python files"),
        ({"script": "train.py", "python": "python3"}, "give the whole path of the interpreter"),
        ({"script": "train.py", "python": "~nobodyx/bin/python"}, "give the whole path of the interpreter"),
        ({"script": "train.py", "python": "/etc/passwd"}, "cannot be executed"),
        ({"script": "train.py", "python": "/usr/bin/python3", "fork": True}, "leave workload.python out"),
        ({"module": "pkg.mood"}, "there is no module pkg.mood in pkg ({dir}/pkg). Did you mean pkg.mod"),
        ({"module": "pgk.mod"}, "there is no module pgk in {dir} and on Python's path. Did you mean pkg?"),
        ({"module": "pkg.sub"}, "there is no module pkg.sub.__main__"),
        ({"module": "pkg.mod.deeper"}, "pkg.mod is a module ({dir}/pkg/mod.py), no package"),
        ({"module": "pkg/mod.py"}, "is no name of a module"),
        (
            {"script": "train.py", "args": ["a", ["b"]]},
            "workload.args: argument 2, ['b'], is neither text nor a number",
        ),
        ({"script": "train.py", "args": ["--lr", None]}, "argument 2 is null, which is not text: leave it out"),
        ({"script": "train.py", "flags": {"lr": {"a": 1}}}, "workload.flags: lr is a section"),
        ({"script": "train.py", "flags": {"lr": [[1]]}}, "workload.flags: argument 1, [1], is neither text nor"),
        ({"script": "pkg.mod"}, "there is no file pkg.mod in {dir}. It is a module: run --module pkg.mod"),
        ({"script": "a\0b.py"}, "workload.script=a\0b.py: there is no file a\0b.py in {dir}"),
        ({"script": "train.py", "args": "--name 'a b"}, "workload.args: No closing quotation"),
    ],
)
def test_what_cannot_run_is_refused_with_the_fix(place: ModulePath, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        checked_program(program(**keys), place)
    assert words.format(dir=place.workdir) in str(refusal.value)


def test_a_script_in_a_folder_of_others_is_refused_by_its_key(
    place: ModulePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(ConfigError, match="you may not enter the folder that it is in"):
        checked_program(program(script="train.py"), place)


def test_an_interpreter_that_is_not_here_is_refused_where_it_would_run(tmp_path: Path) -> None:
    assert interpreter(program(script="train.py"), here=True) == ()
    assert interpreter(program(script="train.py", python=sys.executable), here=True) == ()
    for name, words in (("pyhton", f"there is no pyhton in {tmp_path}"), ("env/bin/python", "is not there")):
        missing = program(script="train.py", python=f"{tmp_path}/{name}")
        with pytest.raises(ConfigError, match=f"workload.python={tmp_path}/{name}.*{words}"):
            interpreter(missing, here=True)
        assert interpreter(missing, here=False) == (
            f"workload.python={tmp_path}/{name} is not on this machine, and was not checked: the nodes need it",
        )


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], []),
        (["--lr", 0.1, 3, True, "a b"], ["--lr", "0.1", "3", "true", "a b"]),
        ("--lr 1e-3 --name 'a b'", ["--lr", "1e-3", "--name", "a b"]),
    ],
)
def test_arguments_become_text(place: ModulePath, given: Any, meant: list[str]) -> None:
    assert checked_program(program(script="train.py", args=given), place).args == meant


@pytest.mark.parametrize(
    ("args", "flags", "overrides", "meant"),
    [
        (["--lr", "1"], {"lr": 0.1}, {}, ["--lr", "1", "--lr", "0.1"]),  # the last one counts, as parsers have it
        (["-x", "--", "file"], {"b": 32, "amp": True}, {}, ["-x", "-b", "32", "--amp", "--", "file"]),
        ([], {"amp": False, "note": None, "no-decay": True}, {}, ["--no-decay"]),
        ([], {"sizes": [1, "a b"], "eps": 1e-05}, {}, ["--sizes", "1", "a b", "--eps", "1e-05"]),
        (["+x=3"], {}, {"optimizer": {"lr": 0.1}, "model": "big"}, ["+x=3", "optimizer.lr=0.1", "model='big'"]),
        ([], {}, {"a": [1, "b"], "c": None, "d": True}, ["a=[1,'b']", "c=null", "d=true"]),
    ],
)
def test_named_arguments_stand_behind_the_others(
    place: ModulePath, args: list[str], flags: dict[str, Any], overrides: dict[str, Any], meant: list[str]
) -> None:
    checked = checked_program(program(script="train.py", args=args, flags=flags, overrides=overrides), place)
    assert checked.args == meant
    assert checked_program(checked, place).args == meant  # once is enough


@pytest.mark.parametrize(
    ("target", "kwargs", "whole"),
    [
        ("pkg.mod:main", {"lr": 1, "wd": 2}, "pkg.mod:main"),
        ("pkg.mod.main", {"lr": 1, "wd": 2, "epochs": 5}, "pkg.mod:main"),
        ("pkg.mod:anything", {"whatever": 1}, "pkg.mod:anything"),
        ("pkg.mod:bare", {}, "pkg.mod:bare"),
        ("pkg.mod:wrapped", {"what_a_decorator_makes_of_it": 1}, "pkg.mod:wrapped"),
        ("pkg.mod:within", {}, "pkg.mod:within"),
        ("pkg.mod:same", {"x": 1}, "pkg.mod:same"),
        ("pkg.mod:second", {}, "pkg.mod:second"),
        ("pkg.mod:aliased", {"obj": 1}, "pkg.mod:aliased"),
        ("pkg.mod:Trainer.run", {}, "pkg.mod:Trainer.run"),
        ("pkg.opened:dumps", {}, "pkg.opened:dumps"),
        ("pkg.lazily:whatever", {}, "pkg.lazily:whatever"),
        ("both.train", {}, "both:train"),  # the function has taken the module's place
        ("bare.train.main", {}, "bare.train:main"),
        ("bare.deep.train:main", {}, "bare.deep.train:main"),
        ("json:dumps", {"obj": 1}, "json:dumps"),
        ("math:sqrt", {}, "math:sqrt"),  # of C: nothing can be said
    ],
)
def test_a_function_is_found_without_importing_it(
    place: ModulePath, target: str, kwargs: dict[str, Any], whole: str
) -> None:
    assert checked_function(function(target, **kwargs), place).target == whole


@pytest.mark.parametrize(
    ("target", "kwargs", "words"),
    [
        (None, {}, "workload=function needs workload.target=package.module:function"),
        ("main", {}, "workload.target='main' is not package.module:function"),
        ("pkg/mod.py:main", {}, "is not package.module:function"),
        ("pkg.mdo:main", {}, "there is no module pkg.mdo in pkg ({dir}/pkg). Did you mean pkg.mod"),
        ("pkg.mod:mian", {}, "there is no mian in {dir}/pkg/mod.py. Did you mean main"),
        ("pkg.mod:main", {"lr": 1, "wd": 1, "lrr": 2}, "takes no argument 'lrr'. Did you mean lr? It takes lr, epochs"),
        ("pkg.mod:main", {}, "main() needs lr, wd: add workload.kwargs.lr=... workload.kwargs.wd=..."),
        ("pkg.mod:bare", {"a": 1}, "bare() in {dir}/pkg/mod.py takes no argument 'a'. It takes none"),
        ("pkg.mod:by_position", {"a": 1}, "takes arguments by position"),
        (
            "bare.train",
            {},
            "workload.target=bare.train is a module: name a function in it, as in workload.target="
            "bare.train:main. It has helper, main",
        ),
        ("bare.deep.train", {}, "workload.target=bare.deep.train is a module: name a function in it"),
        ("bare:train", {}, "workload.target=bare:train is a module"),
        ("bare.trian", {}, "there is no trian in the folder {dir}/bare. Did you mean train?"),
        (
            "pkg.mod",
            {},
            "workload.target=pkg.mod is a module: name a function in it, as in workload.target=pkg.mod:main",
        ),
        ("both.mod", {}, "workload.target=both.mod is a module"),
        ("pkg.broken:main", {}, "is not valid Python: {dir}/pkg/broken.py, line 1"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_with_the_fix(
    place: ModulePath, target: str | None, kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        checked_function(function(target, **kwargs), place)
    assert words.format(dir=place.workdir) in str(refusal.value)


def test_what_set_up_lines_may_bring_is_left_to_the_job(place: ModulePath) -> None:
    incomplete = replace(place, complete=False)
    assert checked_program(program(module="of_the.site"), incomplete).module == "of_the.site"
    assert checked_function(function("of_the.site:main"), incomplete).target == "of_the.site:main"
