"""The graph compiler behind ``torch.compile(model, backend="reformer")``."""
