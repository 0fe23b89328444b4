import tseslint from 'typescript-eslint';

export default tseslint.config(tseslint.configs.strict, {
  rules: { '@typescript-eslint/no-non-null-assertion': 'error', eqeqeq: 'error', 'no-restricted-properties': ['error', { property: 'innerHTML', message: 'Text from jobs is set as text, never as HTML.' }] },
});
