"""The same as an app of Hydra."""

from dataclasses import dataclass

import hydra
import torch.distributed as dist
from hydra.core.config_store import ConfigStore
from samples import Samples
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    epochs: int = 2
    data: str = ""


ConfigStore.instance().store("config", Config)


@hydra.main(version_base=None, config_name="config")
def main(config):
    dist.init_process_group("gloo")
    data = Samples(config.data)
    model = DistributedDataParallel(nn.Linear(8, 1))
    for _ in range(config.epochs):
        for batch in DataLoader(data, 4, sampler=DistributedSampler(data)):
            (model(batch["inputs"]) - batch["labels"]).square().mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
