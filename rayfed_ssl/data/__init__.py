"""Images: sources, the pixel store, partitions over clients, tasks, and augmentation."""
