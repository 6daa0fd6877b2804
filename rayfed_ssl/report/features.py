"""Figures of the features over a run: RankMe, alignment, uniformity, spectrum, angles between encoders."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from matplotlib.figure import Figure

from rayfed_ssl.report.folder import RunFolder
from rayfed_ssl.report.formats import number
from rayfed_ssl.report.style import MUTED, SERIES, Drawing, Studio, legend_below, logarithmic, rules, whole_numbers
from rayfed_ssl.report.verdict import began_with

WORDS = {
    "rankme": ("RankMe", "RankMe", "Effective rank, exp of the entropy of the singular values; a fall is a collapse."),
    "alignment": ("Alignment", "alignment", "Squared distance of two views of an image; 0 is perfect."),
    "uniformity": ("Uniformity", "uniformity", "Log mean potential of pairs of images; lower is more uniform."),
    "angle": (
        "Angle between clients' encoders", "degrees",
        "Mean angle of what two clients' encoders make of the same test images; it falls as they agree.",
    ),
}  # fmt: skip
FLOOR = 1e-12  # the least eigenvalue that is drawn, as a share of the largest: the axis is logarithmic


def figures(run: RunFolder, studio: Studio) -> Iterator[Drawing]:
    """The figures of what the protocols ``rank`` and ``angles`` recorded, and of the spectrum."""
    for name, (title, label, caption) in WORDS.items():
        rounds = {t: list(values.values()) for t, values in sorted(run.features.get(name, {}).items())}
        if not rounds:
            continue
        last = max(rounds)
        yield studio.draw(
            f"features_{name}", title, lambda f, r=rounds, y=label: _curve(f, r, y),  # type: ignore[misc]
            alt=f"{title} of the features over rounds: {number(fmean(rounds[min(rounds)]))} in round {min(rounds)}, "
            f"{number(fmean(rounds[last]))} in round {last}.",
            caption=caption + (f" Dashed: {began_with(run.summary)}." if 0 in rounds else ""), height=1.9,
        )  # fmt: skip
    yield from _spectra(run, studio)


def _curve(figure: Figure, rounds: dict[int, list[float]], label: str) -> None:
    """The mean over rounds, with the range of the clients' values, and a dashed line before training."""
    axes = figure.add_subplot()
    x = list(rounds)
    axes.plot(x, [fmean(values) for values in rounds.values()], color=SERIES[2], marker="o" if len(x) <= 25 else None)
    if any(len(values) > 1 for values in rounds.values()):
        low, high = ([extreme(values) for values in rounds.values()] for extreme in (min, max))
        axes.fill_between(x, low, high, color=SERIES[2], alpha=0.15, linewidth=0)
    if 0 in rounds:
        axes.axhline(fmean(rounds[0]), color=MUTED, linestyle=(0, (4, 2)), linewidth=0.9)
    axes.set(xlabel="round", ylabel=label)
    whole_numbers(axes)
    rules(axes)


def _spectra(run: RunFolder, studio: Studio) -> Iterator[Drawing]:
    """The eigenvalues in the first and in the last round that has them."""
    rounds = {t: values for t, values in run.spectrum.items() if values and max(values) > 0}
    if not rounds:
        return
    first, last = min(rounds), max(rounds)
    shown = {f"round {t}" if t else began_with(run.summary): rounds[t] for t in dict.fromkeys((first, last))}
    yield studio.draw(
        "features_spectrum", "Spectrum", lambda f: _spectrum(f, shown),
        alt=f"Eigenvalues of the features' covariance, the largest first, in rounds {first} and {last}, each as a "
        "share of the largest.",
        caption="Eigenvalues of the features' covariance over the largest; a steep fall is a collapse.", height=1.9,
    )  # fmt: skip


def _spectrum(figure: Figure, shown: dict[str, list[float]]) -> None:
    axes = figure.add_subplot()
    for (name, values), colour in zip(shown.items(), (MUTED, SERIES[2]), strict=False):
        shares = [max(value / max(values), FLOOR) for value in values]
        axes.plot(range(1, len(shares) + 1), shares, color=colour, marker="o", label=name)
    logarithmic(axes.yaxis)
    axes.set(xlabel="eigenvalue", ylabel="share of the largest")
    whole_numbers(axes)
    rules(axes)
    legend_below(axes)
