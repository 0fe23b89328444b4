/**
 * A widget's kernel in place of a server: what `Live` says and hears goes by the messages of the widget.
 *
 * The kernel sends each message as a buffer with the name of the view that it is for, because every page hears all of them.
 * When the job has ended and everything was sent, the kernel sends nothing more: the connection is not broken. A kernel that
 * is busy may not hear a page; what it tells everybody meanwhile is taken as the answer.
 */
import { send, type Model } from './model';
import type { Socket } from '../api/stream';

interface Told {
  type?: string;
  viewer?: string;
  /** Whether this was the last message. */
  settled?: boolean;
}

/** Heartbeat interval in milliseconds after everything was sent. */
const BEAT = 2_000;
/** Receiver of messages before the first subscription. */
const EVERYBODY = '';
const OPEN = 1;

export class KernelSocket implements Socket {
  onopen: Socket['onopen'] = null;
  onclose: Socket['onclose'] = null;
  onerror: Socket['onerror'] = null;
  onmessage: Socket['onmessage'] = null;
  readyState = 0;
  readonly #viewer = Math.random().toString(36).slice(2);
  readonly #decoder = new TextDecoder();
  #beat: ReturnType<typeof setInterval> | undefined;
  /** The number of the last subscription, and whether the kernel has answered one, or spoken to everybody. */
  #number = 0;
  #answered = false;
  #overheard = false;

  constructor(private readonly model: Model) {
    model.on('msg:custom', this.#hear);
    queueMicrotask(() => {
      this.readyState = OPEN;
      this.onopen?.({} as never);
    });
  }

  send(text: string): void {
    clearInterval(this.#beat);
    const subscription = JSON.parse(text) as { number: number };
    this.#number = subscription.number;
    this.#overheard = false;
    send(this.model, 'subscribe', { viewer: this.#viewer, subscription });
  }

  close(): void {
    this.readyState = 3;
    clearInterval(this.#beat);
    this.model.off('msg:custom', this.#hear);
    send(this.model, 'leave', { viewer: this.#viewer });
  }

  readonly #hear = (message: unknown, buffers: DataView[] = []): void => {
    const { type, viewer, settled } = message as Told;
    if (type !== 'told' || !this.#concerns(viewer)) return;
    for (const buffer of buffers) this.#said(this.#decoder.decode(buffer));
    clearInterval(this.#beat);
    if (settled) this.#beat = setInterval(() => this.#said('{"type":"alive"}'), BEAT);
  };

  #concerns(viewer: string | undefined): boolean {
    if (viewer === this.#viewer) return (this.#answered = true);
    if (viewer !== EVERYBODY || this.#answered || !this.#number) return false;
    if (!this.#overheard) this.#said(JSON.stringify({ type: 'hello', number: this.#number, server_id: '' }));
    return (this.#overheard = true);
  }

  #said(data: string): void {
    this.onmessage?.({ data } as never);
  }
}
