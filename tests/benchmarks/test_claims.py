"""The papers' claims: variants are runs that can be configured, and lines become tables with the right arithmetic."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import claims
import claims_overview as overview
import claims_tables as tables
import json_lines
import numpy as np
import pytest
from scipy import stats

from rayfed_ssl.config import build
from rayfed_ssl.records.comparison import Difference
from tests.places import ROOT

DOCUMENT = claims.load()
CLAIM: dict[str, Any] = {
    "says": "A is above B", "setting": "Tiny", "measures": ["knn"], "by": "select/knn", "worst": ["b"],
    "variants": {"a": {"method.name": "x"}, "a2": {"method.name": "y"}, "b": {}},
    "compare": [["a", "b"], ["a2", "b, worst client"], [["a", "a2"], "untrained"]],
}  # fmt: skip
SCORES = {"a": [0.5, 0.6, 0.7], "a2": [0.4, 0.4, 0.4]}
SELECT = {"a": 0.3, "a2": 0.5, "b": 0.1}
SLOPE = {"a": 0.0, "a2": 0.0, "b": 0.001}  # by seed


def line(variant: str, seed: int, value: float | dict[str, float], **other: Any) -> claims.Line:
    return {
        "claim": "c", "variant": variant, "seed": seed, "keys": CLAIM["variants"][variant], "status": "complete",
        "measured": {"knn": value, "select/knn": SELECT[variant] - SLOPE[variant] * seed},
        "untrained": {"knn": 0.2 + 0.1 * seed}, "also": {},
        "minutes": 1.0 + seed, "cpu_minutes": 1.0 + seed, "commit": "abc", "settings": "s", **other,
    }  # fmt: skip


LINES = [line(variant, seed, value) for variant, values in SCORES.items() for seed, value in enumerate(values)]
LINES += [line("b", seed, {"0": 0.1 * seed, "1": 0.4}) for seed in range(3)]


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def test_every_variant_can_be_configured_and_has_settings_of_its_own() -> None:
    found = list(claims.attempts(DOCUMENT, seeds=1))
    assert {one.claim for one in found} == {
        "fedsc",
        "fedsc_fashion",
        "fedsc_cifar",
        "fedca",
        "flesd",
        "fedfoa",
        "fedlinked",
        "demo",
        "defaults",
    }
    assert len({(one.claim, one.settings) for one in found}) == len(found)
    for one in found:
        source = {} if DOCUMENT["claims"][one.claim]["data"] == "digits" else {"data.path": "images"}
        build(one.base, {**one.keys, "seed": 0, **source}, origin=one.variant)


@pytest.mark.parametrize("name", list(DOCUMENT["claims"]))
def test_what_is_compared_are_variants_and_measures_are_evaluated(name: str) -> None:
    claim = DOCUMENT["claims"][name]
    known = {*claim["variants"], tables.UNTRAINED, *(worst + tables.WORST for worst in claim.get("worst", ()))}
    sides = [side for pair in claim["compare"] for side in pair]
    assert {one for side in sides for one in ([side] if isinstance(side, str) else side)} <= known
    several = any(not isinstance(side, str) for side in sides)
    assert several <= ("by" in claim and "select" in claim["base"]["evaluation"])
    evaluation = claim["base"]["evaluation"]
    held_out = {f"select/{name}" for name in evaluation["protocols"]} if "select" in evaluation else set()
    assert set(claim["measures"]) <= {*evaluation["protocols"], *held_out, "task"}


def test_seeds_come_one_after_the_other_and_what_has_a_line_is_not_run_again() -> None:
    wanted = list(claims.attempts(DOCUMENT, ["fedfoa"], seeds=2))
    half = len(wanted) // 2
    assert [one.seed for one in wanted] == [0] * half + [1] * half
    done = [{"claim": o.claim, "variant": o.variant, "seed": o.seed, "settings": o.settings} for o in wanted[:2]]
    assert claims.missing(iter(wanted), done) == wanted[2:]
    other = [{**done[0], "settings": "another"}]
    assert claims.missing(iter(wanted), other) == wanted


def test_what_decides_a_claim_has_more_seeds_unless_a_number_is_given() -> None:
    few, many = DOCUMENT["seeds"], DOCUMENT["deciding_seeds"]
    assert few < many
    counts = Counter((one.claim, one.variant) for one in claims.attempts(DOCUMENT))
    deciding = {
        ("fedfoa", "FedFoA"),
        ("fedfoa", "BYOL alone"),
        ("flesd", "local, alpha 1"),
        ("fedca", "FedCA, temperature 0.2"),
    }
    assert {counts[one] for one in deciding} == {many}  # a worst client's runs, and every candidate of a choice
    assert {counts["fedfoa", "FedFoA, lambda 0.1"], counts["demo", "FedSimCLR"]} == {few}
    assert counts["defaults", "FedSimCLR"] == DOCUMENT["claims"]["defaults"]["seeds"] < few
    assert set(Counter(one.variant for one in claims.attempts(DOCUMENT, ["fedfoa"], seeds=2)).values()) == {2}


def test_the_command_makes_the_runs_that_the_tables_show_and_no_other() -> None:
    lines = json_lines.read(claims.RESULTS)
    of_claims = [tables.runs_of(lines, *one) for one in DOCUMENT["claims"].items()]
    shown = {claims.address(line) for runs in of_claims for seeds in runs.values() for line in seeds.values()}
    assert {one.address for one in claims.attempts(DOCUMENT)} == shown


def test_variants_can_be_asked_for_by_name() -> None:
    found = {one.variant for one in claims.attempts(DOCUMENT, ["fedca"], 2, "temperature 0.[12]$")}
    assert found == {f"{method}, temperature 0.{t}" for method in ("FedCA", "FedSimCLR") for t in (1, 2)}


def test_means_deviations_and_the_worst_client() -> None:
    body = {row[0]: row[1:] for row in cells(tables.accuracies(tables.runs_of(LINES, "c", CLAIM), CLAIM))}
    assert body["untrained"][:2] == ["3", "0.300 ± 0.100"]
    assert body["a"] == ["3", "0.600 ± 0.100", "0.300 ± 0.000", "2.0 ± 1.0"]
    assert body["b"][1] == f"{np.mean([0.2, 0.25, 0.3]):.3f} ± {np.std([0.2, 0.25, 0.3], ddof=1):.3f}"
    assert body["b, worst client"][1] == "0.100 ± 0.100"


def test_paired_differences_have_students_interval_and_decide() -> None:
    rows = cells(tables.comparisons(tables.runs_of(LINES, "c", CLAIM), CLAIM))[2:]
    pairs = np.array([0.5, 0.6, 0.7]) - np.array([0.2, 0.25, 0.3])
    low, high = stats.t.interval(0.95, 2, loc=pairs.mean(), scale=stats.sem(pairs))
    near, far = stats.t.interval(0.95, 2, loc=0.201, scale=0.001 / 3**0.5)
    held_out = f"+0.201 [{near:+.3f}, {far:+.3f}]"
    assert rows[0] == ["a over b", "3", f"{pairs.mean():+.3f} [{low:+.3f}, {high:+.3f}]", held_out, "above"]
    assert rows[1][0] == "a2 over b, worst client"
    assert rows[1][-1] == "above"
    assert rows[2][0].startswith("a2 over untrained (each the best by")  # by held-out images, not by its accuracy
    assert rows[2][3:] == ["-", "not told apart"]  # untrained encoders have no held-out value


def test_what_only_one_side_was_measured_by_has_no_verdict() -> None:
    claim = {**CLAIM, "measures": ["select/knn", "knn"], "compare": [["a", "untrained"]]}
    del claim["by"]
    [row] = cells(tables.comparisons(tables.runs_of(LINES, "c", claim), claim).split("\n\n")[0])[2:]
    assert row[:3] == ["a over untrained", "3", "-"]
    assert row[-1] == "no interval"  # three seeds differ alike


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.0001, 0.015, "above"), (0.001, 0.009, "above"), (-0.009, -0.001, "below"), (-0.3, -0.0001, "below"),
        (-0.01, 0.01, "level"), (-0.002, 0.009, "level"), (0.0, 0.005, "level"), (-0.002, 0.011, "not told apart"),
        (-0.011, 0.002, "not told apart"), (-0.2, 0.3, "not told apart"), (-0.02, 0.0, "not told apart"),
    ],
)  # fmt: skip
def test_a_verdict_is_read_from_the_interval(low: float, high: float, word: str) -> None:
    assert tables.verdict(Difference((low + high) / 2, low, high, 5)) == word


def test_a_single_seed_and_no_seed_have_no_verdict() -> None:
    assert tables.verdict(Difference(0.3, None, None, 1)) == "one seed"
    assert tables.verdict(None) == "not run yet"


def test_measures_of_one_verdict_stand_together() -> None:
    ends = (0.1, 0.2), (-0.001, 0.001), (-0.1, 0.1)
    above, level, wide = (Difference((low + high) / 2, low, high, 5) for low, high in ends)
    three = ("knn", "fewshot", "linear")
    for found, text in (
        ((wide, level, wide), "not told apart by kNN and linear; level by few-shot"),
        ((level, level, level), "level by all"),
        ((wide, wide, wide), "not told apart by any"),
        ((None, None, None), "not run yet"),
    ):
        assert tables.verdicts(dict(zip(three, found, strict=True))) == text
    assert tables.verdicts({"task": above}) == "above"
    four = tables.verdicts({**dict.fromkeys(three, wide), "task": above})
    assert four == "not told apart by kNN, few-shot and linear; above by own task"


def test_intervals_are_counted_and_set_beside_what_chance_gives() -> None:
    """Five intervals (the untrained encoder has no held-out one), of which the first two pairs' exclude zero."""
    text = tables.comparisons(tables.runs_of(LINES, "c", CLAIM), CLAIM)
    assert text.splitlines()[-1] == "Intervals that exclude zero: 4 of 5; by chance alone about 0.3."
    assert tables.by_chance(60) == "3.0"


