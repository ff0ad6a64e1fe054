"""A validation split by groups: the images of a patient, a camera or a burst are all on one side of it (`data.group`).

Without `data.group`, an image and its copies are a group.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rampline.config import DataConfig
from rampline.data.sources.source import Tell
from rampline.errors import DatasetError

# With `data.group` the first draw that comes near enough is taken, else the best of as many as go through 10,000
# groups, or of 10.
_GROUPS_DRAWN, _LEAST_DRAWS = 10_000, 10
# Costs are whole numbers: their sums are exact, and the same in any order.
_UNIT = 2**20


def draw_validation_groups(
    images: Iterable[tuple[str, int]], class_names: Sequence[str], config: DataConfig, tell: Tell
) -> set[str]:
    """The groups whose training images become validation: of each class near `data.validation_fraction`.

    The draw depends on `data.split_seed` and on how many images of which class each group has, not on their order.
    `images` are group and label of each training image. `tell` gets a line where a class has a tenth, and an image,
    more or less than its share.

    Raises:
        DatasetError: when a class would not be on both sides.
    """
    groups: dict[str, Counter[int]] = {}
    alone = [Counter([label]) for label in range(len(class_names))]  # one for all groups of one image: there are many
    for group, label in images:
        groups[group] = groups[group] + alone[label] if group in groups else alone[label]
    _check_groups(groups, class_names, config)
    best = _Draw(groups, config, 0)
    draws = max(_LEAST_DRAWS, _GROUPS_DRAWN // max(len(groups), 1)) if config.group else 1
    for number in range(1, draws):
        if best.is_near:
            break
        best = min(best, _Draw(groups, config, number), key=lambda draw: draw.cost)
    if best.one_sided:
        by = f"data.group={config.group!r}: " if config.group else ""
        raise DatasetError(
            f"{by}no way was found to split the {len(groups)} groups of {config.source} so that class "
            f"{class_names[best.one_sided[0]]!r} is in train and in validation"
        )
    if not best.is_near:
        label = best.farthest
        why = "no group is on both sides" if config.group else "copies of an image stay together"
        tell(
            f"validation has {best.taken.total() / best.totals.total():.1%} of the training images, and "
            f"{best.taken[label] / best.totals[label]:.1%} of class {class_names[label]!r}, instead of "
            f"{config.validation_fraction:.1%}: {why}"
        )
    return best.chosen


def _check_groups(groups: Mapping[str, Counter[int]], class_names: Sequence[str], config: DataConfig) -> None:
    needed = "at least 2 groups are needed, one of them for validation"
    if config.group and len(groups) == 1:
        raise DatasetError(
            f"data.group={config.group!r} puts all training images of {config.source} into the group "
            f"{next(iter(groups))!r}: {needed}"
        )
    holders: defaultdict[int, list[str]] = defaultdict(list)
    for group, counts in groups.items():
        for label in counts:
            holders[label].append(group)
    for label, names in sorted(holders.items()):
        if len(names) == 1:
            has = f"training images in the group {names[0]!r} alone: {needed}"
            if not config.group:
                has = "1 training image: at least 2 are needed, one of them for validation"
            raise DatasetError(f"class {class_names[label]!r} of {config.source} has {has}")


class _Draw:
    """One draw: in a drawn order, the groups that fit into all shares; then one group at a time changes sides.

    A group changes sides as long as that lowers the cost: the squares of how many images a class is off its share, by
    the images of the class; more than any other cost where a class is on one side alone.

    Attributes:
        chosen: the groups for validation.
        totals: training images by label.
        shares: how many of them are to become validation.
        taken: how many do.
    """

    def __init__(self, groups: Mapping[str, Counter[int]], config: DataConfig, number: int) -> None:
        self.chosen: set[str] = set()
        self.totals: Counter[int] = Counter()
        for counts in groups.values():
            self.totals.update(counts)
        rounded = {label: int(n * config.validation_fraction + 0.5) for label, n in self.totals.items()}
        self.shares = {label: min(max(share, 1), self.totals[label] - 1) for label, share in rounded.items()}
        self.taken: Counter[int] = Counter()
        self._forbidden = _UNIT * (self.totals.total() + 1)

        prefix = f"{config.split_seed} {number} " if config.group else f"{config.split_seed} "

        def rank(group: str) -> tuple[bytes, str]:
            return hashlib.sha256(f"{prefix}{group}".encode()).digest(), group

        order = sorted(groups, key=rank)
        for group in order:
            if all(self.taken[label] + n <= self.shares[label] for label, n in groups[group].items()):
                self._move(group, groups[group])
        while self.cost and sum(self._improve(group, groups[group]) for group in order):
            pass

    @property
    def cost(self) -> int:
        return sum(self._cost(label, taken) for label, taken in self._by_label())

    @property
    def one_sided(self) -> list[int]:
        return [label for label, taken in self._by_label() if taken in (0, self.totals[label])]

    @property
    def is_near(self) -> bool:
        off = (abs(taken - self.shares[label]) > max(1, self.shares[label] / 10) for label, taken in self._by_label())
        return not self.one_sided and not any(off)

    @property
    def farthest(self) -> int:
        return max(sorted(self.totals), key=lambda label: self._cost(label, self.taken[label]) / self.totals[label])

    def _by_label(self) -> list[tuple[int, int]]:
        return [(label, self.taken[label]) for label in sorted(self.totals)]

    def _cost(self, label: int, taken: int) -> int:
        total = self.totals[label]
        return self._forbidden if taken in (0, total) else (taken - self.shares[label]) ** 2 * _UNIT // total

    def _improve(self, group: str, counts: Counter[int]) -> bool:
        sign = -1 if group in self.chosen else 1
        taken = ((label, self.taken[label], self.taken[label] + sign * n) for label, n in counts.items())
        is_better = sum(self._cost(label, after) - self._cost(label, before) for label, before, after in taken) < 0
        if is_better:
            self._move(group, counts)
        return is_better

    def _move(self, group: str, counts: Counter[int]) -> None:
        (self.taken.subtract if group in self.chosen else self.taken.update)(counts)
        self.chosen ^= {group}
