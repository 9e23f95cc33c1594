"""Attention over the rotated copy of a sequence. Kernels see integers and tensors, never hashes."""
