"""What is told of a job while it runs, whoever hears it: messages, made once for all, and each hearer's place in them.

Nothing here knows HTTP, a kernel's messages or a page: ``server`` sends what ``JobSubscriber.due`` returns.
"""
