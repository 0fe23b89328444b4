/**
 * Loads the launch form from the notebook's kernel or from the server.
 *
 * An idle kernel receives the request over a comm, so that backends, GPUs and captured names match the environment of the
 * cell. The server responds if the kernel is busy or not started.
 */
import type { Kernel } from '@jupyterlab/services';
import { KernelMessage, ServerConnection } from '@jupyterlab/services';
import { URLExt } from '@jupyterlab/coreutils';
import { UUID, type JSONObject } from '@lumino/coreutils';
import type { FormRequest, FormState } from '../form/state';
import { Refusal } from '../ui/refusal';
import { __ } from '../ui/trans';
import { valueOf, type Answer } from '../widgets/kernel';

/** The comm target that the kernel extension registers (`magic/__init__.py`). */
const TARGET = 'distdl-jupyter';
/** Code that loads the kernel extension; loading it twice has no effect. */
const LOAD = "get_ipython().extension_manager.load_extension('distdl_jupyter')";
/** Timeout in milliseconds. An idle kernel responds sooner; after that, it must have started to run a cell. */
const TIMEOUT = 8000;

/** Request the form from the kernel; null if it did not respond in time. Throws Refusal. */
export async function askKernel(kernel: Kernel.IKernelConnection, request: FormRequest): Promise<FormState | null> {
  return (await Promise.race([sendRequest(kernel, 'form.state', { request }), nullAfter(TIMEOUT)])) as FormState | null;
}

/** Set secrets as environment variables of the kernel, where `--env NAME` reads them. Throws Refusal. */
export async function keepSecrets(kernel: Kernel.IKernelConnection, variables: Record<string, string>): Promise<void> {
  await sendRequest(kernel, 'form.keep', { variables });
}

/** Send a request to the kernel (`magic/__init__.py`) and return its response, null if it was not handled. Throws Refusal. */
async function sendRequest(kernel: Kernel.IKernelConnection, method: string, params: Record<string, unknown>): Promise<unknown> {
  const loaded = await kernel.requestExecute({ code: LOAD, silent: true, store_history: false, stop_on_error: false, allow_stdin: false }).done;
  if (loaded.content.status === 'error') throw new Refusal(describeError(loaded.content));
  if (loaded.content.status !== 'ok') return null;
  const id = UUID.uuid4();
  // A connection that handles comms reports an error when an unknown comm closes.
  if (kernel.handleComms) kernel.createComm(TARGET, id);
  const content = { comm_id: id, target_name: TARGET, data: { call: method, arguments: params } as JSONObject };
  const message = KernelMessage.createMessage<KernelMessage.ICommOpenMsg<'shell'>>({ msgType: 'comm_open', channel: 'shell', username: kernel.username, session: kernel.clientId, content });
  const future = kernel.sendShellMessage(message, false, true);
  const answers: Answer[] = [];
  future.onIOPub = (end) => void (KernelMessage.isCommCloseMsg(end) && answers.push(end.content.data as Answer));
  await future.done;
  const [answer] = answers;
  if (answer && !('value' in answer) && !answer.error) throw new Refusal(describeError({ ename: 'ImportError', evalue: TARGET }));
  return answer ? valueOf(answer) : null;
}

const nullAfter = (milliseconds: number): Promise<null> => new Promise((resolve) => setTimeout(() => resolve(null), milliseconds));

function describeError({ ename, evalue }: { ename: string; evalue: string }): string {
  if (ename === 'ModuleNotFoundError' || ename === 'ImportError') {
    return __('This kernel does not have this version of distdl_jupyter (%1). Install it in the same way as for JupyterLab, then restart the kernel.', evalue);
  }
  return __('The kernel could not create the form: %1', `${ename}: ${evalue}`);
}

/** Request the form from the server, for the Python environment of a kernel, until `signal` aborts. Throws Refusal. */
export async function askServer(request: FormRequest, kernelName: string, signal?: AbortSignal): Promise<FormState> {
  return (await post('form', { ...request, kernel_name: kernelName }, signal)) as FormState;
}

/** Start a job from source text, in the folder of its script, and return its id and name. Throws Refusal. */
export async function submitText(code: string, script: string, kernelName: string, options: Record<string, unknown>, check = false): Promise<{ id: string; name: string }> {
  return (await post('jobs', { code, notebook: script, kernel_name: kernelName, options, check })) as { id: string; name: string };
}

/** Start a sweep over `parameters` from source text, like `submitText`. Throws Refusal. */
export async function sweepText(code: string, script: string, kernelName: string, options: Record<string, unknown>, parameters: string): Promise<{ id: string; name: string }> {
  return (await post('sweeps', { code, notebook: script, kernel_name: kernelName, options, parameters })) as { id: string; name: string };
}

async function post(path: string, body: unknown, signal: AbortSignal | null = null): Promise<unknown> {
  const settings = ServerConnection.makeSettings();
  const url = URLExt.join(settings.baseUrl, 'distdl', 'api', path);
  let response: Response;
  try {
    response = await ServerConnection.makeRequest(url, { method: 'POST', body: JSON.stringify(body), signal }, settings);
  } catch {
    throw new Refusal(__('The Jupyter server is not responding.'));
  }
  const answer = (await response.json().catch(() => ({}))) as { message?: string; hint?: string; field?: string; code?: string };
  if (response.ok) return answer;
  throw new Refusal(answer.message ?? `${response.status} ${response.statusText}`, answer.hint ?? '', answer.field, answer.code);
}
