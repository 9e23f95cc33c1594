"""Triton kernels over pages of raw K and V. They see integers and tensors, never hashes."""
