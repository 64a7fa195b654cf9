"""Kernels in C++ behind a plain C interface: attention over slots, linear layers, whole decoders. No torch here."""
