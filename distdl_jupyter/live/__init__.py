"""Live updates of jobs: messages that are created once for all subscribers, and the send state of each subscriber.

Nothing here depends on HTTP, kernel messages or pages: ``server`` sends what ``JobSubscriber.take_messages`` returns.
"""
