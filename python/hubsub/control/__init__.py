"""Decisions of a running node, separate from their effects."""
