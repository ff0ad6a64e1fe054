"""Is a model worse than another on the same test images? McNemar's exact test, and an interval of the difference."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from rampline.record.metric import wilson_interval

LEVEL = 0.05
# A test that would let a larger loss of accuracy than this pass by chance is too weak to excuse a lower model.
LARGEST_UNSEEN_LOSS = 0.05


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Two models on the same test examples, counted by who is right."""

    both_right: int
    only_old: int
    only_new: int
    both_wrong: int

    def __post_init__(self) -> None:
        if self.examples < 1 or min(self.both_right, self.only_old, self.only_new, self.both_wrong) < 0:
            raise ValueError(f"{self}: needs counts of at least one example")

    @property
    def examples(self) -> int:
        """Test examples."""
        return self.both_right + self.only_old + self.only_new + self.both_wrong

    @property
    def old_accuracy(self) -> float:
        """Share of right answers of the old model."""
        return (self.both_right + self.only_old) / self.examples

    @property
    def new_accuracy(self) -> float:
        """Share of right answers of the new model."""
        return (self.both_right + self.only_new) / self.examples

    @property
    def difference(self) -> float:
        """Accuracy of the new model minus that of the old one."""
        return (self.only_new - self.only_old) / self.examples

    @property
    def p_value(self) -> float:
        """Probability of at least as many examples that only the old model gets right, were the two equally good.

        McNemar's test (McNemar 1947, Psychometrika 12, 153-157; recommended for two classifiers on one test set by
        Dietterich 1998, Neural Computation 10, 1895-1923) in its exact form: the examples on which the models disagree
        are a sample of Binomial(only_old + only_new, 1/2). One-sided: only a worse model is to be refused.
        """
        disagreements = self.only_old + self.only_new
        if not disagreements:
            return 1.0
        from scipy.stats import binomtest  # a comparison in a terminal needs the interval alone, and no SciPy

        return float(binomtest(self.only_old, disagreements, 0.5, alternative="greater").pvalue)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `difference`.

        Newcombe's hybrid score interval for paired data (Newcombe 1998, "Improved confidence intervals for the
        difference between binomial proportions based on paired data", Statistics in Medicine 17, 2635-2650, method 10):
        Wilson's interval of each share, and what the pairing takes off through the correlation of the two.
        """
        shares = (self.new_accuracy, self.examples, self.old_accuracy, self.examples)
        return difference_interval(*shares, correlation=self._correlation())

    @property
    def unseen_loss(self) -> float:
        """The largest loss of accuracy that would not have been significant with this number of disagreements."""
        from scipy.stats import binom

        # Fewer than five cannot be significant, however they fall: 1/2^4 > LEVEL.
        disagreements = max(self.only_old + self.only_new, 5)
        # isf(LEVEL) is the largest number of examples for the old model alone that chance still explains.
        most = int(binom.isf(LEVEL, disagreements, 0.5))
        return max(2 * most - disagreements, 0) / self.examples

    @property
    def is_worse(self) -> bool:
        """Whether the new model is significantly worse."""
        return self.p_value < LEVEL

    @property
    def is_acceptable(self) -> bool:
        """Whether the new model may take the old one's place.

        As good or better: yes. Significantly worse: no. Lower, but no more than chance explains: yes where the test is
        sharp enough to have seen a loss above `LARGEST_UNSEEN_LOSS`. Of two models that are equally good one scores
        lower on any test set; to refuse it would let the luck of the draw decide. On a handful of images, though,
        nothing is ever significant, and the test excuses nothing.
        """
        if self.difference >= 0:
            return True
        return not self.is_worse and self.unseen_loss <= LARGEST_UNSEEN_LOSS

    def sentence(self) -> str:
        """The figures in one line."""
        low, high = self.interval
        return (
            f"{self.new_accuracy:.4f} against {self.old_accuracy:.4f} on the same {self.examples:,} images "
            f"({self.difference:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}; right only the new {self.only_new}, "
            f"only the champion {self.only_old}, McNemar p={self.p_value:.3g})"
        )

    def verdict(self) -> str:
        """What follows from the figures, in a few words."""
        if self.difference == 0:
            return "as good"
        if self.difference > 0:
            exchanged = dataclasses.replace(self, only_old=self.only_new, only_new=self.only_old)
            return "better" if exchanged.is_worse else "higher, but not significantly"
        if self.is_worse:
            return "significantly worse"
        if self.is_acceptable:
            return "lower, but not significantly"
        return f"lower, and with this few images a loss of {self.unseen_loss:.1%} would not be seen"

    def _correlation(self) -> float:
        """Pearson's phi of the two models' right answers, with Newcombe's correction; 0 where it is undefined."""
        a, b, c, d = self.both_right, self.only_old, self.only_new, self.both_wrong
        margins = (a + b) * (c + d) * (a + c) * (b + d)
        product = a * d - b * c
        if product > 0:
            product = max(product - self.examples / 2, 0)
        return product / math.sqrt(margins) if margins else 0.0


def compare_predictions(labels: np.ndarray, old: np.ndarray, new: np.ndarray) -> PairedComparison:
    """Count who is right, from labels and predictions of two models: each (examples,) integers in the same order."""
    old_right, new_right = old == labels, new == labels
    return PairedComparison(
        both_right=int((old_right & new_right).sum()),
        only_old=int((old_right & ~new_right).sum()),
        only_new=int((~old_right & new_right).sum()),
        both_wrong=int((~old_right & ~new_right).sum()),
    )


def _hybrid(first: float, second: float, phi: float) -> float:
    return math.sqrt(max(first**2 - 2 * phi * first * second + second**2, 0.0))


def difference_interval(
    accuracy: float, examples: int, other: float, other_examples: int, *, correlation: float = 0.0
) -> tuple[float, float]:
    """The 95 % confidence interval of `accuracy - other`, two shares of right answers, as shares.

    Newcombe's hybrid score interval (Newcombe 1998, "Interval estimation for the difference between independent
    proportions", Statistics in Medicine 17, method 10): unlike the textbook's normal interval it has a width where an
    accuracy is 1. Without a correlation it takes the two test sets for independent. Two models that are scored on the
    same images tend to err on the same ones, so their difference is known better than this: it is conservative.
    """
    low, high = wilson_interval(accuracy, examples)
    other_low, other_high = wilson_interval(other, other_examples)
    difference = accuracy - other
    below = _hybrid(accuracy - low, other_high - other, correlation)
    above = _hybrid(high - accuracy, other - other_low, correlation)
    return difference - below, difference + above
