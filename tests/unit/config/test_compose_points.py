"""Configs that are made from others are those that Hydra composes, whatever came before them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.compose import Composed, typed
from launcher.config.compose_points import Composer, affected
from launcher.config.errors import explain
from launcher.errors import LauncherError
from launcher.paths import resource
from launcher.submission import resume

FAILURES = (HydraException, OmegaConfBaseException, LauncherError)
Point = tuple[str, ...]

# Points of many kinds. Hydra composes each once; the property below has them follow one another in all orders.
POINTS: list[Point] = [
    *(("workload=collective", f"seed={seed}", f"nodes={nodes}") for seed in (1, 2) for nodes in (1, 2)),
    ("workload=collective", "seed=two", "nodes=1"),
    ("workload=collective", "seed='5'", "nodes=null"),
    ("workload=collective", "seed=???", "nodes=1"),
    ("workload=collective", "nodes=1", "seed=1"),
    ("workload=collective", "seed=1", "seed=2"),
    ("workload=collective", "seed=2", "seed=1"),
    ("workload=collective", "name=one", "seed=1"),
    ("workload=collective", "name=x-${seed}", "seed=1"),
    ("workload=collective", "name=x-${seed}", "seed=2"),
    ("workload=collective", "name='a b, c=d'", "seed=2"),
    ("workload=collective", "name=${no.such}", "seed=2"),
    ("workload=collective", "name=x", "seed=${nodes}"),
    ("workload=collective", "workload.backend=gloo", "workload.op=all"),
    ("workload=collective", "workload.backend=nccl", "workload.op=[all_reduce,broadcast]"),
    ("workload=collective", "workload.backend=tcp", "workload.op=all"),
    ("workload=collective", "workload.backend=gloo", "workload.op=null"),
    ("workload=collective", "workload.backend=gloo", "workload.op=[]"),
    ("workload=collective", "workload.backend=gloo", "workload.op={a: 1}"),
    ("workload=collective", "workload.backend=gloo", "workload.op={b: 1}"),
    ("workload=collective", "workload.groups=[world]", "tolerance=0.1"),
    ("workload=collective", "workload.groups=['${name}',node]", "tolerance=1"),
    ("workload=collective", "workload.groups=stride", "tolerance=1e-3"),
    ("workload=p2p", "workload.pair=[0,1]"),
    ("workload=p2p", "workload.pair=null"),
    ("workload=p2p", "workload.pair=[1,2]"),
    ("workload=p2p", "workload.pair=[1,x]"),
    ("workload=ddp_mnist", "workload.lr=0.1"),
    ("workload=ddp_mnist", "workload.lr=1"),
    ("workload=ddp_mnist", "workload.op=all"),
    ("workload=nosuch", "workload.op=all"),
    ("workload=p2p", "cluster=slurm", "cluster.limits.nodes=2", "cluster.limits={nodes: 5}"),
    ("workload=p2p", "cluster=slurm", "cluster.limits.nodes=3", "cluster.limits={nodes: 5}"),
    ("workload=p2p", "cluster=slurm", "cluster.limits={nodes: 5}", "cluster.limits.nodes=2"),
    ("workload=p2p", "cluster=slurm", "cluster.limits={nodes: 5}", "cluster.limits.nodes=3"),
    ("workload=p2p", "cluster=slurm", "cluster.limits=null", "cluster.name=x"),
    ("workload=p2p", "cluster=pbs", "+cluster.environment.X=1", "cluster.setup=['a b',c]"),
    ("workload=p2p", "cluster=pbs", "+cluster.environment.X=2", "cluster.setup=[]"),
    ("workload=p2p", "launch=tasks", "++launch.grace=5", "wait=true"),
    ("workload=p2p", "launch=tasks", "++launch.grace=6", "wait=null"),
    ("workload=program", "++workload.flags.lr=0.1", "workload.args=['--lr','a=b']"),
    ("workload=program", "++workload.flags.lr=1", "workload.args=['${x}']"),
    ("workload=program", "++workload.flags.lr={a: 1}", "workload.args=['\\${x}']"),
    ("workload=program", "++workload.overrides.model.lr=1", "nodes=2"),
    ("workload=program", "++workload.overrides.model.lr='a,b'", "nodes=2"),
    ("workload=p2p", "+nod=2"),
    ("workload=p2p", "~workload.pair"),
    ("workload=p2p", "~cluster"),
    ("seed=1",),
]  # fmt: skip
# What random points are made of.
WORDS = [
    "seed=1", "seed=2", "seed=x", "nodes=1", "nodes=2", "tolerance=0.5", "tolerance=.1", "mem=null", "mem=4G",
    "name=a", "name='b c'", "name=x-${seed}", "name=${workload.name}-${nodes}", "cluster.limits.nodes=1",
    "cluster.limits.nodes=2", "cluster.limits={nodes: 7}", "+cluster.environment.X=1", "+cluster.environment.X=2",
    "cluster.environment={X: 3}", "cluster.environment.X=4", "cluster.setup=[a]", "cluster.setup=['${name}']",
    "workload.backend=gloo", "workload.backend=mpi", "workload.sizes=[1K,'2M']", "workload.sizes=8:1G:2", "time=5",
    "workload.sizes=${mem}", "sweep.objective=[a,b]", "sweep.objective=a", "sweep.objective={c: 1}", "cluster=slurm",
    "cluster=pbs", "launch=tasks", "workload.seed=3", "workload.seed=${nodes}", "checkpoint.best=a",
    "checkpoint={keep: 3}", "++cluster.environment.X=5", "++nodes=4",
    "checkpoint.keep=4", "~cluster.environment", "preflight=yes", "runs_dir=/a", "runs_dir=???", "baseline=7",
]  # fmt: skip


class Hydra:
    """Hydra's own compositions, each made once."""

    def __init__(self) -> None:
        self.calls = 0
        self._made: dict[Point, DictConfig | Exception] = {}
        self._expected: dict[Point, tuple[str, str] | str] = {}

    def __call__(self, overrides: Sequence[str], number: int = 0) -> DictConfig:
        self.calls += 1
        key = tuple(overrides)
        if key not in self._made:
            try:
                self._made[key] = compose("config", list(overrides))
            except FAILURES as error:
                self._made[key] = error
        made = self._made[key]
        if isinstance(made, Exception):
            raise made
        return copy.deepcopy(made)

    def expected(self, point: Point) -> tuple[str, str] | str:
        """What Hydra makes of a point: the config's dataclasses and its plain values, or the words of an error."""
        if point not in self._expected:
            try:
                config = self(point)
                dataclasses = typed(config)
                plain: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
                self._expected[point] = shown(Composed(dataclasses, plain))
            except FAILURES as error:
                self._expected[point] = words(error, point)
        return self._expected[point]


