"""Jobs that were written for other tools, read into the words of this package; it says what each field became."""
