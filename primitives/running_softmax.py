"""What the maximum and the sum of a row mean while its keys are taken in; scalars of a kernel.

Shared by the forms of online softmax for GPUs: `row_softmax`, whose rows are spread over four
threads, and `whole_row_softmax`, whose rows have a thread each.  The recurrence is that of
`online_softmax`, in base 2; what is added to it is FlashAttention-4's conditional rescale (arXiv
2603.05451, section 3.1): sums and outputs stay relative to an older maximum until it is exceeded by
more than `tau`, so that most tiles rescale nothing.  Probabilities are then at most ``2^tau``; the
last normalisation makes the result exact.

A row that has seen nothing has a maximum of minus infinity and a sum of 0, and no step makes NaN
of it.
"""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Float32, cute

from flexfa4.primitives.device_exponentials import exp2
from flexfa4.primitives.online_softmax import LN2


def finite(maximum: Float32) -> Float32:
    """Return the maximum, or 0 for a row that has seen nothing, whose scores are all -inf."""
    return cutlass.select_(maximum == -Float32.inf, Float32(0.0), maximum)


def exceeds(largest: Float32, maximum: Float32, tau: float) -> Boolean:
    """Return whether a maximum has grown by so much that sums are rescaled.

    Args:
        largest: the maximum now.
        maximum: what sums are relative to.
        tau: growth up to which they stay; 0: any growth counts.
    """
    return largest - maximum > tau


def correction_of(maximum: Float32, largest: Float32) -> Float32:
    """Return what makes sums relative to `maximum` ones relative to `largest`."""
    return exp2(maximum - finite(largest))


def normalisation(
    total: Float32, maximum: Float32, sink: Float32 | None
) -> tuple[Float32, Float32]:
    """Return what normalises a row, and its logarithm of the sum of exponentials.

    A row that saw nothing has 0 and minus infinity, or its sink.

    Args:
        total: sum of its probabilities.
        maximum: what they are relative to, base 2.
        sink: base 2: a logit that joins the sum; None for none.
    """
    if sink is None:
        kept = Float32(1.0)
    else:
        own = maximum
        maximum = cute.arch.fmax(own, sink)
        kept = exp2(own - finite(maximum))
        total = total * kept + exp2(sink - finite(maximum))
    inverse = cutlass.select_(total == 0.0, Float32(0.0), kept * cute.arch.rcp_approx(total))
    return inverse, (finite(maximum) + cute.math.log2(total, fastmath=True)) * LN2
