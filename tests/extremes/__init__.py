"""Generates valid commands and packets with boundary lengths and numbers, as sequences that a seed
determines."""
