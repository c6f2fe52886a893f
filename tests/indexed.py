"""`Items`: a collection as the data sets of torch are."""


class Items:
    """Length and items, and no end of its own, like data sets of torch."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index % len(self.items)]
