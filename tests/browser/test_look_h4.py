"""python h4_look.py kind [dark] [width]: screenshot of the recorded kind."""
import sys, os, time, subprocess
sys.path.insert(0,'/work/main')
import pytest
KINDS=os.environ.get('KINDS','running').split(',')
DARK=os.environ.get('DARK')=='1'
WIDTH=int(os.environ.get('WIDTH','1100'))
WAIT=float(os.environ.get('WAIT','3'))
from tests.panels import recorded
from distdl_jupyter.core.store import JobStore
from tests.browser.conftest import *

@pytest.mark.parametrize('kind', KINDS)
def test_look(notebook, lab, kind):
    store=JobStore(lab.home/'distdl')
    story=recorded.tell(kind, store)
    b=notebook([f"from distdl_jupyter import attach, panel\npanel(attach('{story.id}'))"], dark=DARK, width=WIDTH)
    msgs=[]
    b.page.on('console', lambda m: msgs.append(m.text))
    b.run_all()
    try:
        b.page.wait_for_selector('.dd-head .dd-title', timeout=30000)
        time.sleep(WAIT)
    finally:
        out=b.picture(f"look-{kind}{'-dark' if DARK else ''}-{WIDTH}")
    print(b.errors, [m for m in msgs if 'rror' in m][:5])
    story.close()

def test_debug(notebook, lab):
    store=JobStore(lab.home/'distdl')
    story=recorded.tell('running', store)
    b=notebook([f"from distdl_jupyter import attach, panel\np=panel(attach('{story.id}'))\np", "import time; time.sleep(5); (p.model.show_log, p.lines._dom_classes, p.curve.box._dom_classes, p.lines.greeted, p.lines._seq)"])
    msgs=[]
    b.page.on('console', lambda m: msgs.append(m.text[:600]))
    b.run_all()
    b.page.wait_for_selector('.js-plotly-plot', timeout=60000)
    time.sleep(12)
    print(msgs, b.errors)
    print(b.page.evaluate("()=>document.querySelector('.dd-log').innerHTML.slice(0,3000)"))
    print(b.page.evaluate("""()=>[...document.querySelectorAll('.dd-card, .dd-body > *, .dd-plot, .dd-plot > *, .js-plotly-plot')].map(e=>e.className+' '+e.clientWidth+'x'+e.clientHeight+' '+(!!e._responsiveChartHandler))"""))
    print(b.page.locator('.jp-OutputArea-output').nth(1).inner_text())
    print(b.page.locator('.jp-OutputArea-output').nth(2).inner_text() if b.page.locator('.jp-OutputArea-output').count()>2 else '')
