"""Hugging Face's Trainer. Accelerate, on which it is built, accepts no backends but those that it lists
(``torch_compile_backend="reformer"`` is an error), so the model is compiled before the Trainer gets it."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import torch_reformer


def main():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(vocab_size=100, problem_type="single_label_classification", **sizes)  # or else found at step 1
    model = BertForSequenceClassification(config)
    fusion = torch_reformer.fuse(model)
    tokens = torch.randint(100, (64, 16))
    examples = [{"input_ids": each, "labels": each[0] % 2} for each in tokens]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=16, per_device_train_batch_size=16, learning_rate=2e-3, logging_steps=1, report_to=[],
            use_cpu=not torch.cuda.is_available(), disable_tqdm=True, save_strategy="no",
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=examples)
        trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(fusion.reports)}")


if __name__ == "__main__":
    main()
