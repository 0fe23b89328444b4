import tseslint from 'typescript-eslint';

const TEXT = 'CallExpression[callee.name=/^(__|_n)$/]';

// `npm run catalogues` reads the texts from the source, so they stand there as they are.
const literalTexts = [
  { selector: `${TEXT}[arguments.0.type!="Literal"]`, message: 'A text to translate is a literal string; values go in as %1, %2, ...' },
  { selector: 'CallExpression[callee.name="_n"][arguments.1.type!="Literal"]', message: 'The plural of a text to translate is a literal string.' },
];

/** A text that is made when a module is loaded is made before the language of the page is known. */
const lateTexts = {
  meta: { type: 'problem', schema: [] },
  create: (context) => ({
    [TEXT](node) {
      for (let at = node; at; at = at.parent) {
        if (/Function/.test(at.type) || (at.type === 'PropertyDefinition' && !at.static)) return;
      }
      context.report({ node, message: 'A text to translate is made inside a function: at the top of a module the language is not known yet.' });
    },
  }),
};

export default tseslint.config(tseslint.configs.strict, {
  plugins: { distdl: { rules: { 'late-texts': lateTexts } } },
  rules: {
    '@typescript-eslint/no-non-null-assertion': 'error',
    'distdl/late-texts': 'error',
    eqeqeq: 'error',
    'no-restricted-properties': ['error', { property: 'innerHTML', message: 'Text from jobs is set as text, never as HTML.' }],
    'no-restricted-syntax': ['error', ...literalTexts],
  },
});
