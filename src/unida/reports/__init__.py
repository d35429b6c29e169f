"""Reports: one HTML file that shows what a run, or a grid of runs, gave. It needs no network."""
