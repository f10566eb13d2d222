"""Records of points that are made without Hydra are those that the submitter would have made with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose_points import space_of
from launcher.config.search_space import combination, overrides, size
from launcher.errors import ConfigError
from launcher.search.point_template import record_of, template_of


def composed(values: dict[str, str], name: str) -> dict[str, Any]:
    """A config of four keys, of which others are made."""
    lr, seed, kind = float(values["lr"]), int(values["seed"]), values["kind"]
    section = {"conv": {"kind": "conv", "width": 8}, "linear": {"kind": "linear"}}[kind]
    return {
        "plan": {
            "run_id": name, "run_dir": f"/runs/{name}", "checkpoint": {"dir": f"/runs/{name}/checkpoints"},
            "workload": {"params": {"lr": lr, "seed": seed, "model": section}}, "nodes": 1,
        },
        "config": {"seed": seed, "workload": {"lr": lr, "seed": seed, "model": section}, "note": f"a {kind} model"},
    }  # fmt: skip


def template(space: dict[str, Any], make: Any = composed) -> dict[str, Any]:
    first = {key: each.ends()[0] for key, each in space.items()}
    others = {
        key: {text: make({**first, key: text}, "s/0") for text in each.ends()} for key, each in space.items()
    }  # fmt: skip
    found = template_of(make(first, "s/0"), make(first, "s/1"), others, space, ("s/0", "s/1"))
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def test_every_point_has_the_record_that_it_would_have_been_composed_with() -> None:
    space, _ = space_of(["lr=range(0.1,0.5,0.1)", "seed=range(3,9,2)", "kind=conv,linear"])
    made = template(space)
    for number in range(size(space) or 0):
        values = combination(space, number)
        record = record_of(made, f"s/{number}", overrides(values, ()))
        assert record.pop("overrides") == list(overrides(values, ()))
        assert record == composed(values, f"s/{number}")
    assert size(space) == 24


def test_whole_numbers_stay_whole_and_others_do_not() -> None:
    space, _ = space_of(["lr=interval(1,2)", "seed=1,2", "kind=conv,linear"])
    record = record_of(template(space), "s/7", ("lr=1.5", "seed=2", "kind=conv"))
    assert record["plan"]["workload"]["params"] == {"lr": 1.5, "seed": 2, "model": {"kind": "conv", "width": 8}}
    assert isinstance(record["config"]["seed"], int)


def test_a_number_within_a_text_is_refused_and_choices_are_not() -> None:
    def make(values: dict[str, str], name: str) -> dict[str, Any]:
        return {"plan": {"name": f"lr-{values['lr']}-x", "run_dir": name}}

    with pytest.raises(ConfigError, match=r"name is made of lr.*a list of values"):
        template(space_of(["lr=interval(0,1)"])[0], make)
    made = template(space_of(["lr=0.1,0.2"])[0], make)
    assert record_of(made, "s/3", ("lr=0.2",))["plan"] == {"name": "lr-0.2-x", "run_dir": "s/3"}


def test_options_of_a_script_are_searched() -> None:
    """As `workload.flags.lr` and `workload.overrides.model.width` make them."""

    def make(values: dict[str, str], name: str) -> dict[str, Any]:
        lr, width = float(values["lr"]), int(values["width"])
        more = ["--nesterov"] if values["more"] == "yes" else []
        return {"plan": {"args": ["--lr", str(lr), f"model.width={width}"], "run_dir": name, "more": more}}

    made = template(space_of(["lr=tag(log,interval(1e-5,1))", "width=range(1,65)", "more=yes,no"])[0], make)
    for lr, width, more in (("0.000123", "7", "no"), ("3e-05", "64", "yes")):
        plan = record_of(made, "s/3", (f"lr={lr}", f"width={width}", f"more={more}"))["plan"]
        assert plan == {
            "args": ["--lr", lr, f"model.width={width}"], "run_dir": "s/3",
            "more": ["--nesterov"] if more == "yes" else [],
        }  # fmt: skip


def test_a_value_that_depends_on_two_keys_is_refused() -> None:
    def make(values: dict[str, str], name: str) -> dict[str, Any]:
        return {"plan": {"name": f"{values['a']}-{values['b']}", "run_dir": name}}

    with pytest.raises(ConfigError, match="name depends on a and on b"):
        template(space_of(["a=1,2", "b=1,2"])[0], make)


def test_each_point_has_its_own_folder_whatever_else_is_in_its_name() -> None:
    def make(values: dict[str, str], name: str) -> dict[str, Any]:
        args = ["--out", f"/ck/{name}", *(["--fast"] if values["fast"] == "yes" else [])]
        folder = f"/ck/{name}-lr{float(values['lr'])}"
        return {"plan": {"args": args, "dir": folder, "title": f"{name} {values['fast']}"}}

    for grid in (["lr=interval(0.1,0.9)", "fast=yes,no"], ["fast=no,yes", "lr=interval(0.1,0.9)"]):
        made = template(space_of(grid)[0], make)
        for fast in ("yes", "no"):
            plan = record_of(made, "s/7", ("lr=0.5", f"fast={fast}"))["plan"]
            assert plan == make({"lr": "0.5", "fast": fast}, "s/7")["plan"]


def test_a_list_whose_length_depends_on_one_key_has_no_items_of_another() -> None:
    def make(values: dict[str, str], name: str) -> dict[str, Any]:
        args = ["--lr", values["lr"], *(["--fast"] if values["fast"] == "yes" else [])]
        return {"plan": {"args": args, "run_dir": name}}

    for grid in (["lr=interval(0,1)", "fast=yes,no"], ["fast=no,yes", "lr=interval(0,1)"]):
        with pytest.raises(ConfigError, match=r"args(\.\d)? depends on \w+ and on \w+"):
            template(space_of(grid)[0], make)


def test_what_differs_between_points_follows_from_their_ids() -> None:
    with pytest.raises(ConfigError, match="port is another one for each point"):
        template(space_of(["a=1,2"])[0], lambda _, name: {"plan": {"run_dir": name, "port": 7000 + int(name[-1])}})


def test_the_template_is_not_changed(tmp_path: Path) -> None:
    space, _ = space_of(["lr=0.1,0.2", "seed=1,2", "kind=conv,linear"])
    made = template(space)
    before = json.dumps(made)
    record_of(made, "s/1", ("lr=0.2", "seed=2", "kind=linear"))
    assert json.dumps(made) == before
