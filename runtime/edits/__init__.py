"""Edits of a conversation that say in a receipt what they did and whether it is exact."""
