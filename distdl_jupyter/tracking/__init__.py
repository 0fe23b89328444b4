"""Reports about jobs to other programs: messages, telemetry and experiment trackers. All are off by default.

Each report is written by a process of its own, so that a slow or broken service never delays a job.
"""
