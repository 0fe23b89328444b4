/**
 * The language of the page, known before any other plugin of this extension makes a text.
 *
 * It is that of JupyterLab, or another one that the settings name: JupyterLab offers a language only when its language
 * pack is installed. Every plugin that shows text requires `ILanguage`, also when it uses only `__` of `trans.ts`: that
 * orders them.
 */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Gettext, ITranslator } from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';
import { DOMAIN, NAME, SETTINGS } from './ids';
import { setBundle, type Bundle } from '../ui/trans';

export const ILanguage = new Token<Bundle>(`${NAME}:ILanguage`, 'The texts of distributed training in the language of the page.');

/** The catalogues, each a file of its own that is fetched when its language is chosen. */
const CATALOGUES: Record<string, () => Promise<{ default: object }>> = {
  ja_JP: () => import('../../../distdl_jupyter/locale/ja_JP/LC_MESSAGES/distdl_jupyter.json'),
  zh_TW: () => import('../../../distdl_jupyter/locale/zh_TW/LC_MESSAGES/distdl_jupyter.json'),
};
const OF_THE_PAGE = 'default';

const plugin: JupyterFrontEndPlugin<Bundle> = {
  id: SETTINGS,
  description: 'Settings and language of distributed training.',
  autoStart: true,
  requires: [ITranslator],
  optional: [ISettingRegistry],
  provides: ILanguage,
  activate: async (_app, translator: ITranslator, registry: ISettingRegistry | null): Promise<Bundle> => {
    const bundle = (await own(await chosen(registry))) ?? translator.load(DOMAIN);
    setBundle(bundle);
    return bundle;
  },
};

/** Return the language that the settings name; settings that cannot be read change nothing. */
async function chosen(registry: ISettingRegistry | null): Promise<string> {
  try {
    const value = (await registry?.get(SETTINGS, 'language'))?.composite;
    return typeof value === 'string' ? value : OF_THE_PAGE;
  } catch (error) {
    console.warn('The settings of distributed training cannot be read, so its language is that of JupyterLab.', error);
    return OF_THE_PAGE;
  }
}

/** Return the texts of a language by its own catalogue; null for the language of the page. */
async function own(language: string): Promise<Bundle | null> {
  if (language === OF_THE_PAGE) return null;
  const texts = new Gettext({ domain: DOMAIN, locale: language.replace('_', '-') });
  const catalogue = await CATALOGUES[language]?.();
  if (catalogue) texts.loadJSON(forGettext(catalogue.default), DOMAIN);
  return texts;
}

/** JupyterLab's files say `plural_forms`, its `Gettext` wants `pluralForms`. */
function forGettext(catalogue: object): Parameters<Gettext['loadJSON']>[0] {
  const { '': head, ...texts } = catalogue as Record<string, { plural_forms?: string }>;
  return { '': { ...head, pluralForms: head?.plural_forms }, ...texts } as unknown as Parameters<Gettext['loadJSON']>[0];
}

export default plugin;
