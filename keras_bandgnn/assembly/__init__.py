"""Arrays of plans and of receptive-field schedules, laid out for supergraphs."""
