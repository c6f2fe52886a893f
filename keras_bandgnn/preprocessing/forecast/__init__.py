"""Which batcher will train fastest: measured steps and counted shapes."""
