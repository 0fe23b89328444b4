/** The section "Azure" of the sidebar: the sign-in of this user, which kernels and jobs share. */
import { ICommandPalette } from '@jupyterlab/apputils';
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { SignIn } from '../azure/signin';
import type { AzureSignIn, SignInActions } from '../azure/types';
import { h, setText } from '../ui/dom';
import { Section } from '../sidebar/section';
import type { Api } from '../api/api';
import { NAME } from './ids';
import { ILanguage } from './language';
import { IDistDL, type DistDL } from './live';
import { ISidebar } from './sidebar';
import { __ } from '../ui/trans';

const COMMAND = 'distdl:azure-sign-in';

const plugin: JupyterFrontEndPlugin<void> = {
  id: `${NAME}:azure`,
  description: 'The sign-in to Azure in the sidebar.',
  autoStart: true,
  requires: [ILanguage, IDistDL, ISidebar],
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, _language: unknown, { api }: DistDL, sidebar: ISidebar, palette: ICommandPalette | null) => {
    const part = new AzureSection(api);
    sidebar.view.root.querySelector('.dd-fold-clusters')?.after(part.element);
    app.commands.addCommand(COMMAND, { label: __('Sign in to Azure'), execute: () => (sidebar.reveal(), part.reveal()) });
    palette?.addItem({ command: COMMAND, category: __('Distributed training') });
    part.begin();
  },
};

/** Folded at first; its head shows the signed-in account. */
class AzureSection {
  readonly element: HTMLElement;
  readonly #who = h('span', { class: 'dd-sub dd-s12 dd-ell dd-azure-who' });
  readonly #view: SignIn;
  readonly #section: Section;

  constructor(api: Api) {
    this.#view = new SignIn(azureActions(api), (now) => this.#changed(now));
    this.#section = new Section('azure', __('Azure'), this.#view.element, [this.#who], (open) => this.#toggled(open));
    this.#section.open = false;
    this.element = this.#section.element;
  }

  /** Ask once who is signed in, when the page has nothing better to do. */
  begin(): void {
    setTimeout(() => void this.#view.look(), 2000);
  }

  /** Open it, with the focus on the next step. */
  reveal(): void {
    this.#section.open = true;
    this.#toggled(true);
    this.element.scrollIntoView({ block: 'nearest' });
    this.#view.focus();
  }

  #toggled(open: boolean): void {
    if (open) this.#view.wake();
    else this.#view.rest();
  }

  #changed({ state, account }: AzureSignIn): void {
    setText(this.#who, state === 'waiting' ? __('Waiting') : (account?.name ?? (state === 'failed' ? __('Not signed in') : '')));
  }
}

export default plugin;

/** Return the actions for the sign-in of this user. */
function azureActions(api: Api): SignInActions {
  return {
    status: () => api.azure(),
    signIn: (start) => api.signIn(start),
    cancel: () => api.cancelSignIn(),
    signOut: () => api.signOut(),
    settle: (body) => api.changeAzure(body),
    subscriptions: () => api.subscriptions(),
  };
}
