"""A training function with the Hugging Face Trainer: a small GPT-2 over bytes, without any privacy.

    workbench audit --train docs/examples/train_huggingface_trainer.py:train --corpus clinical \
        --candidates 200 --claim "epsilon=1,delta=1e-5,adjacency=add-remove"

It returns the pair (model, tokenizer); the bench computes the losses. Nothing is downloaded: the weights
start at random and the tokens are bytes.
"""

import tempfile

import torch
from transformers import (
    ByT5Tokenizer,
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

MAX_LENGTH = 256


def train(records, seed):
    """Train a language model on the records' text.

    Args:
        records: Dicts with the keys `id`, `text`, `label`, `image`.
        seed: Decides initial weights and order; different in every run.

    Returns:
        The model and its tokenizer.
    """
    tokenizer = ByT5Tokenizer(extra_ids=0, model_max_length=MAX_LENGTH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(tokenizer),
                n_positions=MAX_LENGTH,
                n_embd=64,
                n_layer=2,
                n_head=4,
                bos_token_id=tokenizer.eos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                model=model,
                args=TrainingArguments(
                    output_dir=folder,
                    seed=seed,
                    max_steps=300,
                    per_device_train_batch_size=16,
                    learning_rate=5e-3,
                    save_strategy="no",
                    logging_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                    use_cpu=True,
                ),
                train_dataset=[tokenizer(record["text"], truncation=True) for record in records],
                data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
            )
            trainer.train()
    return model, tokenizer
