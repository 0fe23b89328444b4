"""What was written about a job: its events, the lines of its log, and its notes."""

from distdl_jupyter.core import events, logfile


def events_of(folder):
    """The events without the log."""
    return events.read_all(folder.events)[0]


def lines(folder):
    """The lines of the log with its marks."""
    return [line for found, _ in events.read_batches(folder.log, 0, logfile.read) for line in found]


def all_written(folder):
    """Events and lines of the log in the order of their times; of one time the events come first."""
    return sorted(events_of(folder) + lines(folder), key=lambda one: one["t"])


def notes(job, code):
    """Return the texts of a job's notes with this code."""
    return [note["text"] for note in job.view().notes if note.get("code") == code]