def test_a_row_of_verdicts_for_each_comparison_that_decides() -> None:
    deciding = {"method": "A", "short": "above B", "decides": [{"condition": "at home", "pair": ["a", "b"]}]}
    other = {**CLAIM, "measures": ["task"], "by": "select/knn", "compare": [["a", "b"]]}
    document = {"seeds": 2, "claims": {"c": CLAIM | deciding, "d": other | deciding | {"method": "D"}, "e": CLAIM}}
    text = overview.section([*LINES, *({**one, "claim": "e"} for one in LINES)], document)
    head, _, first, second = cells(text.split("\n\n")[0])
    assert head[4:] == ["seeds", "kNN", "own task", "verdict"]
    [expected, *_] = cells(tables.comparisons(tables.runs_of(LINES, "c", CLAIM), CLAIM))[2:]
    assert first == ["A", "above B", "at home", "a over b", "3", expected[2], "", "above"]
    assert second == ["D", "above B", "at home", "a over b", "0", "", "-", "not run yet"]
    assert "have 10 intervals; 8 exclude zero. If nothing differed, about 0.5 would." in text


def test_what_was_picked_by_the_first_seeds_is_judged_by_the_others() -> None:
    decides = [{"condition": "where it holds", "picked": True, "pair": ["a", "b"]}]
    claim = {**CLAIM, "method": "A", "short": "above B", "decides": decides}
    del claim["by"]
    later = [line("a", seed, 0.2 - 0.1 * (seed % 2)) for seed in (3, 4, 5)]
    later += [line("b", seed, {"0": 0.9, "1": 0.9}) for seed in (3, 4, 5)]
    _, _, row = cells(overview.table([*LINES, *later], {"seeds": 3, "claims": {"c": claim}}))
    pairs = np.array([0.1, 0.2, 0.1]) - 0.9
    low, high = stats.t.interval(0.95, 2, loc=pairs.mean(), scale=stats.sem(pairs))
    assert row[4:] == ["3 others", f"{pairs.mean():+.3f} [{low:+.3f}, {high:+.3f}]", "below"]


