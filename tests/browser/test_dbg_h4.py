import time
def test_sub(notebook, lab):
    code='''
import anywidget, traitlets, threading, time
LOG=[]
class W(anywidget.AnyWidget):
    _esm = """export default () => ({
      initialize({model}) { model.send({type:'hello'}); },
      render({model, el}) { el.innerHTML='<button id=bb>x</button>'; el.firstChild.onclick=()=>{model.send({type:'click'}); model.set('n', model.get('n')+1); model.save_changes();}; model.on('change:m',()=>{el.append(' m'+model.get('m'))}); model.on('msg:custom',(m)=>{el.append(' msg'+JSON.stringify(m))}) }
    })"""
    n = traitlets.Int(0).tag(sync=True)
    m = traitlets.Int(0).tag(sync=True)
w=W()
w.on_msg(lambda *a: LOG.append((a[1], threading.current_thread().name)))
def run():
    for i in range(8):
        time.sleep(0.5); w.m=i; w.send({'k':i})
threading.Thread(target=run).start()
w'''
    b=notebook([code, "time.sleep(3); LOG, w.n", "for i in range(4000000): pass\nLOG, w.n"])
    msgs=[]
    b.page.on('console', lambda m: msgs.append(m.text[:600]))
    b.run_all()
    b.page.wait_for_selector('#bb')
    b.page.click('#bb'); 
    time.sleep(8)
    b.page.click('#bb'); 
    time.sleep(1)
    for i in range(b.page.locator('.jp-OutputArea-output').count()): print(b.page.locator('.jp-OutputArea-output').nth(i).inner_text())
    print(msgs, b.errors)
    print((lab.home/'server.log').read_text()[-3000:])
