"""Loads a text as tokens, and cuts it into windows: the samples of a language model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads import texts


@dataclass(frozen=True)
class Part:
    """A part of a text, uint8 [length] on one device, cut into windows that share no target.

    Window i contains the tokens i x context to (i + 1) x context; the last one is only a target.
    """

    tokens: Tensor
    context: int

    def __len__(self) -> int:
        """The number of windows."""
        return texts.windows(len(self.tokens), self.context)

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and the tokens that follow them, both int64 [n, context], of the windows `chosen`, int64 [n]."""
        offsets = torch.arange(self.context + 1, device=chosen.device)
        windows = self.tokens[chosen.unsqueeze(1) * self.context + offsets].long()
        return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True)
class Corpus:
    """The training and validation parts of a text; `sha256` is that of the whole text."""

    train: Part
    validation: Part
    sha256: str


def load(text: texts.Text, context: int, device: torch.device | str = "cpu") -> Corpus:
    """Reads a text onto a device.

    Raises:
        TextError: it cannot be read, or has changed.
    """
    content = texts.read(text)
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    cut = texts.split(len(content), context)
    return Corpus(Part(tokens[:cut], context), Part(tokens[cut:], context), hashlib.sha256(content).hexdigest())


def printable(text: bytes) -> str:
    """The text for a terminal: keeps line breaks, and replaces other unprintable characters."""
    decoded = text.decode("utf-8", errors="replace")
    return "".join(each if each == "\n" or each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in decoded)
