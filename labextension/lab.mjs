// Builds the JupyterLab extension from src/lab into distdl_jupyter/labextension, where the Python package finds it.
// `--watch` rebuilds on every change, with source maps; what Lab itself brings is shared with it and not bundled.
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const watch = process.argv.includes('--watch') ? ['--watch', '--development'] : [];
const builder = at('node_modules/@jupyter/builder/lib/build-labextension.js');
const core = at('node_modules/@jupyterlab/core-meta/core.package.json');
const done = spawnSync(process.execPath, [builder, ...watch, '--core-package-file', core, at('.')], { stdio: 'inherit' });
process.exitCode = done.status ?? 1;
