/** Whether a variable's name looks like that of a secret: the rule of `core.spec.looks_secret`, before anybody is asked. */
const BETWEEN = /[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])/;
const SECRET = new Set([
  'secret', 'secrets', 'password', 'passwords', 'passwd', 'pwd', 'passphrase', 'token', 'tokens', 'apikey', 'credential', 'credentials',
  'sas', 'signature', 'key',
]);

/** It goes by whole words, so that TOKENIZERS_PARALLELISM stays readable. "key" counts as the last word only. */
export function looksSecret(name: string): boolean {
  const words = name.split(BETWEEN).filter(Boolean).map((word) => word.toLowerCase());
  const found = new Set(words.filter((word) => SECRET.has(word)));
  if (found.size === 1 && found.has('key')) return words.at(-1) === 'key';
  return found.size > 0 || words.join('').includes('connectionstring');
}