def shown(composed: Composed) -> tuple[str, str]:
    """In a form in which 1, 1.0 and True differ, as do a list and a list of omegaconf's."""
    return repr(composed.config), repr(_sorted(composed.resolved))


def _sorted(value: Any) -> Any:
    return {key: _sorted(value[key]) for key in sorted(value, key=str)} if isinstance(value, dict) else value


def words(error: Exception, point: Point) -> str:
    return str(error) if isinstance(error, LauncherError) else explain(error, list(point))


@pytest.fixture(scope="module")
def hydra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hydra]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path_factory.mktemp("config")))
        resolvers = {start: list(pairs) for start, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
        resume.register()
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(resource("conf")), version_base="1.3"):
            yield Hydra()
        yaml.SafeLoader.yaml_implicit_resolvers = resolvers


def same(hydra: Hydra, points: Sequence[Point]) -> None:
    """One composer gives for these points, in this order, what Hydra gives; what it gave does not change later."""
    composer, given_before = Composer(hydra), []
    for number, point in enumerate(points):
        expected = hydra.expected(point)
        try:
            composed = composer(list(point), number)
        except FAILURES as error:
            assert words(error, point) == expected, points[: number + 1]
            continue
        assert shown(composed) == expected, points[: number + 1]
        given_before.append((composed, expected))
    assert all(shown(composed) == expected for composed, expected in given_before), points


orders = st.lists(st.sampled_from(POINTS), max_size=15)


@settings(max_examples=6)
@given(points=orders)
def test_known_points_in_any_order(hydra: Hydra, points: list[Point]) -> None:
    same(hydra, points)


@pytest.mark.slow
@settings(max_examples=100)
@given(points=orders)
def test_known_points_in_a_hundred_orders(hydra: Hydra, points: list[Point]) -> None:
    same(hydra, points)


@st.composite
def similar_points(draw: st.DrawFn) -> list[Point]:
    """Points that have most words in common."""
    first = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
    points = [first]
    for _ in range(draw(st.integers(1, 4))):
        other = list(points[-1])
        place = draw(st.integers(0, len(other) - 1))
        key = other[place].partition("=")[0]
        alike = [word for word in WORDS if word.partition("=")[0] == key]
        other[place] = draw(st.sampled_from(alike if draw(st.integers(0, 9)) else WORDS))
        points.append(other)
    return [("workload=collective", *point) for point in points]


