"""Images: sources, the pixel store, partitions over clients, tasks, and augmentation.

``images`` defines what a data set is for all other code, ``sources`` makes one from a ``data:`` block, ``partition``
deals its images to clients. ``sources`` joins three packages: ``readers`` lists the images of each kind of source,
``decoding`` turns them into pixels, ``pixels`` keeps the pixels.

The modules that third-party sources and partitions import (``images``, ``source_notes``, ``holdout``, ``sources``,
``partition_base``, ``partition_rules``) keep their names: run folders hold copies of such files, and a resumed run
imports them.
"""
