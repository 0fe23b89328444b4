"""The page's own live client, run by Node against a real server: ``page("code")`` evaluates JavaScript in it."""

import json
from pathlib import Path

from tests.conftest import wait_for
from tests.front_end import Program, bundle

DRIVER = """
import { createInterface } from 'node:readline';
import { Live } from './stream.mjs';
import { Api } from './api.mjs';
import { LogStore } from './logstore.mjs';
let [base, token, timeouts] = JSON.parse(process.argv[2]);
const move = (to) => { base = to; };
// The subscriptions of all WebSockets, and how many of these there were.
const asked = [];
let sockets = 0;
const dial = (path) => {
  sockets += 1;
  const socket = new WebSocket(`${base.replace('http', 'ws')}${path}?token=${token}`);
  const send = socket.send.bind(socket);
  socket.send = (text) => {
    asked.push(JSON.parse(text));
    send(text);
  };
  return socket;
};
const transport = (path, init) => {
  return fetch(base + path, { ...init, headers: { ...init.headers, Authorization: `token ${token}` } });
};
const root = base.replace('/distdl/api/', '');
const api = new Api((address, init) => transport(address.slice(`${root}/distdl/api/`.length), init), root);
const live = new Live(dial, transport, (id) => (before) => api.log(id, { before, limit: 1000 }), timeouts);
const seen = {}, watches = {}, states = [];
live.onState(() => states.push(live.state));
// What a view of a job keeps of what it is told.
const watch = (name, id, wish) => {
  const view = (seen[name] = { store: new LogStore(), jobs: [], curves: [], wholes: 0, logs: 0, gone: 0 });
  watches[name] = live.watchJob(id, wish, {
    job: (message) => view.jobs.push(message),
    log: (message) => {
      view.logs += 1;
      view.wholes += message.whole ? 1 : 0;
      view.store.apply(message, message.whole);
    },
    curve: (message) => view.curves.push(message),
    gone: () => { view.gone += 1; },
  });
};
const kept = (name) => seen[name].store.rows(null).filter((row) => row.n >= 0);
const rows = (name) => kept(name).map((row) => [row.n, row.text, row.lines.size]);
const globals = { live, api, seen, watches, states, asked, watch, rows, move, sockets: () => sockets };
for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    const run = new Function(...Object.keys(globals), 'given', `return (async () => { ${JSON.parse(line)[0]} })()`);
    answer = { value: (await run(...Object.values(globals), JSON.parse(line)[1])) ?? null };
  } catch (error) {
    answer = { error: String(error?.stack ?? error) };
  }
  process.stdout.write(JSON.stringify(answer) + '\\n');
}
process.exit(0);
"""

QUICK = {"silence": 6, "retry": [0.1, 0.5]}


class NodePage(Program):
    """A page without a browser."""

    def __init__(self, folder, url, token):
        for name in ("api/stream", "api/api", "job/logstore"):
            bundle(name, folder / f"{Path(name).name}.mjs")
        (folder / "driver.mjs").write_text(DRIVER)
        super().__init__(folder / "driver.mjs", json.dumps([url, token, QUICK]))

    def __call__(self, code, given=None):
        """Return what a function body returns; it may ``await``."""
        answer = self.ask([code, given])
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def until(self, code, timeout=60):
        return wait_for(lambda: self(f"return {code};"), timeout, code)
