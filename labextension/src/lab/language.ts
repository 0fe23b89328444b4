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
import { Sentences } from '../ui/said';
import { setBundle, type Bundle } from '../ui/trans';

export const ILanguage = new Token<Bundle>(`${NAME}:ILanguage`, 'The texts of distributed training in the language of the page.');

/** The catalogues, each a file of its own that is fetched when its language is chosen. */
const CATALOGUES: Record<string, () => Promise<{ default: object }>> = {
  'ja-JP': () => import('../../../distdl_jupyter/locale/ja_JP/LC_MESSAGES/distdl_jupyter.json'),
  'zh-TW': () => import('../../../distdl_jupyter/locale/zh_TW/LC_MESSAGES/distdl_jupyter.json'),
};

const plugin: JupyterFrontEndPlugin<Bundle> = {
  id: SETTINGS,
  description: 'Settings and language of distributed training.',
  autoStart: true,
  requires: [ITranslator],
  provides: ILanguage,
  activate: async (_app, translator: ITranslator): Promise<Bundle> => {
    setDocs(PageConfig.getOption('distdlDocs'));
    const bundle = translator.load(DOMAIN);
    const catalogue = await CATALOGUES[translator.languageCode]?.();
    setBundle(bundle, catalogue ? new Sentences(catalogue.default as Record<string, unknown>) : null);
    return bundle;
  },
};

export default plugin;
