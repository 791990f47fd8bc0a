"""PEFT: adapters of low rank are added first, then the model is compiled. Gradients of frozen weights
are not computed."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import torch_reformer


def main():
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2))
    base.loss_type = "ForCausalLM"  # or else the model logs that it takes this one, which breaks the graph off
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
    fusion = torch_reformer.fuse(model)
    optimizer = torch.optim.AdamW((each for each in model.parameters() if each.requires_grad), lr=5e-2)
    tokens = torch.randint(128, (1, 32)).repeat(4, 1)
    losses = []
    for _ in range(20):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(fusion.reports)}")


if __name__ == "__main__":
    main()
