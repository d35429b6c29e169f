"""The studies of SPA's paper, each one command: `unida study NAME`."""
