/** The form of a job's id, so that no other text from a notebook or a saved layout becomes part of an address. */

const ID = /^\d{8}-\d{6}-[a-z0-9]{4,12}$/;

/** Return whether a value is the id of a job. */
export const isJobId = (value: unknown): value is string => typeof value === 'string' && ID.test(value);