def test_a_claim_is_decided_by_one_or_two_of_its_comparisons() -> None:
    deciding = {name: claim for name, claim in DOCUMENT["claims"].items() if "decides" in claim}
    assert deciding.keys() == {"fedsc", "fedca", "flesd", "fedfoa", "fedlinked"}
    for claim in deciding.values():
        assert 1 <= len(claim["decides"]) <= 2
        assert all(one["pair"] in claim["compare"] for one in claim["decides"])
        assert [one.get("picked", False) for one in claim["decides"]] == [False, True][: len(claim["decides"])]


@pytest.mark.parametrize("name", list(DOCUMENT["claims"]))
def test_nothing_is_compared_twice(name: str) -> None:
    pairs = [json.dumps(pair) for pair in DOCUMENT["claims"][name]["compare"]]
    assert len(pairs) == len(set(pairs))


def test_the_counts_of_the_page_are_those_of_its_intervals() -> None:
    """An interval excludes zero where both of its printed ends have one sign, which rounding keeps."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    sections = [page.split(f"<!-- {name} -->")[1].split(f"<!-- end {name} -->")[0] for name in DOCUMENT["claims"]]
    found = [re.findall(r"\[([+-])[\d.]+, ([+-])[\d.]+\]", section) for section in sections]
    signs = [(len(ends), sum(low == high for low, high in ends)) for ends in found]
    for section, (count, without_zero) in zip(sections, signs, strict=True):
        assert f"exclude zero: {without_zero} of {count}; by chance alone about {count / 20 + 1e-9:.1f}." in section
    total, without_zero = (sum(column) for column in zip(*signs, strict=True))
    assert f"have {total} intervals; {without_zero} exclude zero" in page


def test_lines_of_other_settings_and_diverged_runs_do_not_count() -> None:
    other = [line("a", 3, 0.9, keys={"method.name": "z"}), line("a", 4, 0.9, status="diverged")]
    assert tables.runs_of([*LINES, *other], "c", CLAIM)["a"].keys() == {0, 1, 2}


def test_what_has_not_run_is_said() -> None:
    only = [one for one in LINES if one["variant"] == "b"]
    assert cells(tables.comparisons(tables.runs_of(only, "c", CLAIM), CLAIM))[2][2] == "not run yet"
    assert ["a", "0", "not run yet", "", ""] in cells(tables.accuracies(tables.runs_of(only, "c", CLAIM), CLAIM))


def test_every_line_that_was_written_belongs_to_a_claim() -> None:
    for one in json_lines.read(claims.RESULTS):
        assert one["variant"] in DOCUMENT["claims"][one["claim"]]["variants"], json.dumps(one)[:200]


def test_the_header_of_fedlinkeds_config_has_the_numbers_of_the_lines() -> None:
    text = (ROOT / "configs" / "fedlinked_cifar10.yaml").read_text(encoding="utf-8")
    shown = re.search(r"(\d+) seeds\): accuracy of the task ([\d.]+), local ([\d.]+)\.\n", text)
    assert shown, "the header says what FedLinked and separate training come to"
    for variant, accuracy in (("FedLinked", shown[2]), ("separate", shown[3])):
        lines = [
            one for one in json_lines.read(claims.RESULTS) if (one["claim"], one["variant"]) == ("fedlinked", variant)
        ]
        assert len(lines) == int(shown[1])
        clients = [np.mean(list(one["measured"]["task"].values())) for one in lines]
        assert float(accuracy) == pytest.approx(np.mean(clients), abs=0.000501)
