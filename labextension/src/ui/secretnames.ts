/** Return whether a variable's name looks like a secret, by the rule of `worker.secret_patterns`. */
const BETWEEN = /[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/;
const SECRET = new RegExp(
  'pass_?w(?:or)?d|pass_?phrase|pass_?code|secret|credential|webhook|_creds?_|_bearer_|_cookies?_|_sas_|_pat_'
  + '|_signature_'
  + '|(?:api|access|account|auth|client|deploy|encryption|license|master|private|service|shared|signing|ssh|storage'
  + '|subscription)_?keys?_(?!(?:id|file|path|dir|name|url)_)|_key_$|conn(?:ection)?_?str(?:ing)?s?_|dsn_|jwt_|pwd_'
  + '|_(?:admin|db|ftp|login|mail|mongo|mysql|pg|proxy|redis|root|smtp|sql|ssh|user)_?pass_',
);
/** The same, unless a word makes it a count or a special token of a language model, a pass over data, or a switch. */
const PERHAPS: [RegExp, RegExp][] = [
  [
    /tokens?_|[a-z]_keys_$/,
    new RegExp(
      '_(?:n|num|max|min|total|per|count|size|len|length|limit|budget|pad|eos|bos|unk|cls|sep|mask|special|type|ids?'
      + '|embeds?|embedding|dropout|missing|unexpected)_',
    ),
  ],
  [/_pass_$/, /_(?:n|num|max|by|forward|backward|single|multi|one|two|first|second|last|low|high|band|all|test)_/],
  [/_auth_(?:$|basic_|config_|data_|header_|json_)/, /_(?:use|no|enable|disable|skip|with|is)_/],
];

export function looksSecret(name: string): boolean {
  if (name === 'PWD' || name === 'OLDPWD') return false;
  const words = name.split(BETWEEN).map((word) => word.replace(/\d+$/, '').toLowerCase()).filter(Boolean);
  const plain = `_${words.join('_')}_`;
  return SECRET.test(plain) || PERHAPS.some(([part, but]) => part.test(plain) && !but.test(plain));
}
