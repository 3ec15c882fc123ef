"""Encoders over flat tokens and their heads."""