@settings(max_examples=3)
@given(points=similar_points())
def test_random_points(hydra: Hydra, points: list[Point]) -> None:
    same(hydra, points)


P2P, DDP = "workload=p2p", "workload=ddp_mnist"


@pytest.mark.parametrize(
    ("points", "calls"),
    [
        pytest.param([(P2P, f"seed={seed}") for seed in range(20)], 1, id="plain values"),
        pytest.param([(P2P, f"seed={a}", f"nodes={b}") for a in range(3) for b in (1, 2)], 1, id="two of them"),
        pytest.param([(P2P, f"workload.backend={name}") for name in ("gloo", "mpi", "gloo")], 1, id="an enum"),
        pytest.param([(P2P, "workload.pair=[0,1]"), (P2P, "workload.pair=[1,2]")], 1, id="a list"),
        pytest.param([(P2P, "seed=1"), (P2P, "seed=1")], 1, id="the same again"),
        pytest.param([(P2P, "seed=1"), (DDP, "seed=1"), (P2P, "seed=2"), (DDP, "seed=2")], 2, id="two workloads"),
        pytest.param([(P2P, "seed=1"), ("seed=1", P2P)], 2, id="another order"),
        pytest.param([(P2P, "name=x-${seed}"), (P2P, "name=y-${seed}")], 2, id="references"),
        pytest.param([(P2P, "name=x-${seed}", f"seed={seed}") for seed in (1, 2, 3)], 1, id="beside a reference"),
        pytest.param([(P2P, f"name={name}") for name in ("a", "b")], 1, id="in place of a reference"),
        pytest.param([(P2P, f"+cluster.environment.X={value}") for value in "ab"], 2, id="new keys"),
        pytest.param([("workload=program", f"++workload.flags.lr={a}") for a in (1, 2)], 1, id="keys that may be new"),
        pytest.param([(P2P, "seed=1"), (P2P, "seed=1", "nodes=2")], 2, id="more keys"),
        pytest.param([(P2P, "seed=1", "seed=2"), (P2P, "seed=1", "seed=2")], 2, id="one key twice"),
    ],
)
def test_hydra_is_asked_for_what_differs_in_more_than_values(hydra: Hydra, points: list[Point], calls: int) -> None:
    composer, before = Composer(hydra), hydra.calls
    for number, point in enumerate(points):
        composer(list(point), number)
    assert hydra.calls - before == calls


def test_what_is_made_of_hydras_own_settings_is_never_shared(hydra: Hydra) -> None:
    """They differ from point to point, and no override tells."""
    numbers: list[int] = []

    def by_hydra(overrides: Sequence[str], number: int) -> DictConfig:
        numbers.append(number)
        config = hydra(overrides)
        OmegaConf.update(config, "mem", f"{number}G")  # stands for what ${hydra:job.num} would have given
        config._set_flag("readonly", False)
        config.name = "${hydra:job.num}"
        OmegaConf.register_new_resolver("hydra", lambda key: f"job-{number}", replace=True)
        return config

    from hydra.core.utils import setup_globals

    try:
        composer = Composer(by_hydra)
        names = [composer([P2P, f"seed={seed}"], seed).config.name for seed in range(3)]
    finally:
        setup_globals()  # Hydra's own resolver
    assert (names, numbers) == (["job-0", "job-1", "job-2"], [0, 1, 2])


@pytest.mark.parametrize(
    ("changed", "references", "found"),
    [
        ({"seed"}, {"name": "x-${seed}"}, {"seed", "name"}),
        ({"seed"}, {"name": "${nodes}"}, {"seed"}),
        ({"seed"}, {"name": "${seeds}", "a": "${seed.b}"}, {"seed", "a"}),
        ({"a.b"}, {"name": "${a}", "other": "${a.c}"}, {"a.b", "name"}),
        ({"seed"}, {"a": "${b}", "b": "${c}-${seed}", "c": "${d}"}, {"seed", "a", "b"}),
        ({"seed"}, {"a": "${b}", "b": "${.c}", "d": "${x:1}", "e": "${f.${g}}"}, {"seed", "a", "b", "d", "e"}),
        ({"seed"}, {"a": "${b} ${x:}"}, {"seed", "a"}),
    ],
)
def test_what_is_read_again_when_keys_change(changed: set[str], references: dict[str, str], found: set[str]) -> None:
    assert affected(changed, references) == found
