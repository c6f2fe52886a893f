"""Python source of many packages: collected, without duplicates, in splits."""
