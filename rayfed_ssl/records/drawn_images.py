"""What a comparison's intervals leave out: that other test images would have given other accuracies.

An interval over seeds says how far another seed may move a difference. All seeds may share their test images, and then
no number of seeds shows what these images did to it. How much that is of a difference depends on how often two encoders
are right on the same image, which no run folder holds; of a single accuracy it is known, and is said.
"""

from __future__ import annotations

from rayfed_ssl.records.comparison import Comparison, Row
from rayfed_ssl.records.intervals import counts_images, wilson


def test_images(row: Row, measure: str) -> int | None:
    """The fewest test images that an accuracy of the row's runs was measured on; None where a run did not say."""
    if not counts_images(measure):
        return None
    known = [run.task_test_images if measure == "task" else run.test_images for run in row.runs.values()]
    return None if not known or None in known else min(count for count in known if count is not None)


def not_counted(comparison: Comparison) -> list[str]:
    """The sentence below the table, with the 95% interval (Wilson 1927) that the number of test images allows for the
    first row's main accuracy; none where no accuracy was measured.
    """
    if (main := comparison.main) is None:
        return []
    told = "Intervals count seeds, not which test images were drawn"
    images, found = test_images(comparison.first, main), comparison.first.spread(main)
    if images is None or found is None or not 0 <= found.mean <= 1:
        return [f"{told}; how many there are is not recorded."]
    low, high = wilson(found.mean, images)
    return [
        f"{told}: one of {images:,} is {1 / images:.2g} of an accuracy, and with others {found.mean:.3f} of {main} may "
        f"be {low:.3f} to {high:.3f} (95%). On the same images part of that cancels in a difference, but not all."
    ]
