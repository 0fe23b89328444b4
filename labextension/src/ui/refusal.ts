/** Why something that was asked for was not done, as views show it. It knows nothing of who refused. */

/** One sentence and, when there is one, the remedy and the field that it is about. */
export class Refusal extends Error {
  constructor(message: string, readonly hint = '', readonly field = '') {
    super(message);
  }
}

/** Return the sentence with its remedy. */
export function sentences(error: unknown): string {
  return error instanceof Refusal ? [error.message, error.hint].filter(Boolean).join(' ') : String(error);
}
