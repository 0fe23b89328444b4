/**
 * Computes the launch form: in the notebook's kernel, which knows its names, or on the server.
 *
 * An idle kernel receives the request over a comm, so that backends, GPUs and captured names match the environment of the
 * cell. The server responds for a kernel that is busy or not started.
 */
import type { Kernel } from '@jupyterlab/services';
import { KernelMessage, ServerConnection } from '@jupyterlab/services';
import { URLExt } from '@jupyterlab/coreutils';
import { UUID, type JSONObject } from '@lumino/coreutils';
import type { FormRequest, FormState } from '../form/state';
import { Refusal } from '../ui/refusal';
import { __ } from '../ui/trans';
import { valueOf, type Answer } from '../widgets/kernel';

/** The target that the extension of the kernel registers (`magic/extension.py`). */
const TARGET = 'distdl-jupyter';
/** Loads that extension; loading it again changes nothing. */
const LOAD = "get_ipython().extension_manager.load_extension('distdl_jupyter')";
/** Timeout in milliseconds; an idle kernel responds faster, so a cell was started in between. */
const TIMEOUT = 8000;

/** Return the form as the kernel knows it, null when the kernel did not respond in time. Raises Refusal. */
export async function askKernel(kernel: Kernel.IKernelConnection, request: FormRequest): Promise<FormState | null> {
  return (await Promise.race([sendRequest(kernel, 'form.state', { request }), late(TIMEOUT)])) as FormState | null;
}

/** Put secrets into the environment of the kernel, where `--env NAME` finds them. Raises Refusal. */
export async function keepSecrets(kernel: Kernel.IKernelConnection, variables: Record<string, string>): Promise<void> {
  await sendRequest(kernel, 'form.keep', { variables });
}

/** Return what the kernel answers (`magic/frontend_api.py`), null when the kernel did not handle the request. Raises Refusal. */
async function sendRequest(kernel: Kernel.IKernelConnection, ask: string, params: Record<string, unknown>): Promise<unknown> {
  const loaded = await kernel.requestExecute({ code: LOAD, silent: true, store_history: false, stop_on_error: false, allow_stdin: false }).done;
  if (loaded.content.status === 'error') throw new Refusal(mishap(loaded.content));
  if (loaded.content.status !== 'ok') return null;
  const id = UUID.uuid4();
  // A connection that handles comms reports the end of one that it does not know as an error.
  if (kernel.handleComms) kernel.createComm(TARGET, id);
  const content = { comm_id: id, target_name: TARGET, data: { ask, given: params } as JSONObject };
  const message = KernelMessage.createMessage<KernelMessage.ICommOpenMsg<'shell'>>({ msgType: 'comm_open', channel: 'shell', username: kernel.username, session: kernel.clientId, content });
  const future = kernel.sendShellMessage(message, false, true);
  const answers: Answer[] = [];
  future.onIOPub = (end) => void (KernelMessage.isCommCloseMsg(end) && answers.push(end.content.data as Answer));
  await future.done;
  const [answer] = answers;
  if (answer && !('value' in answer) && !answer.error) throw new Refusal(mishap({ ename: 'ImportError', evalue: TARGET }));
  return answer ? valueOf(answer) : null;
}

const late = (milliseconds: number): Promise<null> => new Promise((resolve) => setTimeout(() => resolve(null), milliseconds));

function mishap({ ename, evalue }: { ename: string; evalue: string }): string {
  if (ename === 'ModuleNotFoundError' || ename === 'ImportError') {
    return __('This kernel has no distdl_jupyter of this version (%1). Install it there as you did for JupyterLab, and restart the kernel.', evalue);
  }
  return __('The kernel could not create the form: %1', `${ename}: ${evalue}`);
}

/** Return the form as the server knows it, for the Python of a kernel; it stops when that is not wanted. Raises Refusal. */
export async function askServer(request: FormRequest, kernelName: string, wanted?: AbortSignal): Promise<FormState> {
  return (await posted('form', { ...request, kernel_name: kernelName }, wanted)) as FormState;
}

/** Start a job from source text, in the folder of the script it is from, and return its id and name. Raises Refusal. */
export async function submitText(code: string, script: string, kernelName: string, options: Record<string, unknown>, check = false): Promise<{ id: string; name: string }> {
  return (await posted('jobs', { code, notebook: script, kernel_name: kernelName, options, check })) as { id: string; name: string };
}

/** Start a sweep of source text, as `submitText` starts a job; `plan` is what it varies, and how. Raises Refusal. */
export async function sweepText(code: string, script: string, kernelName: string, options: Record<string, unknown>, plan: Record<string, unknown>): Promise<{ id: string; name: string }> {
  return (await posted('sweeps', { code, notebook: script, kernel_name: kernelName, options, ...plan })) as { id: string; name: string };
}

async function posted(path: string, body: unknown, wanted: AbortSignal | null = null): Promise<unknown> {
  const settings = ServerConnection.makeSettings();
  const url = URLExt.join(settings.baseUrl, 'distdl', 'api', path);
  let response: Response;
  try {
    response = await ServerConnection.makeRequest(url, { method: 'POST', body: JSON.stringify(body), signal: wanted }, settings);
  } catch {
    throw new Refusal(__('The Jupyter server is not responding.'));
  }
  const answer = (await response.json().catch(() => ({}))) as { message?: string; hint?: string; field?: string; code?: string };
  if (response.ok) return answer;
  throw new Refusal(answer.message ?? `${response.status} ${response.statusText}`, answer.hint ?? '', answer.field, answer.code);
}
