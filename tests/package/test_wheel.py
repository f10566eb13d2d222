"""The wheel, made from the source distribution and used where no checkout is in sight."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.launch import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and with the wheel that was made from it."""
    folder = tmp_path_factory.mktemp("dist")
    make = "import sys; from hatchling.build import build_sdist, build_wheel as w; {}(sys.argv[1])"
    _python(ROOT, "-c", make.format("build_sdist"), str(folder))
    shutil.unpack_archive(next(folder.glob("*.tar.gz")), folder)
    _python(next(folder.glob("launcher-*/")), "-c", make.format("w"), str(folder))
    return folder


@pytest.fixture(scope="module")
def site(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed."""
    folder = tmp_path_factory.mktemp("site")
    wheel = next(built.glob("*.whl"))
    _python(folder, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", f"--target={folder}", str(wheel))
    return folder


def test_it_holds_what_runs_need_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    data = {"workloads/digits/train-images-idx3-ubyte.gz", "workloads/py.typed", "launcher/py.typed"}
    resources = {"launcher/conf/config.yaml", "launcher/templates/sbatch.sh.j2", "launcher/job/begin.sh"}
    resources |= {f"launcher/cli/complete.{shell}" for shell in ("bash", "fish", "zsh")}
    assert {*resources, *data} <= names
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"launcher", "workloads", "hydra_plugins"}


@pytest.mark.ci
def test_a_run_works_in_another_folder(site: Path, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")}
    environ |= {"PYTHONPATH": str(site), "LAUNCHER_RUNS_DIR": str(tmp_path / "runs"), "HOME": str(tmp_path)}
    where = _python(tmp_path, "-c", "import launcher; print(launcher.__file__)", **environ)
    assert where.strip() == str(site / "launcher" / "__init__.py")
    words = ["workload=ddp_mnist", "workload.dataset=digits", "workload.epochs=1", "procs_per_node=2"]
    for command in ([str(site / "bin" / "launcher")], [sys.executable, "-m", "launcher"]):
        said = subprocess.run(
            [*command, *words, "dry_run=true"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
        ).stdout
        assert str(ROOT) not in said.replace(sys.prefix, "")
    assert "accuracy" in _python(tmp_path, "-m", "launcher", *words, **environ)


def _python(folder: Path, *words: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ or None, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
