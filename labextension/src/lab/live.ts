/** The jobs and clusters of this server, for all other plugins: calls of its API and one WebSocket for the page. */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { Token } from '@lumino/coreutils';
import { Api } from '../api/api';
import { NAME } from './ids';
import { ILanguage } from './language';
import { Live } from '../api/stream';

/** Rows of a log that are fetched at once. */
const ROWS = 10_000;

export interface DistDL {
  api: Api;
  live: Live;
}

export const IDistDL = new Token<DistDL>(`${NAME}:IDistDL`, 'The jobs and clusters of this server: typed calls, and what changes.');

const plugin: JupyterFrontEndPlugin<DistDL> = {
  id: `${NAME}:live`,
  description: 'The jobs and clusters of this server, as the other plugins ask for them.',
  autoStart: true,
  requires: [ILanguage],
  provides: IDistDL,
  activate: (app): DistDL => {
    const settings = app.serviceManager.serverSettings;
    const transport = (where: string, init: RequestInit): Promise<Response> => ServerConnection.makeRequest(where, init, settings);
    const api = new Api(transport, settings.baseUrl.replace(/\/$/, ''), (plain) => withToken(plain, settings));
    const at = (base: string, path: string): string => URLExt.join(base, 'distdl/api/') + path;
    const dial = (path: string): WebSocket => new settings.WebSocket(withToken(at(settings.wsUrl, path), settings));
    const live = new Live(dial, (path, init) => transport(at(settings.baseUrl, path), init), (id) => (before) => api.log(id, { before, limit: ROWS }));
    window.addEventListener('online', () => live.tryNow());
    return { api, live };
  },
};

/** A download and a WebSocket have no headers: where the page itself sends a token, the address has to. */
function withToken(address: string, { appendToken, token }: ServerConnection.ISettings): string {
  return appendToken && token ? `${address}${address.includes('?') ? '&' : '?'}token=${encodeURIComponent(token)}` : address;
}

export default plugin;
