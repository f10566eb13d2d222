"""The checks of a workload of one's own, and a data set that `launcher data` fetches: see docs/your-code.md."""

import dataclasses
import urllib.request
from pathlib import Path
from typing import NamedTuple

from launcher import ConfigError, WorkloadHook


class Found(NamedTuple):
    dir: Path
    how: str


class Names:
    """A data set of one file, which `launcher data` lists, and `launcher data fetch names` gets."""

    name = "names"
    file = "names.txt"
    mirrors = ("https://raw.githubusercontent.com/karpathy/makemore/master",)

    def find(self, data_dir):
        folder = (data_dir or Path.home() / "data") / self.name
        return Found(folder, "in the data folder") if (folder / self.file).exists() else None

    def fetch(self, data_dir, mirrors, progress):
        folder = (data_dir or Path.home() / "data") / self.name
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{self.file}.part"
        url = f"{(mirrors or self.mirrors)[0]}/{self.file}"
        urllib.request.urlretrieve(url, part, lambda n, size, all: progress(self.file, min(n * size, all), all))
        part.replace(folder / self.file)
        return Found(folder, "just fetched")


class Checks(WorkloadHook):
    def prepare(self, config):
        found = Names().find(None)
        if found is None:
            raise ConfigError("there are no names here yet: `launcher data fetch names` gets them")
        kwargs = {"folder": str(found.dir), **config.workload.kwargs}
        return dataclasses.replace(config.workload, kwargs=kwargs), [f"names: {found.dir}"]

    def check(self, plan):
        batch = plan.workload.params["kwargs"].get("batch_size", 64)
        if batch % plan.world_size:
            raise ConfigError(
                f"workload.kwargs.batch_size={batch} cannot be shared out to {plan.world_size} ranks: "
                f"use a multiple of {plan.world_size}"
            )

    def data_sets(self):
        return [Names()]
