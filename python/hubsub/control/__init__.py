"""Decisions of a running node, apart from their effects."""
