/**
 * The language of the page, which is JupyterLab's, known before any other plugin of this extension makes a text.
 *
 * Every plugin that shows text requires `ILanguage`, also when it uses only `__` of `trans.ts`: that orders them.
 */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { PageConfig } from '@jupyterlab/coreutils';
import { ITranslator } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';
import { DOMAIN, NAME, SETTINGS } from './ids';
import { setDocs } from '../ui/refusal';
import { setBundle, type Bundle } from '../ui/trans';

export const ILanguage = new Token<Bundle>(`${NAME}:ILanguage`, 'The texts of distributed training in the language of the page.');

const plugin: JupyterFrontEndPlugin<Bundle> = {
  id: SETTINGS,
  description: 'Settings and language of distributed training.',
  autoStart: true,
  requires: [ITranslator],
  provides: ILanguage,
  activate: (_app, translator: ITranslator): Bundle => {
    setDocs(PageConfig.getOption('distdlDocs'));
    const bundle = translator.load(DOMAIN);
    setBundle(bundle);
    return bundle;
  },
};

export default plugin;
