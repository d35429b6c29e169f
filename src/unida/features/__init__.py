"""The network's input: pixels, or the kept output of its frozen part."""
