"""Keeping a home in order: room under a cap, garbage, checks, repair, and the look through it in the background.

This stands above `transfer`, because what is lost is fetched, and `store` knows nothing of it.
"""
