"""What schedulers can tell of their jobs and sites, and what a command loads to ask one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launcher.schedulers import registry
from launcher.schedulers.base import ChecksItself, DescribesSite, ExplainsPending, RemembersJobs

PARTS = ("pending", "limits", "capacity")


@pytest.mark.parametrize("ability", [ExplainsPending, RemembersJobs, ChecksItself, DescribesSite])
def test_who_can_tell_what_is_a_matter_of_type(ability: type) -> None:
    assert [each.name for each in registry.schedulers() if isinstance(each, ability)] == ["slurm", "pbs", "sge"]


@pytest.mark.parametrize(("name", "other"), [("slurm", "pbs"), ("pbs", "slurm"), ("sge", "pbs")])
def test_one_scheduler_is_loaded_to_ask_it_and_its_diagnosis_when_it_is_asked(name: str, other: str) -> None:
    program = f"""
import importlib, sys
from launcher.diagnose.post_mortem import findings
from launcher.diagnose import why
from launcher.schedulers import registry
registry.scheduler({name!r})
print(*(part for part in {PARTS} if "launcher.schedulers.{name}." + part in sys.modules))
for part in {PARTS}:
    importlib.import_module("launcher.schedulers.{name}." + part)
print(*(module for module in sys.modules if module.startswith("launcher.schedulers.{other}")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n"
