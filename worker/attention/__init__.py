"""Attention over slot pools: interchangeable backends behind one Protocol."""
