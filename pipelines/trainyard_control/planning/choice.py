"""Chooses among the candidates of a plan, and gives a reason for each."""

from __future__ import annotations

from dataclasses import replace

from trainyard_control.planning.hardware import THIS_MACHINE
from trainyard_control.planning.plan import Candidate

ALIKE = 1.05  # chosen: a smaller speedup does not justify more devices


def choose(candidates: list[Candidate], deadline: float | None, budget: float | None) -> list[Candidate]:
    """Choose at most one candidate: the cheapest that meets deadline (hours) and budget (USD).

    Without limits, choose the cheapest whose training takes minutes or hours, otherwise the fastest. A pool without a
    price is chosen only if no pool with a price qualifies, and never against a budget; such pools are ranked by speed.
    """
    feasible = [candidate for candidate in candidates if candidate.feasible]
    within_limits = [candidate for candidate in feasible if not _objection(candidate, deadline, budget)]
    within_a_day = [candidate for candidate in within_limits if candidate.duration in ("minutes", "hours")]
    if deadline is not None or budget is not None:
        best = _cheapest(within_limits)
        why = f"{_compared('cheapest', within_limits)} within {_limits(deadline, budget)}"
    elif within_a_day:
        best = _cheapest(within_a_day)
        why = f"{_compared('cheapest', within_a_day)} whose training takes minutes or hours"
    else:
        best, why = _fastest(within_limits), f"{_compared('fastest', within_limits)}; none takes less than a day"
    if best and best.cost_usd is None:
        why = _compared("fastest", within_limits) + ("" if best.pool == THIS_MACHINE else "; it has no price")
    unpriced = [candidate for candidate in feasible if candidate.cost_usd is None]
    unpriced.sort(key=lambda candidate: candidate.expected_hours)

    def judged(candidate: Candidate) -> Candidate:
        if not candidate.feasible:
            return candidate
        if candidate is best:
            late = deadline is not None and candidate.hours is not None and candidate.hours.high > deadline
            reasons = [why, "may miss the deadline" if late else "", candidate.why]
            return replace(candidate, chosen=True, why="; ".join(filter(None, reasons)))
        against = _objection(candidate, deadline, budget) or _against(candidate, best, unpriced)
        return replace(candidate, why="; ".join(filter(None, [against, candidate.why])))

    return [judged(candidate) for candidate in candidates]


def _objection(candidate: Candidate, deadline: float | None, budget: float | None) -> str:
    """Return the limit that the candidate misses, as a sentence, '' if it misses none."""
    if deadline is not None and candidate.expected_hours > deadline:
        return f"takes {_number(candidate.expected_hours)} h, the deadline is {deadline:g} h"
    if budget is not None and candidate.cost_usd is None:
        return "no price, so the budget cannot be held: set price_per_hour"
    if budget is not None and candidate.cost_usd is not None and candidate.cost_usd > budget:
        return f"costs {usd(candidate.cost_usd)} USD, the budget is {budget:g}"
    return ""


def _against(candidate: Candidate, best: Candidate | None, unpriced: list[Candidate]) -> str:
    if best is None:
        return ""
    if candidate.cost_usd is None:
        speed = _speed(candidate, best)
        if best.cost_usd is None:  # no pool has a price: speed alone decides
            return speed
        rank = (
            f", number {unpriced.index(candidate) + 1} by speed of {len(unpriced)} without" if len(unpriced) > 1 else ""
        )
        return f"no price, {speed}{rank}: set price_per_hour to have its cost compared"
    if best.cost_usd is not None and candidate.cost_usd >= best.cost_usd:
        faster = best.expected_hours / candidate.expected_hours
        return f"costs {usd(candidate.cost_usd - best.cost_usd)} USD more" + (
            f", {faster:.1f} times as fast" if faster > 1.05 else ""
        )
    return "cheaper, but slower"


def _speed(candidate: Candidate, best: Candidate) -> str:
    times = best.expected_hours / candidate.expected_hours
    if 1 / ALIKE <= times <= ALIKE:
        return f"about as fast as {best.pool}" + (" with more devices" if candidate.devices > best.devices else "")
    return (
        f"{times:.3g} times as fast as {best.pool}" if times > 1 else f"{1 / times:.3g} times slower than {best.pool}"
    )


def usd(amount: float) -> str:
    """Format an amount in USD, with two significant digits below ten cents."""
    return f"{amount:,.2f}" if amount >= 0.1 else f"{amount:.2g}"


def _cheapest(pools: list[Candidate]) -> Candidate | None:
    """Return the cheapest pool with a price, otherwise the fastest."""
    if priced := _priced(pools):
        return min(priced, key=lambda candidate: (candidate.cost_usd or 0.0, candidate.expected_hours))
    return _fastest(pools)


def _fastest(pools: list[Candidate]) -> Candidate | None:
    """Return the fastest pool; of similar ones, the one with the fewest devices."""
    limit = ALIKE * min((candidate.expected_hours for candidate in pools), default=0.0)
    return min(
        (candidate for candidate in pools if candidate.expected_hours <= limit),
        key=lambda candidate: (candidate.devices, candidate.expected_hours),
        default=None,
    )


def _priced(pools: list[Candidate]) -> list[Candidate]:
    return [candidate for candidate in pools if candidate.cost_usd is not None]


def _number(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _compared(adjective: str, pools: list[Candidate]) -> str:
    """Describe the pools that the choice was compared with; prices compare only pools that have one."""
    compared = _priced(pools) if adjective == "cheapest" else pools
    with_price = " with a price" if len(compared) < len(pools) else ""
    return (
        f"the only pool{with_price}" if len(compared) == 1 else f"the {adjective} of {len(compared)} pools{with_price}"
    )


def _limits(deadline: float | None, budget: float | None) -> str:
    parts = [f"{deadline:g} h" if deadline is not None else "", f"{budget:g} USD" if budget is not None else ""]
    return " and ".join(filter(None, parts))
