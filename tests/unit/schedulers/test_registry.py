"""Schedulers are found by name, ours and other people's."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from launcher.config import keys, scheduler_table
from launcher.errors import ConfigError
from launcher.schedulers import registry
from launcher.schedulers.base import Queue
from launcher.schedulers.registry import LocalScheduler


def forget() -> None:
    """Has the next look at entry points see those of now."""
    for each in (scheduler_table.entry_points_of, scheduler_table.settings_class, scheduler_table.cluster_class):
        each.cache_clear()
    keys.sections.cache_clear()
    registry.scheduler.cache_clear()


@pytest.mark.parametrize("name", registry.OURS)
def test_a_scheduler_is_found_by_its_name(name: str) -> None:
    assert registry.scheduler(name).name == name
    assert registry.scheduler(name) is registry.scheduler(name)


def test_who_takes_jobs_is_a_matter_of_type() -> None:
    assert [name for name in registry.OURS if isinstance(registry.scheduler(name), Queue)] == ["slurm", "pbs", "sge"]


def test_only_schedulers_with_commands_on_path_are_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(registry, "load", lambda place: (loaded.append(place), scheduler_table.load(place))[1])
    monkeypatch.setenv("PATH", str(tmp_path))
    forget()
    assert registry.queues_here() == {}
    assert loaded == []
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\n")
    squeue.chmod(0o755)
    assert [*registry.queues_here()] == ["slurm"]
    assert loaded == [registry.OURS["slurm"].scheduler]


def test_ours_are_found_without_a_look_at_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(group: str) -> None:
        raise AssertionError(group)

    monkeypatch.setattr("importlib.metadata.entry_points", look)
    monkeypatch.setattr("shutil.which", lambda command: f"/usr/bin/{command}")
    forget()
    for name in ("slurm", "pbs", "sge"):
        monkeypatch.setattr(type(registry.scheduler(name)), "here", lambda _: True)
    assert [*registry.queues_here()] == ["slurm", "pbs", "sge"]
    assert [*registry.queues_here(["pbs"])] == ["slurm", "pbs", "sge"]


def test_the_queue_of_another_package_is_here_when_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("third", "tests.fakes.third_scheduler.scheduler:ThirdScheduler", scheduler_table.SCHEDULERS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == point.group else [])
    forget()
    try:
        monkeypatch.setattr(type(registry.scheduler("third")), "here", lambda _: True)
        assert "third" not in registry.queues_here()
        assert "third" in registry.queues_here(["third"])
    finally:
        forget()


class Theirs(LocalScheduler):
    """Somebody else's."""

    name = title = "theirs"


def test_another_package_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", f"{__name__}:Theirs", scheduler_table.SCHEDULERS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == point.group else [])
    forget()
    try:
        assert isinstance(registry.scheduler("theirs"), Theirs)
        assert "theirs" in registry.names()
    finally:
        forget()


def test_one_that_cannot_be_loaded_is_named_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", "no_such_module:Theirs", scheduler_table.SCHEDULERS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == point.group else [])
    forget()
    try:
        assert [each.name for each in registry.schedulers()] == [*registry.OURS]
        with pytest.raises(ConfigError, match="theirs: no_such_module:Theirs, an entry point of another"):
            registry.scheduler("theirs")
    finally:
        forget()


def test_an_unknown_one_is_refused_with_what_could_be_meant() -> None:
    with pytest.raises(ConfigError, match=r"cluster.scheduler=slrm: .* Did you mean slurm\? Known: local, slurm, pbs"):
        registry.scheduler("slrm")
