"""What the network is fed: pixels, or the kept output of its frozen part."""
