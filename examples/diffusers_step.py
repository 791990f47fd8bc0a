"""The training step of a diffusion model of Hugging Face's diffusers, as in its ``train_unconditional.py``."""

import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch.nn import functional as F

import torch_reformer


def main():
    torch.manual_seed(0)
    model = UNet2DModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    fusion = torch_reformer.fuse(model)
    scheduler = DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    images = torch.rand(8, 3, 16, 16) * 2 - 1
    losses = []
    for _ in range(12):
        noise, times = torch.randn_like(images), torch.randint(100, (8,))
        predicted = model(scheduler.add_noise(images, noise, times), times).sample
        loss = F.mse_loss(predicted, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(fusion.reports)}")


if __name__ == "__main__":
    main()
