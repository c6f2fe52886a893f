"""Public data sets: where their files are, how they are read, one name for each."""
