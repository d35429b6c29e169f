"""Grids of runs: every table by one command."""
