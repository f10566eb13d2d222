"""The same by Hugging Face's Trainer and its parser of arguments."""

from dataclasses import dataclass

from samples import Samples
from torch import nn
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class DataArguments:
    data: str = ""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, inputs, labels):
        found = self.layer(inputs)
        return {"loss": (found - labels).square().mean(), "logits": found}


def main():
    arguments, data = HfArgumentParser((TrainingArguments, DataArguments)).parse_args_into_dataclasses()
    Trainer(Model(), arguments, train_dataset=Samples(data.data)).train()


if __name__ == "__main__":
    main()
