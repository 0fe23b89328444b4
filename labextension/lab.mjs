// Builds the JupyterLab extension from src/lab into distdl_jupyter/labextension, where the Python package finds it.
// `--watch` rebuilds on every change, with source maps; what Lab itself brings is shared with it and not bundled.
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const json = (path) => JSON.parse(readFileSync(path, 'utf8'));

const declared = json(at('package.json')).dependencies;

// The builder knows the packages of the newest Lab and would ask for those versions; this extension asks for what its
// package.json says, and of other packages for the major version that it was checked against.
function supported([name, newest]) {
  const installed = at(`node_modules/${name}/package.json`);
  if (declared[name] || !existsSync(installed)) return [name, declared[name] ?? newest];
  return [name, `^${json(installed).version.split('.')[0]}.0.0`];
}

function corePackage() {
  const core = json(at('node_modules/@jupyterlab/core-meta/core.package.json'));
  for (const key of ['dependencies', 'resolutions']) {
    core[key] = Object.fromEntries(Object.entries(core[key] ?? {}).map(supported));
  }
  const path = at('node_modules/.cache/distdl/core.package.json');
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, JSON.stringify(core));
  return path;
}

const builder = at('node_modules/@jupyter/builder/lib/build-labextension.js');
const watch = process.argv.includes('--watch') ? ['--watch', '--development'] : [];
const build = spawn(process.execPath, [builder, ...watch, '--core-package-file', corePackage(), at('.')], { cwd: at('.'), stdio: 'inherit' });
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => build.kill(signal));
build.on('exit', (code) => (process.exitCode = code ?? 1));
