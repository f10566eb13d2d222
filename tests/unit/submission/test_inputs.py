"""What a workload reads is found on the login node, once for all points of a sweep that want the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.config.schema import Config, DDPMnist, FSDPLm
from launcher.errors import ConfigError
from launcher.submission.prepare import Inputs
from tests.unit.plans import hook_of, make_config
from workloads import image_data, text_data


def classifier(**keys: Any) -> Config:
    return make_config(
        workload=DDPMnist("mnist", "a:b", seed=0, hook=hook_of("ddp_mnist"), **{"dataset": "digits", **keys})
    )


def language_model(**keys: Any) -> Config:
    return make_config(workload=FSDPLm("lm", "a:b", seed=0, hook=hook_of("fsdp_lm"), **keys))


def test_what_was_found_is_in_the_config() -> None:
    config, notes = Inputs().with_workload(classifier(dataset="auto"))
    found = image_data.find("auto")
    assert config == replace(
        classifier(), workload=replace(classifier().workload, dataset=found.name, data_dir=str(found.dir))
    )
    assert notes == (f"data set: {found.name}, {found.how}",)


def test_each_is_looked_for_once_and_each_point_keeps_its_own_values(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def counted(find: Any) -> Any:
        return lambda *arguments: asked.append(arguments) or find(*arguments)

    monkeypatch.setattr(image_data, "find", counted(image_data.find))
    monkeypatch.setattr(text_data, "find", counted(text_data.find))
    inputs = Inputs()
    for number in range(3):
        assert inputs.with_workload(classifier(lr=number + 1.0))[0].workload.lr == number + 1.0  # type: ignore[attr-defined]
        assert inputs.with_workload(language_model(lr=number + 1.0))[0].workload.lr == number + 1.0  # type: ignore[attr-defined]
    assert asked == [("digits", None), ("shakespeare",)]
    Inputs().with_workload(classifier())  # another submission looks again
    assert asked[2:] == [("digits", None)]


def test_a_point_that_does_not_go_with_the_text_is_refused_after_one_that_does(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a" * 1000)
    inputs = Inputs()
    inputs.with_workload(language_model(text=str(tmp_path / "text.txt"), context=16, batch_size=4))
    with pytest.raises(ConfigError, match="context=800"):
        inputs.with_workload(language_model(text=str(tmp_path / "text.txt"), context=800, batch_size=4))


def test_what_is_not_there_is_told_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workload\.dataset=mnist: .* is not on this machine"):
        Inputs().with_workload(classifier(dataset="mnist", data_dir=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"workload\.text=.*nowhere"):
        Inputs().with_workload(language_model(text=str(tmp_path / "nowhere")))


def test_other_workloads_read_nothing() -> None:
    assert Inputs().with_workload(make_config()) == (make_config(), ())
