"""From what one replica takes, and a few at once, to what many would take. No TensorFlow, no files.

- *Work*: alone it takes T(1), as `few` at once T(few). On the cores of one machine each doubling costs the same factor
  as long as there are cores, then twice: T(n) = T(1) g^log2(min(n, cores)) max(1, n / cores). On devices of their own n
  take what `few` have taken.
- *Sums of gradients*: the latency-bandwidth model of a ring, alpha (n - 1) + beta 2 (n - 1) / n bytes (Thakur,
  Rabenseifner and Gropp, 2005). Replicas that are more than the cores take turns at what is not waiting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where replicas compute.

    Attributes:
        is_shared: whether they share one machine's cores; else each has a device of its own.
        cores: of that machine.
    """

    is_shared: bool
    cores: int

    def work(self, one: float, few: float, *, of: int, replicas: int) -> float:
        """What the work of a replica takes with so many at once; `few` is that of `of`, 2 or more, at once."""
        if replicas == 1:
            return one
        if not self.is_shared:
            return few
        per_doubling = math.log(max(few / self._turns(of) / one, 1e-9)) / math.log2(self._apart(of))
        return one * math.exp(per_doubling * math.log2(self._apart(replicas))) * self._turns(replicas)

    def shared_work(self, one: float, few: float, *, of: int, replicas: int) -> float:
        """The same of a work that is divided among the replicas, such as an evaluation."""
        if not self.is_shared:
            return one if replicas == 1 else few * of / replicas
        return self.work(one, few, of=of, replicas=min(replicas, max(self.cores, of)))

    def all_reduce(self, few: float, latency: float, *, of: int, replicas: int) -> float:
        """What a sum over so many replicas takes.

        Args:
            few: over `of` replicas.
            latency: of the smallest sum over them: the part that does not depend on the bytes.
            of: 2 or more.
            replicas: 1 or more.
        """
        waiting = min(few, latency)
        sent = (few - waiting) * self._ring(replicas) / self._ring(of) * self._turns(replicas) / self._turns(of)
        return waiting * (replicas - 1) / (of - 1) + sent

    def _apart(self, replicas: int) -> int:
        """As many of them as have cores of their own, or would on the smallest machine: two."""
        return min(replicas, max(2, self.cores)) if self.is_shared else replicas

    def _turns(self, replicas: int) -> float:
        return replicas / self._apart(replicas)

    def _ring(self, replicas: int) -> float:
        """What a replica sends, by the bytes of its gradients."""
        apart = self._apart(replicas)
        return 2 * (apart - 1) / apart


def between(sizes: Sequence[int], values: Sequence[float], size: int) -> float:
    """The value at `size` on the line through the two nearest sizes; no less than the smallest of the values' share.

    Args:
        sizes: ascending, at least one.
        values: measured there.
        size: also outside them.
    """
    if len(sizes) == 1:
        return values[0] * size / sizes[0]
    right = next((i for i in range(1, len(sizes) - 1) if size <= sizes[i]), len(sizes) - 1)
    left = right - 1
    slope = (values[right] - values[left]) / (sizes[right] - sizes[left])
    line = values[left] + slope * (size - sizes[left])
    return max(line, values[0] * min(1.0, size / sizes[0]))
