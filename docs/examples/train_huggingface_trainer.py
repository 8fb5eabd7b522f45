"""A training function with the Hugging Face Trainer: a small GPT-2 is fine-tuned, without any privacy.

    workbench audit --train docs/examples/train_huggingface_trainer.py:train --corpus clinical \
        --candidates 200 --claim "epsilon=1,delta=1e-5,adjacency=add-remove"

It returns the pair (model, tokenizer); the bench computes the losses. The claim is false, and the audit
refutes it.
"""

import tempfile

import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from workbench.core import registry


def train(records, seed):
    """Fine-tune a pretrained language model on the records' text.

    Args:
        records: Dicts with the keys `id`, `text`, `label`, `image`.
        seed: Decides the order of the records; different in every run.

    Returns:
        The model and its tokenizer.
    """
    # The bench's own base model, which needs no download. Yours may be
    # AutoModelForCausalLM.from_pretrained(folder) and AutoTokenizer.from_pretrained(folder).
    base = registry.create("model", "tiny_gpt2", seed=0)
    model, tokenizer = base.module, base.tokenizer
    tokenizer.pad_token = tokenizer.eos_token
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                seed=seed,
                num_train_epochs=8,
                per_device_train_batch_size=4,
                learning_rate=3e-3,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=[tokenizer(record["text"], truncation=True, max_length=256) for record in records],
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )
        trainer.train()
    return model, tokenizer
