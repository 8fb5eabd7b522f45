"""Bounds of compositions by grids of losses and FFT; the engine of `workbench.accounting.certified`."""
