"""Which plan will be cheapest: cost model, calibration, estimate."""
