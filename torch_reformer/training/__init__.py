"""Whole training steps as one plan: :func:`torch_reformer.training_step`."""
