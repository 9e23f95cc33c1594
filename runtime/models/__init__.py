"""Models: configuration, weights, tokenizer, identity and the registry of a home."""
