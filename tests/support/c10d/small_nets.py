"""A ResNet, a GPT and a BERT of a few thousand parameters, and samples that they can learn."""

from __future__ import annotations

from typing import Any

import torch

WORDS, LENGTH = 32, 12


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Texts in which each token follows from the one before it."""

    def __init__(self, count: int) -> None:
        starts = torch.randint(0, WORDS, (count, 1))
        self.texts = (starts + torch.arange(LENGTH)) % WORDS

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.texts[index], "labels": self.texts[index]}


def gpt() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=16,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def pictures(count: int) -> torch.utils.data.Dataset[Any]:
    """Pictures `(3, 8, 8)` of four kinds, and their kinds."""
    kinds = torch.arange(count) % 4
    return torch.utils.data.TensorDataset(
        torch.randn(count, 3, 8, 8) + kinds.view(-1, 1, 1, 1), kinds
    )


class ResNet(torch.nn.Module):
    """Two residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Conv2d(8, 8, 3, padding=1),
                torch.nn.GroupNorm(2, 8),
                torch.nn.ReLU(),
                torch.nn.Conv2d(8, 8, 3, padding=1),
            )
            for _ in range(2)
        )
        self.head = torch.nn.Linear(8, 4)

    def forward(self, pictures: torch.Tensor) -> Any:
        x = self.stem(pictures)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(x.mean((2, 3)))
