"""Batches of an epoch: order, building ahead, data sets of backends."""
