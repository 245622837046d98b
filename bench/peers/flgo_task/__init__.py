"""The work as a benchmark of flgo, whose pictures are transformed one at a time."""
