"""What docs/results.md says of FLESD's, FedCA's, FedLinked's and FedFoA's claims, and of heads and steps."""

from __future__ import annotations

from collections.abc import Callable

import claims
import claims_tables as tables
import pytest

from tests.benchmarks.pages import ABOVE, BELOW, LEVEL, OPEN, RESULTS, stands
from tests.benchmarks.prose_claims import PROTOCOLS, Claim

FLESD, FEDCA, LINKED, FEDFOA = (Claim(name) for name in ("flesd", "fedca", "fedlinked", "fedfoa"))
DEMO, DEFAULTS = Claim("demo"), Claim("defaults")
FIRST = range(claims.load()["seeds"])
OTHERS = range(claims.load()["seeds"], claims.load()["deciding_seeds"])
OWN, RIVAL = "FedCA, temperature 0.5", "FedSimCLR, temperature 0.1"
BYOL = "BYOL alone"
LAMBDAS = [name for name in FEDFOA.variants if name.startswith("FedFoA, ")]
NONE, HIDDEN, ALL = (f"FedSimSiam, {how}" for how in (
    "no BatchNorm in heads", "BatchNorm in hidden layers", "BatchNorm in all layers"))  # fmt: skip


def exchanges(count: int, alpha: str, *, worst: bool = False, seeds: range | None = None) -> list[str]:
    """What so many exchanges of FLESD are over training alone, in words."""
    claim = FLESD if seeds is None else FLESD.on(seeds)
    return claim.words(f"FLESD, T = {count}, alpha {alpha}", f"local, alpha {alpha}{', worst client' * worst}")


def at_one_temperature(value: str) -> list[str]:
    return FEDCA.words(f"FedCA, temperature {value}", f"FedSimCLR, temperature {value}")


def linked(first: str, second: str) -> str:
    return LINKED.word(first, second, "task")


def reach(name: str) -> list[float]:
    """The upper ends of its intervals over BYOL alone, by kNN and few-shot, in points."""
    return [FEDFOA.points(name, BYOL, measure)[2] for measure in PROTOCOLS[:2]]


