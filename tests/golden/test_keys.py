"""Every key of the composed config, with its type and default."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from launcher.config import profiles
from launcher.paths import resource
from launcher.submission.resume import register
from tests.golden.conftest import World
from tests.golden.golden import check

OWN = "workload."  # keys that each workload has of its own


def test_the_keys_are_what_they_were(world: World) -> None:
    found, clusters = {}, {}
    register()
    for path in sorted(resource("conf").glob("workload/*.yaml")):
        choice = f"workload={path.stem}"
        with initialize_config_dir(str(resource("conf")), version_base="1.3"):
            found[choice] = list(keys(compose("config", [choice])))
    common, *others = ([key for key in each if not key.startswith(OWN)] for each in found.values())
    assert all(each == common for each in others)
    for path in sorted(resource("conf").glob("cluster/*.yaml")):
        if path.stem in profiles.bases():
            with initialize_config_dir(str(resource("conf")), version_base="1.3"):
                own = keys(compose("config", ["workload=p2p", f"cluster={path.stem}"]))
            clusters[f"cluster={path.stem}"] = [key for key in own if key.startswith("cluster.") and key not in common]
    sections = {"every run": common, **clusters}
    sections |= {choice: [key for key in each if key.startswith(OWN)] for choice, each in found.items()}
    text = "\n".join(f"# {title}\n{''.join(f'{key}{chr(10)}' for key in each)}" for title, each in sections.items())
    check("keys.txt", text)


def keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yields a line for each key of a section: its dotted name, type, and default in the config."""
    for key in config:
        node: Any = config._get_node(key)
        kind = OmegaConf.get_type(node)
        if isinstance(node, DictConfig) and kind is not None and kind is not dict:
            yield from keys(node, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}: {kind_of(node)} = {value_of(node)}"


def kind_of(node: Any) -> str:
    """Returns the type of a key as the schema writes it; for an enum, its values."""
    kind = node._metadata.ref_type
    if isinstance(kind, type) and issubclass(kind, Enum):
        name = "|".join(str(each.value) for each in kind)
    else:
        name = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
    optional = node._metadata.optional and name != "Any"
    return f"{name} | None" if optional else name


def value_of(node: Any) -> str:
    value = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node._value()
    return repr(value.value if isinstance(value, Enum) else value)
