// `npm run catalogues`: brings the catalogues of the languages up to date with the texts of src.
//
// A text is the literal first argument of `__` or `_n` (src/ui/trans.ts). For each language, the translator edits
// distdl_jupyter/locale/<language>/LC_MESSAGES/distdl_jupyter.po. `--compile` writes the .json beside it, which JupyterLab
// reads; every build does. `--check` writes nothing and prints, one sentence a line, what is missing or wrong; another
// folder of catalogues can be named after it.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { GettextExtractor, JsExtractors } from 'gettext-extractor';
import PO from 'pofile';

const DOMAIN = 'distdl_jupyter';
const LANGUAGES = ['ja_JP', 'zh_TW'];
const here = fileURLToPath(new URL('.', import.meta.url));
const [named = join(here, '..', 'distdl_jupyter', 'locale')] = process.argv.slice(2).filter((word) => !word.startsWith('--'));
const folder = resolve(named);
const version = JSON.parse(readFileSync(join(here, 'package.json'), 'utf8')).version;

// Neither language tells one from many.
const PLURAL_FORMS = 'nplurals=1; plural=0;';
const keyOf = (item) => (item.msgctxt ? `${item.msgctxt}\u0004${item.msgid}` : item.msgid);
const pathOf = (language) => join(folder, language, 'LC_MESSAGES', `${DOMAIN}.po`);

/** Return the texts of the source as entries without a translation. */
function texts() {
  const extractor = new GettextExtractor();
  const content = { content: { replaceNewLines: '\n' } };
  extractor
    .createJsParser([
      JsExtractors.callExpression(['__'], { arguments: { text: 0 }, ...content }),
      JsExtractors.callExpression(['_n'], { arguments: { text: 0, textPlural: 1 }, ...content }),
    ])
    .parseFilesGlob('src/**/*.ts');
  return extractor.getMessages().map(entry);
}

function entry(message) {
  const item = new PO.Item({ nplurals: 1 });
  item.msgid = message.text;
  item.msgid_plural = message.textPlural ?? null;
  item.msgctxt = message.context || undefined;
  // Without line numbers, which would change with every edit of the source.
  item.references = [...new Set(message.references.map((reference) => reference.replace(/:\d+$/, '')))].sort();
  item.msgstr = [''];
  return item;
}

/** Return the catalogue of a language: the texts of the source, with what is translated already. */
function merged(language) {
  const path = pathOf(language);
  const old = existsSync(path) ? PO.parse(readFileSync(path, 'utf8')) : new PO();
  const known = new Map(old.items.map((item) => [keyOf(item), item]));
  const next = new PO();
  next.headers = {
    'Project-Id-Version': DOMAIN,
    Language: language,
    'MIME-Version': '1.0',
    'Content-Type': 'text/plain; charset=UTF-8',
    'Content-Transfer-Encoding': '8bit',
    'Plural-Forms': PLURAL_FORMS,
  };
  next.items = texts();
  for (const item of next.items) {
    const before = known.get(keyOf(item));
    if (before) Object.assign(item, { msgstr: before.msgstr.slice(0, 1), comments: before.comments, flags: before.flags });
  }
  return next;
}

/** Write what JupyterLab reads. It takes a text with a plural only when there are two forms at least. */
function compile(language) {
  const catalogue = PO.parse(readFileSync(pathOf(language), 'utf8'));
  const head = { domain: DOMAIN, language: language.replace('_', '-'), plural_forms: PLURAL_FORMS, version };
  const done = catalogue.items.filter((item) => item.msgstr[0]);
  const forms = (item) => (item.msgid_plural ? [item.msgstr[0], item.msgstr[0]] : [item.msgstr[0]]);
  const texts = Object.fromEntries(done.map((item) => [keyOf(item), forms(item)]));
  writeFileSync(pathOf(language).replace(/po$/, 'json'), `${JSON.stringify({ '': head, ...texts }, null, 1)}\n`);
}

const placeholders = (text) => [...new Set(text.match(/%%|%\d+/g) ?? [])].sort().join(' ');

/** Return what is wrong with a catalogue, one sentence each. */
function problems(language) {
  const [path, now] = [pathOf(language), merged(language)];
  if (!existsSync(path)) return [`${path} is missing: run 'npm run catalogues' and translate it.`];
  const written = PO.parse(readFileSync(path, 'utf8')).items;
  const [listed, wanted] = [written, now.items].map((items) => new Map(items.map((item) => [keyOf(item), item])));
  const found = [];
  const say = (item, what) => found.push(`${language}: ${JSON.stringify(item.msgid)} ${what}`);
  for (const item of now.items) {
    if (!listed.has(keyOf(item))) say(item, "is not in the catalogue: run 'npm run catalogues' and translate it.");
    else if (!item.msgstr[0]) say(item, 'is not translated.');
    else if (!fits(item)) say(item, `has the placeholders "${placeholders(item.msgid_plural ?? item.msgid)}", its translation "${placeholders(item.msgstr[0])}".`);
  }
  for (const item of written) if (!wanted.has(keyOf(item))) say(item, "is no longer in the source: run 'npm run catalogues'.");
  return found;
}

/** A translation uses the same values; "one job" may leave out the number that "%1 jobs" shows. */
function fits(item) {
  return placeholders(item.msgstr[0]) === placeholders(item.msgid_plural ?? item.msgid);
}

function update(language) {
  const catalogue = merged(language);
  const path = pathOf(language);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `${catalogue.toString().trimEnd()}\n`);
  const open = catalogue.items.filter((item) => !item.msgstr[0]).length;
  console.log(`${language}: ${catalogue.items.length} texts, ${open} of them not translated`);
}

process.chdir(here); // the references are paths from here
if (process.argv.includes('--check')) {
  const found = LANGUAGES.flatMap(problems);
  for (const problem of found) console.log(problem);
  process.exitCode = found.length ? 1 : 0;
} else if (process.argv.includes('--compile')) LANGUAGES.forEach(compile);
else LANGUAGES.forEach(update);
