/**
 * Who works the launch form out: the notebook's kernel, which knows its names, or the server.
 *
 * A kernel that is free is asked in its own Python by a silent request, so that backends, GPUs and captured names are
 * those of the environment in which the cell will run. The server answers for a kernel that is busy or not started.
 */
import type { Kernel } from '@jupyterlab/services';
import { ServerConnection } from '@jupyterlab/services';
import { URLExt } from '@jupyterlab/coreutils';
import type { FormRequest, FormState } from '../form/state';
import { Refusal } from '../ui/refusal';
import { __ } from '../ui/trans';

const PAGE = "__import__('distdl_jupyter.magic.frontend_api', fromlist=['page'])";
/** A kernel that is free answers in less; after this many milliseconds somebody has run a cell meanwhile. */
const TIMEOUT = 8000;

/** Return the form as the kernel knows it, null when the kernel did not come to it. Raises Refusal. */
export async function askKernel(kernel: Kernel.IKernelConnection, request: FormRequest): Promise<FormState | null> {
  const found = await evaluated(kernel, 'form', request, TIMEOUT);
  return found as FormState | null;
}

/** Put secrets into the environment of the kernel, where `--env NAME` finds them. Raises Refusal. */
export async function keepSecrets(kernel: Kernel.IKernelConnection, secrets: Record<string, string>): Promise<void> {
  await evaluated(kernel, 'keep', secrets, null);
}

/** Return what a function of `magic/frontend_api.py` answers; null after `timeout` milliseconds without an answer. */
async function evaluated(kernel: Kernel.IKernelConnection, name: string, asked: unknown, timeout: number | null): Promise<unknown> {
  // JSON of a string is a literal of Python too.
  const expression = `${PAGE}.${name}(${JSON.stringify(JSON.stringify(asked))})`;
  const future = kernel.requestExecute({ code: '', silent: true, store_history: false, stop_on_error: false, allow_stdin: false, user_expressions: { answer: expression } });
  const reply = await (timeout === null ? future.done : Promise.race([future.done, late(timeout)]));
  if (!reply || reply.content.status !== 'ok') return null;
  const answer = reply.content.user_expressions['answer'] as Expression | undefined;
  if (answer?.status === 'error') throw new Refusal(mishap(answer));
  const data = answer?.data?.['application/json'];
  const error = (data as { error?: { message: string; hint: string; field: string; code: string } } | undefined)?.error;
  if (error) throw new Refusal(error.message, error.hint, error.field, error.code);
  return data ?? null;
}

interface Expression {
  status: string;
  ename?: string;
  evalue?: string;
  data?: Record<string, unknown>;
}

const late = (milliseconds: number): Promise<null> => new Promise((resolve) => setTimeout(() => resolve(null), milliseconds));

function mishap({ ename = '', evalue = '' }: Expression): string {
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
