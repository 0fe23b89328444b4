"""What the panel of a scaling study says, and the page that a notebook keeps of it."""

import base64
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from distdl_jupyter.core.scaling import Point, Scaling
from distdl_jupyter.core.state import State
from distdl_jupyter.core.step_times import Straggler
from distdl_jupyter.saved import scaling as saved
from distdl_jupyter.views.scaling_panel import Facts, panel

FACTS = Facts(id="20261125-120000-s2cab", state=State.COMPLETED, target="local", done=3, size=3, runs=6, seconds=40,
              processes=(1, 2, 4), backends=("torch",))  # fmt: skip


def made(processes, *, waiting=0.0, batch=32.0, backend="torch", own=0.041, communication=None):
    ring = 0.002 * (processes > 1) if communication is None else communication
    rate = processes * batch / (own + ring + waiting)
    return Point(backend, processes, 1, rate, 0.01 * rate, own, ring, waiting, processes * batch, 2)


def slow(**more):
    points = [made(1), made(2), made(4, waiting=0.019)]
    facts = replace(FACTS, stragglers={("torch", 4): Straggler(3, "gpu2", "data", 0.019, 30.0)}, **more)
    return Scaling("digits", points), facts


def test_a_straggler_is_named_with_what_would_be_reached_without_it():
    shown = panel(*slow())
    assert shown.headline == "4 processes reach 66 % of ideal."
    assert shown.reason == "19.0 of 62.0 ms per step are spent waiting for rank 3. Without that delay: 95 %."
    assert shown.without is not None
    assert (shown.without.processes, shown.without.text) == (4, "95 % without the delay of rank 3")
    assert not shown.well
    assert [(row.processes, row.measured, row.slow) for row in shown.rows] == [
        (1, True, ""), (2, True, ""), (4, True, "waiting"), (8, False, ""), (16, False, ""),
    ]  # fmt: skip
    assert shown.words == ("local", "1, 2 and 4 processes", "torch", "weak scaling: batch of 32 per process")
    assert shown.summary == "6 short runs, 40 s in total"


def test_nothing_is_warned_of_where_all_is_well():
    shown = panel(Scaling("digits", [made(n) for n in (1, 2, 4)]), FACTS)
    assert shown.well
    assert shown.headline == "4 processes reach 95 % of ideal."
    assert {row.slow for row in shown.rows} == {""}


def test_forecast_for_a_size_says_that_a_latency_is_left_out():
    points = [replace(made(n), gradients=1e6, backward=0.01) for n in (1, 2)]
    shown = panel(Scaling("digits", points), replace(FACTS, vm_size="Standard_NC64as_T4_v3"))
    assert " on NC64as_T4_v3 (32 Gb/s, ignoring its latency): " in shown.detail


@pytest.mark.parametrize("noise", [0.05, 2.0])
def test_a_forecast_whose_error_is_larger_than_itself_asks_for_a_quiet_machine(noise):
    points = [replace(one, error=noise * one.rate) for one in map(made, (1, 2))]
    said = panel(Scaling("digits", points), FACTS).detail
    assert said.startswith("Forecast for 8 processes on links like the measured ones: ")
    assert ("vary too much for a better estimate" in said) is (noise > 1)


def test_own_work_that_grows_is_told_from_communication():
    shown = panel(Scaling("digits", [made(1), made(2, own=0.08)]), FACTS)
    assert shown.reason.startswith("39.0 of 82.0 ms per step are additional computation compared with 1 process")
    shown = panel(Scaling("digits", [made(1), made(2, communication=0.02)]), FACTS)
    assert shown.reason == "20.0 of 61.0 ms per step are spent on communication."


def test_a_batch_that_all_share_is_strong_scaling_and_has_no_forecast():
    points = [made(1), *(made(n, batch=32 / n) for n in (2, 4))]
    shown = panel(Scaling("digits", points), replace(FACTS, learning_rate=0.01))
    assert shown.mode == "strong"
    assert shown.words[-1] == "strong scaling: total batch of 32"
    assert all(row.measured for row in shown.rows)
    assert "No forecast" in shown.note
    assert {row.learning_rate for row in shown.rows} == {0.01}


def test_the_learning_rate_grows_with_the_batch_and_is_never_invented():
    shown = panel(*slow(learning_rate=0.01))
    assert [row.learning_rate for row in shown.rows] == [pytest.approx(0.01 * n) for n in (1, 2, 4, 8, 16)]
    assert "Learning rate: 0.01 with 1 process, otherwise by the linear scaling rule (Goyal et al., 2017" in shown.note
    assert {row.learning_rate for row in panel(*slow()).rows} == {None}
    uncounted = Scaling("digits", [replace(made(n), counts_samples=False) for n in (1, 2)])
    shown = panel(uncounted, replace(FACTS, learning_rate=0.01))
    assert (shown.mode, shown.unit) == ("", "batches")
    assert {row.learning_rate for row in shown.rows} == {None}


def test_an_epoch_has_a_price_only_where_its_samples_and_a_price_are_known():
    known = {"price_per_hour": 3.0, "currency": "USD", "price_source": "set by you"}
    assert panel(*slow()).prices == panel(*slow(epoch_samples=50_000)).prices == panel(*slow(**known)).prices == ()
    shown = panel(*slow(epoch_samples=50_000, **known))
    (price,) = shown.prices
    assert price.cost == pytest.approx(3.0 * 50_000 / (128 / 0.062) / 3600)
    assert shown.price_notes == ("Prices: set by you.",)
    assert shown.price_title == "4 processes, measured, 50,000 samples"


def test_a_study_is_shown_while_it_goes_on():
    facts = replace(FACTS, state=State.RUNNING, done=0, runs=1, seconds=5)
    shown = panel(Scaling("digits"), facts)
    assert (shown.rows, shown.headline, shown.ideal) == ((), "", None)
    assert shown.summary == "0 of 3 measured, 1 short run, 5 s so far"
    assert "Running" in saved.html(shown)
    assert "this saved page is not updated" in saved.html(shown)
    one = panel(Scaling("digits", [made(1)]), facts)
    assert len(one.rows) == 1
    assert "<img" in saved.html(one)


def test_the_page_that_a_notebook_keeps_holds_all_and_runs_nothing():
    scaling, facts = slow(learning_rate=0.01, epoch_samples=50_000, price_per_hour=3.0, currency="USD",
                          price_source="your <own> figure")  # fmt: skip
    scaling.points.extend(made(n, backend="horovod-<gloo>") for n in (1, 2, 4))
    page = saved.html(panel(scaling, facts))
    assert len(page.encode()) < 60_000
    for text in ("Scaling of digits", "4 processes reach 66 % of ideal.", "62.0", "0.04", "Price of one epoch",
                 "your &lt;own&gt; figure", "horovod-&lt;gloo&gt;"):  # fmt: skip
        assert text in page
    assert "<script" not in page
    assert "<gloo>" not in page
    picture = base64.b64decode(re.search(r"base64,([^\"]+)", page).group(1))
    drawn = ET.fromstring(picture)
    words = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"measured", "forecast", "ideal", "processes", "66 %", "95 % without the delay of rank 3"} <= set(words)
