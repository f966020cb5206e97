"""Transformers' Trainer on hvd_ext: the losses and weights are those of Gloo.

Run it: torchrun --nproc-per-node 2 examples/frameworks/with_transformers.py
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import hvd_ext.c10d

hvd_ext.c10d.install()  # before TrainingArguments makes the process group

torch.manual_seed(1)
network = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
texts = [{"input_ids": words, "labels": words} for words in torch.randint(0, 64, (128, 16))]
with tempfile.TemporaryDirectory() as folder:
    asked = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=network, args=asked, train_dataset=texts, eval_dataset=texts[:32])
    trainer.train()
    found = trainer.evaluate()
if trainer.is_world_process_zero():
    print(f"loss {found['eval_loss']:.6f}")
torch.distributed.destroy_process_group()
