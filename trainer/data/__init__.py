"""What the loader is made of: the order of an epoch, its reading, batches and their masks."""
