"""Loads a text as tokens, and cuts it into windows: the samples of a language model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads import texts


@dataclass(frozen=True)
class Part:
    """The training or validation part of a text, cut into windows: the samples of a language model.

    Window i has the tokens from i * context to (i + 1) * context, both included. Its inputs are all but the last one,
    its targets all but the first one, so two windows share no target.
    """

    tokens: Tensor  # the text, uint8 [length], on one device
    context: int  # number of inputs of a window

    def __len__(self) -> int:
        """Returns the number of windows."""
        return texts.windows(len(self.tokens), self.context)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the inputs and targets of some windows, both int64 [n, context].

        chosen: indices of the windows, int64 [n].
        """
        offsets = torch.arange(self.context + 1, device=chosen.device)
        windows = self.tokens[chosen.unsqueeze(1) * self.context + offsets].long()
        return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True)
class Corpus:
    """A text, divided into its training and validation parts."""

    train: Part  # the training part
    validation: Part  # the validation part
    sha256: str  # SHA-256 of the whole text


def load(text: texts.Text, context: int, device: torch.device | str = "cpu") -> Corpus:
    """Reads a text onto a device, and divides it.

    text: the text that `texts.find` returned.
    Raises TextError: the text cannot be read, or has changed since it was found.
    """
    content = texts.read(text)
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    cut = texts.split(len(content), context)
    return Corpus(Part(tokens[:cut], context), Part(tokens[cut:], context), hashlib.sha256(content).hexdigest())


def printable(text: bytes) -> str:
    """Returns a text for a terminal, with all unprintable characters but line breaks replaced."""
    decoded = text.decode("utf-8", errors="replace")
    return "".join(each if each == "\n" or each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in decoded)
