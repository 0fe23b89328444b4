"""The running cost: nodes x hours x price, only where a price is known, with who says so."""

from __future__ import annotations

from distdl_jupyter.core import humanize
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views.card import format_cost, make_card
from distdl_jupyter.views.job_page import make_spec_rows

HOUR = 3600.0
SOURCE = "Retail Prices API, westeurope, dedicated, 2026-11-20"


def priced(**more):
    spec = JobSpec(
        id="x", name="digits", node_count=2, price_per_hour=3.675, currency="USD", price_source=SOURCE, **more
    )
    return spec, JobView.from_spec(spec)


def told(view, *events):
    for event in events:
        view.apply(event)
    return view


def state(name, t):
    return {"type": "state", "state": name, "t": t}


def test_a_job_without_a_price_has_no_cost_anywhere():
    spec = JobSpec(id="x", name="digits")
    view = told(JobView.from_spec(spec), state("running", 0.0))
    assert view.compute_cost(HOUR) is None
    assert make_card(view, HOUR).price_per_hour is None
    assert format_cost(view, HOUR) == ""
    assert not any(row.field == "price_per_hour" for row in make_spec_rows(spec))


def test_the_sum_begins_when_the_nodes_are_its_own_and_ends_with_the_job():
    _, view = priced()
    assert format_cost(view, HOUR) == "about 7.35 USD/h for 2 nodes"
    told(view, state("preparing", HOUR))
    assert view.compute_cost(2 * HOUR) == 0  # it waits in a queue
    told(view, state("starting", 2 * HOUR), state("running", 2.1 * HOUR))
    assert format_cost(view, 3 * HOUR) == "about 7.35 USD so far"
    told(view, state("completed", 4 * HOUR))
    assert format_cost(view, 9 * HOUR) == "about 14.70 USD"
    shown = make_card(view, 9 * HOUR)
    assert (shown.price_per_hour, shown.currency, shown.node_count, shown.paid_since) == (3.675, "USD", 2, 2 * HOUR)
    assert shown.price_source == SOURCE


def test_a_job_that_never_had_nodes_cost_nothing():
    _, view = priced()
    told(view, state("canceled", HOUR))
    assert format_cost(view, 2 * HOUR) == ""
    assert make_card(view, 2 * HOUR).paid_since is None


def test_the_spec_names_price_and_source_and_keeps_them():
    spec, _ = priced()
    row = next(row for row in make_spec_rows(spec) if row.field == "price_per_hour")
    assert row.value == f"3.67 USD per node and hour ({SOURCE})"
    again = JobSpec.from_json(spec.to_json())
    assert (again.price_per_hour, again.currency, again.price_source) == (3.675, "USD", SOURCE)


def test_money_is_written_with_two_decimals_and_never_rounded_to_nothing():
    assert humanize.money(0, "USD") == "0.00 USD"
    assert humanize.money(0.0004, "EUR") == "0.01 EUR"
    assert humanize.money(1204.5, "EUR") == "1,204.50 EUR"