SENTENCES: list[tuple[str, Callable[[], bool]]] = [
    ("two exchanges are above by all three protocols at alpha 100, by kNN and linear probe at alpha 1, by few-shot and "
     "linear probe at alpha 0.01.",
     lambda: [exchanges(2, alpha, worst=True) for alpha in ("100", "1", "0.01")]
     == [[ABOVE] * 3, [ABOVE, OPEN, ABOVE], [OPEN, ABOVE, ABOVE]]),
    ("Against the mean of the local models the claim holds at alpha 100 only. There five exchanges are above it by all "
     "three, on the five other seeds as well, the best result here; two are above by kNN and few-shot; one by none. At "
     "alpha 1 one exchange is below it by all three, and two or five are above it by none. At alpha 0.01 none is told "
     "apart from it.",
     lambda: exchanges(5, "100") == exchanges(5, "100", seeds=OTHERS) == [ABOVE] * 3
     and exchanges(2, "100") == [ABOVE, ABOVE, LEVEL] and ABOVE not in exchanges(1, "100")
     and exchanges(1, "1") == [BELOW] * 3 and ABOVE not in exchanges(2, "1") + exchanges(5, "1")
     and all(exchanges(count, "0.01") == [OPEN] * 3 for count in (1, 2, 5))),
    ("Five are above two by kNN and few-shot, and one is below two by all three.",
     lambda: FLESD.words("FLESD, T = 5, alpha 1", "FLESD, T = 2, alpha 1") == [ABOVE, ABOVE, OPEN]
     and FLESD.words("FLESD, T = 1, alpha 1", "FLESD, T = 2, alpha 1") == [BELOW] * 3),
    ("which tell FedSimCLR's 0.1 from its 0.5, but not from its 0.2, nor FedCA's 0.5 from its 0.1 or 0.2.",
     lambda: [FEDCA.held_out(RIVAL, f"FedSimCLR, temperature {other}") for other in ("0.5", "0.2")]
     == [ABOVE, LEVEL] and {FEDCA.held_out(OWN, f"FedCA, temperature {other}") for other in ("0.1", "0.2")} == {OPEN}),
    ("At each one's own temperature FedCA is above FedSimCLR by kNN and few-shot, by one and two points, and level by "
     "linear probe. Five seeds had not told them apart by kNN. With one temperature for both, it is above by kNN and "
     "few-shot at 0.5 and 0.2, and by kNN at 0.1. The comparison at 0.5 flatters FedCA, because FedSimCLR is better at "
     "0.1 by kNN and few-shot.",
     lambda: FEDCA.words(OWN, RIVAL) == [ABOVE, ABOVE, LEVEL] and FEDCA.on(FIRST).words(OWN, RIVAL)[0] == OPEN
     and [round(FEDCA.points(OWN, RIVAL, measure)[0]) for measure in PROTOCOLS[:2]] == [1, 2]
     and at_one_temperature("0.5")[:2] == at_one_temperature("0.2")[:2] == [ABOVE] * 2
     and at_one_temperature("0.1")[:2] == [ABOVE, OPEN]
     and FEDCA.words(RIVAL, "FedSimCLR, temperature 0.5")[:2] == [ABOVE] * 2),
    ("The alignment alone is above FedSimCLR at its 0.1 by few-shot, and not told apart by kNN. - The dictionary "
     "beside the alignment gains by both; alone it is below FedSimCLR by kNN. - A client's own entries in the "
     "dictionary do harm by all three protocols.",
     lambda: FEDCA.words("FedCA, 0.5, alignment only", RIVAL)[:2] == [OPEN, ABOVE]
     and FEDCA.words(OWN, "FedCA, 0.5, alignment only")[:2] == [ABOVE] * 2
     and FEDCA.words("FedCA, 0.5, dictionary only", RIVAL)[0] == BELOW
     and FEDCA.words("FedCA, 0.5, own entries kept", OWN) == [BELOW] * 3),
    ("With 300 images per client and class it is below training separately, by two points on ten seeds; five seeds had "
     "left zero at the edge of the interval. With 100 images, or 5% of them public, its means are below, too, and not "
     "told apart.",
     lambda: linked("FedLinked", "separate") == BELOW and LINKED.points("FedLinked", "separate", "task")[0] == -2.0
     and LINKED.on(FIRST).points("FedLinked", "separate", "task")[2] == 0.0
     and linked("FedLinked, 100 images", "separate, 100 images") == linked("FedLinked, 5% public", "separate") == OPEN
     and max(LINKED.difference("FedLinked, 100 images", "separate, 100 images", "task").mean,
             LINKED.difference("FedLinked, 5% public", "separate", "task").mean) < 0),
    ("is below training separately with 300 images, and not told apart from it with 100. FedLinked is not told apart "
     "from averaging trunks with either.",
     lambda: linked("FedAvg on the trunk", "separate") == BELOW
     and {linked("FedAvg on the trunk, 100 images", "separate, 100 images"),
          linked("FedLinked", "FedAvg on the trunk"),
          linked("FedLinked, 100 images", "FedAvg on the trunk, 100 images")} == {OPEN}),
    ("on ten seeds it is level by linear probe, and by kNN and few-shot its intervals reach 0.011 and 0.012. With "
     "other lambdas and t_warm, on five seeds, no interval by kNN or few-shot excludes zero, but at lambda 0.1 they "
     "reach 0.04 and 0.05. Every mean is above BYOL alone, with the same runs of it as rival throughout. One interval "
     "excludes zero, barely (lambda 0.001, by linear probe)",
     lambda: FEDFOA.words("FedFoA", BYOL) == [OPEN, OPEN, LEVEL] and reach("FedFoA") == [1.1, 1.2]
     and all(FEDFOA.words(name, BYOL)[:2] == [OPEN] * 2 for name in LAMBDAS)
     and [round(end) for end in reach("FedFoA, lambda 0.1")] == [4, 5]
     and all(FEDFOA.difference(name, BYOL, m).mean > 0 for name in ("FedFoA", *LAMBDAS) for m in PROTOCOLS)
     and [name for name in LAMBDAS if FEDFOA.words(name, BYOL)[2] == ABOVE] == ["FedFoA, lambda 0.001"]),
    ("With the fixed step all means are below the untrained encoder's, on both data sets; on the digits the interval "
     "excludes zero by kNN and linear probe. The step that follows is above the untrained encoder on both, by all "
     "three protocols, and on Fashion-MNIST above the fixed step by kNN, also on held-out images.",
     lambda: all(one.difference("FedU2, fixed step", tables.UNTRAINED, measure).mean < 0
                 for one in (DEMO, DEFAULTS) for measure in PROTOCOLS)
     and DEMO.words("FedU2, fixed step", tables.UNTRAINED) == [BELOW, OPEN, BELOW]
     and all(one.words("FedU2, relative step", tables.UNTRAINED) == [ABOVE] * 3 for one in (DEMO, DEFAULTS))
     and DEFAULTS.words("FedU2, relative step", "FedU2, fixed step")[0] == ABOVE
     and DEFAULTS.held_out("FedU2, relative step", "FedU2, fixed step") == ABOVE),
    ("on Fashion-MNIST BatchNorm or none is not told apart, in intervals up to 0.08 either way. On the digits "
     "BatchNorm in all layers or in hidden layers is above none by kNN and few-shot, and without it SimSiam is below "
     "the untrained encoder by kNN.",
     lambda: all(DEFAULTS.held_out(name, NONE) == OPEN for name in (HIDDEN, ALL))
     and [round(end) for end in DEFAULTS.points(ALL, NONE, "select/knn")[1:]] == [-8, 8]
     and all(DEMO.words(name, NONE) == [ABOVE, ABOVE, OPEN] for name in (HIDDEN, ALL))
     and DEMO.words(NONE, tables.UNTRAINED)[0] == BELOW),
    ("On held-out images of Fashion-MNIST hidden layers with BatchNorm are below none by kNN; on test images they are "
     "not told apart by kNN and few-shot.",
     lambda: (pair := ("FedBYOL, BatchNorm in hidden layers", "FedBYOL, no BatchNorm in heads"))
     and DEFAULTS.held_out(*pair) == BELOW and DEFAULTS.words(*pair)[:2] == [OPEN] * 2),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "holds"), SENTENCES, ids=[sentence[:60] for sentence, _ in SENTENCES])
def test_what_the_page_says_follows_from_the_runs(sentence: str, holds: Callable[[], bool]) -> None:
    assert stands(RESULTS, sentence)
    assert holds()
