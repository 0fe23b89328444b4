/** The names by which JupyterLab knows this extension; other modules make their ids from them. */

/** The name of the npm package: the settings are under `<NAME>:plugin`. */
export const NAME = 'distdl-jupyter';
/** The id of the plugin that owns the settings' schema (`schema/plugin.json`). */
export const SETTINGS = `${NAME}:plugin`;
/** The gettext domain: `distdl_jupyter/locale/<language>/LC_MESSAGES/<DOMAIN>.json`. */
export const DOMAIN = 'distdl_jupyter';
