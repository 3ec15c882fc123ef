"""A random order of rows in which short and long ones take turns.

The rows of a window are divided by length into sixteen strata, and its places take turns with the
strata, in an order that balances any few that follow each other; lanes begin at different places
of it. So the tokens of a step lie evenly on the ranks, each of which serves a run of lanes, and
are about as many in every step.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from pipeline.ragged import read_only

STRATA = 16
# Every four from a multiple of four on have one stratum of each quarter and one of each remainder
# by four, and the same mean as all; so have the lanes of a rank at any time, which stand at every
# second or fourth place.
_STRATUM_AT = np.array([0, 14, 7, 9, 15, 1, 8, 6, 2, 12, 5, 11, 13, 3, 10, 4])


def balanced(
    order: NDArray[np.int64], row_tokens: NDArray[np.int64], turns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return rows in an order that is as random as `order`, but for their lengths.

    `order` is a permutation of the rows of a window, `row_tokens` [N] their tokens, `turns` [N]
    the turn of each place, by which it gets its stratum. A stratum is as large as it has places;
    its rows keep their order.
    """
    if order.size == 0 or int(row_tokens.min()) == int(row_tokens.max()):
        return order
    stratum = _STRATUM_AT[turns % STRATA]
    return np.asarray(_balanced(read_only(order), read_only(row_tokens), read_only(stratum)))


@nb.njit(cache=True, nogil=True)
def _balanced(
    order: NDArray[np.int64], row_tokens: NDArray[np.int64], stratum: NDArray[np.int64]
) -> Any:
    rows = order.size
    # Counting sorts: of the rows by length, and of the places by stratum.
    shorter = np.zeros(row_tokens.max() + 2, dtype=np.int64)
    for tokens in row_tokens:
        shorter[tokens + 1] += 1
    shorter = np.cumsum(shorter)
    ends = np.zeros(STRATA + 1, dtype=np.int64)
    for one in stratum:
        ends[one + 1] += 1
    ends = np.cumsum(ends)
    begins = ends[:-1].copy()
    places = np.empty(rows, dtype=np.int64)
    for place in range(rows):
        places[begins[stratum[place]]] = place
        begins[stratum[place]] += 1
    begins = ends[:-1].copy()
    result = np.empty(rows, dtype=np.int64)
    for row in order:
        by_length = shorter[row_tokens[row]]
        shorter[row_tokens[row]] += 1
        own = np.searchsorted(ends, by_length, side="right") - 1
        result[places[begins[own]]] = row
        begins[own] += 1
    return result
