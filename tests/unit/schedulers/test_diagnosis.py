"""What schedulers can tell of their jobs and sites, and what a command loads to ask one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launcher.schedulers import registry
from launcher.schedulers.base import Scheduler

PARTS = ("pending", "limits")


def test_a_scheduler_that_names_its_command_has_what_belongs_to_it() -> None:
    needed = ("found", "check", "survey")
    for each in registry.schedulers():
        own = [name for name in needed if getattr(type(each), name) is not getattr(Scheduler, name)]
        assert own == (list(needed) if each.command else []), each.name
        assert bool(each.command) is each.queued


@pytest.mark.parametrize(
    ("flag", "methods", "having"),
    [
        ("requeues", ["requeue"], ["slurm", "sge"]),
        ("allocation_variables", ["allocation"], ["slurm", "pbs", "sge"]),
        ("step_starter", ["start_tasks", "step", "step_environment"], ["slurm"]),
    ],
)
def test_what_a_scheduler_says_that_it_can_do_it_does(flag: str, methods: list[str], having: list[str]) -> None:
    for each in registry.schedulers():
        own = [name for name in methods if getattr(type(each), name) is not getattr(Scheduler, name)]
        assert own == (methods if getattr(each, flag) else []), each.name
    assert [each.name for each in registry.schedulers() if getattr(each, flag)] == having


@pytest.mark.parametrize(("name", "other"), [("slurm", "pbs"), ("pbs", "slurm"), ("sge", "pbs")])
def test_one_scheduler_is_loaded_to_ask_it_and_its_diagnosis_when_it_is_asked(name: str, other: str) -> None:
    program = f"""
import importlib, sys
from launcher.diagnose import advice
from launcher.cli import why
from launcher.schedulers import registry
registry.scheduler({name!r})
print(*(part for part in {PARTS} if "launcher.schedulers.{name}." + part in sys.modules))
for part in {PARTS}:
    importlib.import_module("launcher.schedulers.{name}." + part)
print(*(module for module in sys.modules if module.startswith("launcher.schedulers.{other}")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n"
