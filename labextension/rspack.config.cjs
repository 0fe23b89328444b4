// What the builder of Lab extensions does not know: how this source is written.
module.exports = {
  resolve: { extensions: ['.ts', '.js', '.json'] },
  module: {
    rules: [
      { test: /\.ipynb$/, type: 'json' },
      {
        test: /\.ts$/,
        exclude: /node_modules/,
        resolve: { fullySpecified: false },
        type: 'javascript/auto',
        loader: 'builtin:swc-loader',
        options: { jsc: { parser: { syntax: 'typescript' }, target: 'es2022' } },
      },
    ],
  },
  performance: { hints: false }, // plotly is large, and loaded only when a curve is drawn
  stats: 'errors-warnings',
};
