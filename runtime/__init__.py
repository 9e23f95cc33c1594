"""Tensors and residency: models, canonical compute, the paged pool, live conversations."""
