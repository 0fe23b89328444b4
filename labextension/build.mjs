// Bundles the widgets of src/widgets and their style sheet to what the Python package ships.
// Each bundle is one self-contained ES module, as anywidget wants it: nothing is loaded from elsewhere at run time.
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build, context } from 'esbuild';

const here = fileURLToPath(new URL('.', import.meta.url));
const widgets = ['azure', 'job', 'launch'].map((name) => join(here, 'src', 'widgets', `${name}.ts`));
const options = {
  entryPoints: [...widgets, join(here, 'style', 'widgets.css')],
  entryNames: '[name]',
  outdir: join(here, '..', 'distdl_jupyter', 'widgets', 'static'),
  bundle: true,
  format: 'esm',
  target: ['es2022'],
  minify: true,
  charset: 'utf8',
  logLevel: 'info',
};

if (process.argv.includes('--watch')) await (await context(options)).watch();
else await build(options);
